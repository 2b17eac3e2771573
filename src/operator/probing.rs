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
pub(super) fn probing(
    ownership: &Ownership,
    deleting: bool,
    key: &Key,
    holder_node: Option<&str>,
    lock: &LockView,
) -> Probing {
    match ownership {
        _ if deleting => Probing::None,
        Ownership::Ours | Ownership::Claiming | Ownership::Unowned => Probing::All,
        Ownership::Foreign(_) | Ownership::Refused(_) => Probing::None,
        Ownership::Other(session) => {
            let others = lock.working().filter(|other| other.session != *session);
            if lock.own().is_none() || falls_to(key, holder_node, others) != lock.own() {
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
    use leadergroup_lock::{Peer, SessionId};

    #[test]
    fn the_deputy_probes_the_holder_and_all_pods_once_the_owner_seems_to_have_stopped() {
        let key = Key::new("web").expect("a key");
        let replicas = ["n1", "n2", "n3"];
        let replicas = replicas.map(|node| Peer { session: SessionId::new(), place: Some(node.to_owned()) });
        let [own, owner, third] = [0, 1, 2].map(|index: usize| replicas[index].session);
        let view = |suspects: &[SessionId]| {
            let mut view = LockView::default();
            view.beat(own, replicas.to_vec(), suspects.to_vec(), Duration::ZERO);
            view
        };
        let by_owner = Ownership::Other(owner);
        let deputy = |node, suspects: &[SessionId]| probing(&by_owner, false, &key, node, &view(suspects));
        assert_eq!(deputy(Some("n3"), &[]), Probing::Holder);
        assert_eq!(
            deputy(Some("n1"), &[]),
            Probing::None,
            "the third one is on another node than the holder"
        );
        assert_eq!(deputy(Some("n1"), &[third]), Probing::Holder, "the third one is not counted on");
        assert_eq!(deputy(Some("n3"), &[owner]), Probing::All);
        assert_eq!(probing(&Ownership::Ours, false, &key, None, &view(&[])), Probing::All);
        assert_eq!(probing(&Ownership::Ours, true, &key, None, &view(&[])), Probing::None);
        assert_eq!(probing(&by_owner, false, &key, None, &LockView::default()), Probing::None);
    }
}
