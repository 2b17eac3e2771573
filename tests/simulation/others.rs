//! Edits of pods by others: users, and an older group that selects the same pods.

use leadergroup::api::Role;

use crate::{
    action::Forgery,
    model::{Model, NAMES},
};

/// The UID of an older group that selects the same pods.
pub const RIVAL: u32 = 0;

impl Model {
    /// The other group has made a pod active.
    pub fn rival(&mut self, pod: usize) {
        for (other, name) in NAMES.iter().enumerate() {
            let active = self.server.pods.get(*name).is_some_and(|pod| pod.role == Role::Active);
            if other == pod || active {
                let role = if other == pod { Role::Active } else { Role::Standby };
                self.relabel(other, role);
                self.touch_pod(other, |pod| pod.stamp = Some((RIVAL, 1)));
            }
        }
    }

    /// Someone else sets a pod's role.
    pub fn relabel(&mut self, pod: usize, role: Role) {
        self.touch_pod(pod, |pod| pod.role = role);
        if let Some(uid) = self.uid(pod) {
            if role == Role::Active {
                self.server.meddled.insert(uid);
            } else {
                self.server.meddled.remove(&uid);
            }
        }
    }

    /// A pod that comes with a label which this group did not write is like one that others have labelled.
    pub fn rejoin(&mut self, pod: usize) {
        let group = self.server.group.as_ref().map(|group| group.uid);
        self.touch_pod(pod, |pod| pod.selected = true);
        if let Some(pod) = self.server.pods.get(NAMES[pod])
            && pod.role == Role::Active
            && pod.stamp.map(|(of, _)| of) != group
        {
            self.server.meddled.insert(pod.pod.uid.clone());
        }
    }

    pub fn restamp(&mut self, pod: usize, forgery: Forgery) {
        let Some((group, token)) = self.server.group.as_ref().map(|group| (group.uid, group.declared.token))
        else {
            return;
        };
        self.touch_pod(pod, |pod| {
            pod.stamp = match forgery {
                Forgery::Removed => None,
                Forgery::OtherGroup => Some((RIVAL, token)),
                Forgery::Ahead => Some((group, token + 1_000)),
                Forgery::Behind => Some((group, token - 1)),
                Forgery::Absurd => Some((group, i64::MAX - 1)),
            };
        });
        // Without its stamp nobody can tell whose label it is.
        if let Some(pod) = self.server.pods.get(NAMES[pod]).filter(|pod| pod.role == Role::Active) {
            self.server.meddled.insert(pod.pod.uid.clone());
        }
    }
}
