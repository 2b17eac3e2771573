//! Pods that failed lately while they were active. Others are preferred to them for a while, so that the role does not
//! move back and forth between a pod that works and one that works only while it is a standby.

use std::{collections::BTreeMap, time::Duration};

use super::world::World;
use crate::api::PodRef;

/// For how long others are preferred to a pod that has failed once. Each further failure doubles it.
const FIRST: Duration = Duration::from_mins(1);
/// The longest such time.
const LONGEST: Duration = Duration::from_mins(10);
/// After that time without a failure the next one counts as the first again. It is longer than any `failbackDelay`: a
/// pod that fails only while it is active has no chance to fail before.
const REMEMBERED: Duration = Duration::from_hours(2);

/// A pod's failures as the active one.
#[derive(Clone, Copy, Debug)]
struct Lapse {
    count: u32,
    since: Duration,
    until: Duration,
}

/// The pods that failed lately, by UID.
///
/// Every replica keeps them, so that they outlast a change of the group's owner: the owner notes the changes of holder
/// that it carries out, the others those that appear in the status' history. The times are this replica's own; those in
/// the history are wall clock times.
#[derive(Clone, Debug, Default)]
pub(super) struct Lapses {
    pods: BTreeMap<String, Lapse>,
    /// The UIDs of pods that were declared as holders, by name. The status' history has names only, and another pod of
    /// the same name may follow.
    holders: BTreeMap<String, String>,
    /// The token of the last change that was noted; none before the first look at the status.
    noted: Option<i64>,
    now: Duration,
}

impl Lapses {
    pub(super) fn set_time(&mut self, now: Duration) {
        self.now = now;
        self.pods.retain(|_, lapse| now < lapse.since + REMEMBERED);
    }

    /// Notes the changes that the status reports, except those that it reports at the first look: these may be old.
    /// Forgets pods that are gone.
    pub(super) fn refresh(&mut self, world: &World) {
        let exists = |uid: &String| world.members.iter().any(|member| member.pod.uid == *uid);
        self.pods.retain(|uid, _| exists(uid));
        self.holders.retain(|_, uid| exists(uid));
        self.declared(&world.declared.strip);
        let latest = world.history.first().map_or(0, |change| change.token);
        let noted = self.noted.map_or(latest, |noted| noted.max(latest));
        if let Some(before) = self.noted.replace(noted) {
            for change in world.history.iter().rev().filter(|change| change.token > before) {
                let failed = change.failed.as_ref().and_then(|name| self.holders.get(name));
                if let Some(uid) = failed.cloned() {
                    self.add(&uid);
                }
            }
        }
        self.declared(world.declared.holder.as_slice());
    }

    /// Notes that these pods were declared as holders.
    fn declared(&mut self, pods: &[PodRef]) {
        self.holders.extend(pods.iter().map(|pod| (pod.name.clone(), pod.uid.clone())));
    }

    /// Notes a change of holder that this replica has carried out. `failed` is the former holder, if it was replaced
    /// because it failed.
    pub(super) fn changed(&mut self, token: i64, failed: Option<&str>) {
        self.noted = self.noted.max(Some(token));
        if let Some(uid) = failed {
            self.add(uid);
        }
    }

    /// The pod failed while it was active.
    pub(super) fn add(&mut self, uid: &str) {
        let count = self.pods.get(uid).map_or(0, |lapse| lapse.count) + 1;
        let lasts = (FIRST * 2_u32.pow((count - 1).min(8))).min(LONGEST);
        self.pods.insert(uid.to_owned(), Lapse { count, since: self.now, until: self.now + lasts });
    }

    /// Whether others are preferred to the pod now.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|lapse| self.now < lapse.until)
    }

    /// Whether the pod has just failed, however often before.
    pub(super) fn is_fresh(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|lapse| self.now < lapse.since + FIRST)
    }

    /// Whether the pod has failed within the time for which failures are remembered.
    pub(super) fn remembers(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// When the answer for some pod changes next.
    pub(super) fn wake(&self) -> Option<Duration> {
        let times =
            self.pods.values().flat_map(|lapse| [lapse.since + FIRST, lapse.until, lapse.since + REMEMBERED]);
        times.filter(|at| self.now < *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// For how long another pod is preferred after each of so many failures, one right after the other.
    fn lasting(failures: u32) -> Duration {
        let mut lapses = Lapses::default();
        for _ in 0..failures {
            lapses.add("a");
        }
        let mut now = Duration::ZERO;
        while lapses.has("a") {
            let next = lapses.wake().expect("it ends");
            assert!(next > now, "it wakes again and again");
            (now, lapses.now) = (next, next);
        }
        now
    }

    #[test]
    fn each_failure_doubles_the_time_up_to_a_limit() {
        let minutes: Vec<u64> = (1..=6).map(|failures| lasting(failures).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 10, 10]);
        assert_eq!(lasting(1_000), LONGEST);
    }

    #[test]
    fn a_failure_is_fresh_for_a_minute_and_remembered_for_two_hours() {
        let mut lapses = Lapses::default();
        lapses.add("a");
        lapses.add("a");
        assert!(lapses.is_fresh("a") && !lapses.is_fresh("b"));
        lapses.set_time(MINUTE);
        assert!(lapses.has("a") && !lapses.is_fresh("a"));
        lapses.set_time(MINUTE * 119);
        lapses.add("a");
        lapses.set_time(REMEMBERED + MINUTE * 2);
        assert!(
            lapses.has("a"),
            "this is the third failure, for which others are preferred for four minutes"
        );
        lapses.set_time(REMEMBERED * 2);
        lapses.add("a");
        lapses.set_time(REMEMBERED * 2 + MINUTE);
        assert!(!lapses.has("a"), "this is the first failure again");
    }
}
