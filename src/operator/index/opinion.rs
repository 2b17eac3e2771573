//! What this replica asks others about its holders, and what others ask of it.

use std::{sync::Arc, time::Duration};

use super::{Index, Request, Requests};
use crate::{
    operator::object::GroupName,
    ownership::{Opinion, What},
};
use leadergroup_lock::SessionId;

impl Index {
    /// After a probe: whether to ask others about this pod, and whether their question can be answered now.
    pub(super) fn weigh_opinions(
        &mut self,
        name: &GroupName,
        uid: &Arc<str>,
        lost: bool,
        now: Duration,
        requests: &mut Requests,
    ) {
        let Some(group) = self.groups.get_mut(name).filter(|group| group.is_holder(uid)) else { return };
        let Some(pod) = group.pods.get_mut(uid) else { return };
        let blind = self.reach.cuts_off(pod.node(), now);
        let against = !blind && pod.member().verdict.against().is_some();
        let blind = blind || pod.hindrance().is_some();
        if lost && pod.evidence().asks_others(now) {
            requests.push(Request::AskOthers { group: name.clone(), pod: uid.clone(), blind });
        }
        if pod.evidence().vouches(against, now) {
            requests.push(Request::Vouch { group: name.clone(), pod: uid.clone() });
        }
    }

    /// This replica owns the group, and has just been told that another one hears the pod.
    pub(in crate::operator) fn relies_on_others(&mut self, name: &GroupName, uid: &str, now: Duration) {
        if let Some(pod) = self.groups.get_mut(name).and_then(|group| group.pods.get_mut(uid)) {
            pod.evidence().relies_on_others(now);
        }
    }

    /// Another replica has asked about pods, or answered.
    pub(super) fn opinion(
        &mut self,
        from: SessionId,
        opinion: &Opinion,
        now: Duration,
        requests: &mut Requests,
    ) {
        let sessions = &self.lock.sessions;
        if sessions.own() == Some(from) || !sessions.is_living(from) {
            return;
        }
        for uid in &opinion.pods {
            let Some(name) = self.placement.group_of(uid) else { continue };
            let Some(group) = self.groups.get_mut(name) else { continue };
            let is_holder = group.is_holder(uid);
            let Some(pod) = group.pods.get_mut(uid) else { continue };
            match opinion.what {
                // Every user of the database can ask, but replicas ask only about active pods.
                What::Ask { blind } => {
                    if is_holder && pod.evidence().asked(blind, now) {
                        requests.push(Request::ProbeNow(uid.clone()));
                    }
                }
                What::Vouch => {
                    pod.evidence().vouched_for(now);
                    requests.push(Request::Vouched { group: name.clone(), pod: uid.clone() });
                    let (changed, deadline) = group.assess_pod(uid, &self.leases, now);
                    if changed {
                        self.dirty.insert(name.clone());
                    }
                    self.timers.at_latest(name, deadline);
                }
            }
        }
    }
}
