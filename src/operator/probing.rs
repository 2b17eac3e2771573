//! Which pods of a group this replica probes.

use super::{assignment::falls_to, lock_view::LockView, ownership::Ownership};
use leadergroup_lock::Key;

/// Which pods of a group this replica probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probing {
    /// All: this replica owns the group, or may soon own it.
    All,
    /// The holder only: this replica is the deputy. If the owner is lost together with the holder's node, the time of
    /// silence does not begin again.
    Holder,
    /// None: another replica does.
    None,
}

/// Which pods of the group with this key this replica is to probe.
pub(super) fn probing(ownership: &Ownership, deleting: bool, key: &Key, lock: &LockView) -> Probing {
    match ownership {
        _ if deleting => Probing::None,
        Ownership::Ours | Ownership::Claiming | Ownership::Unowned => Probing::All,
        Ownership::Foreign(_) => Probing::None,
        Ownership::Other(session) => {
            let others = lock.living().iter().filter(|id| *id != session && !lock.is_suspect(**id));
            if lock.own().is_none() || falls_to(key, others) != lock.own() {
                Probing::None
            } else if lock.is_suspect(*session) {
                // If the group falls to this replica, there must be fresh evidence on every pod by then.
                Probing::All
            } else {
                Probing::Holder
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use leadergroup_lock::SessionId;

    #[test]
    fn the_deputy_probes_the_holder_and_all_pods_once_the_owner_seems_to_have_stopped() {
        let key = Key::new("web").expect("a key");
        let [own, owner, third] = [(); 3].map(|()| SessionId::new());
        let is_deputy = falls_to(&key, [own, third].iter()) == Some(own);
        let view = |suspects: Vec<SessionId>| {
            let mut view = LockView::default();
            view.beat(own, vec![own, owner, third], suspects, Duration::ZERO);
            view
        };
        let deputy = |suspects| probing(&Ownership::Other(owner), false, &key, &view(suspects));
        assert_eq!(deputy(vec![]), if is_deputy { Probing::Holder } else { Probing::None });
        assert_eq!(deputy(vec![third]), Probing::Holder, "the third one is not counted on");
        assert_eq!(deputy(vec![owner, third]), Probing::All);
        assert_eq!(probing(&Ownership::Ours, false, &key, &view(vec![])), Probing::All);
        assert_eq!(probing(&Ownership::Ours, true, &key, &view(vec![])), Probing::None);
        let without_session = LockView::default();
        assert_eq!(probing(&Ownership::Other(owner), false, &key, &without_session), Probing::None);
    }
}
