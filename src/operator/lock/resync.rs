//! Anti-entropy: from time to time the rows that this replica owns are compared with what its elections hold.
//!
//! Heartbeats notice a database that is another one by its identity. A comparison finds what that cannot show: a row
//! that was changed by hand, or a restore under the same identity.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    election::Phase,
    operator::{group::Group, object::GroupName},
};
use leadergroup_lock::{Key, SessionId, Store, controller::ClaimedRow};

/// How many ttls pass between two comparisons. Each reads the rows that this replica owns.
const INTERVAL: u32 = 30;

/// When the next comparison is due, and whether one is under way.
#[derive(Default)]
pub(in crate::operator) struct Schedule {
    session: Option<SessionId>,
    next: Duration,
    running: bool,
}

impl Schedule {
    /// Whether a comparison has to be started: soon after each new session, and at long intervals from then on.
    pub(in crate::operator) fn is_due(&mut self, session: SessionId, ttl: Duration, now: Duration) -> bool {
        if self.session != Some(session) {
            self.session = Some(session);
            self.next = now + ttl;
        }
        if self.running || now < self.next {
            return false;
        }
        self.running = true;
        self.next = now + ttl * INTERVAL;
        true
    }

    pub(in crate::operator) fn ended(&mut self) {
        self.running = false;
    }
}

/// The rows that a session owns.
#[derive(Debug)]
pub(in crate::operator) struct Rows {
    pub(in crate::operator) session: SessionId,
    /// `None` if they could not be read.
    pub(in crate::operator) rows: Option<Vec<ClaimedRow>>,
}

/// Reads the rows that a session owns.
pub(in crate::operator) async fn read(store: &Store, session: SessionId) -> Rows {
    let rows = match store.rows_of(session).await {
        Ok(rows) => Some(rows),
        Err(error) => {
            tracing::debug!(%error, "could not compare the rows of the lock; trying again later");
            None
        }
    };
    Rows { session, rows }
}

/// The groups whose rows differ from what their elections hold, and the rows that belong to none of the groups that
/// this replica owns. Only stable groups are compared: the rows of the others are just being changed.
pub(in crate::operator) fn compare<'a>(
    groups: impl Iterator<Item = &'a Group>,
    held: &[ClaimedRow],
) -> (Vec<GroupName>, Vec<Key>) {
    let owned: Vec<&Group> = groups.filter(|group| group.is_owned()).collect();
    let known: HashSet<&Key> = owned.iter().map(|group| &group.record().key).collect();
    let strangers = held.iter().filter(|row| !known.contains(&row.key)).map(|row| row.key.clone()).collect();
    let rows: HashMap<&Key, &ClaimedRow> = held.iter().map(|row| (&row.key, row)).collect();
    let stable = |group: &&Group| *group.election().phase() == Phase::Stable && !group.election().busy();
    let differing = owned.into_iter().filter(stable).filter(|group| {
        let expected = group.election().row();
        let holder = expected.holder.as_ref().map(|pod| pod.uid.as_str());
        rows.get(&group.record().key)
            .is_none_or(|row| row.token.get() != expected.token || row.holder.as_deref() != holder)
    });
    (differing.map(|group| group.record().name.clone()).collect(), strangers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leadergroup_lock::Token;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::{
        api::Declaration,
        election::{Event, Outcome, Row, World},
        operator::object::{GroupName, record::Record},
        ownership,
    };

    /// A stable group that this replica owns, whose lock is free after this many terms.
    fn stable(name: &str, token: i64) -> Group {
        let object = json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": name, "uid": name },
            "spec": { "selector": { "matchLabels": { "app": name } }, "lock": { "key": name } }
        });
        let object = serde_json::from_value(object).expect("a group");
        let place = GroupName { namespace: "shop".into(), name: name.into() };
        let record = Record::first(object, place, "c1").expect("it has name and UID");
        let mut group = Group::new(&Arc::new(record));
        group.ownership = ownership::Group::ours();
        let effects = group
            .step(Event::Owned { seed: Uuid::nil(), row: None, world: World::default() }, Duration::ZERO);
        let row = Some(Row { token, ..Row::default() });
        let declared = Some(Declaration { token, ..Declaration::default() });
        group.step(
            Event::Outcome(effects[0].0, Outcome::Read { row, declared }, World::default()),
            Duration::ZERO,
        );
        assert_eq!(*group.election().phase(), Phase::Stable);
        group
    }

    fn held(key: &str, token: i64, owner: Option<&str>) -> ClaimedRow {
        let key = Key::new(key).expect("a key");
        ClaimedRow { key, token: Token::new(token), holder: owner.map(str::to_owned) }
    }

    #[test]
    fn the_rows_are_compared_soon_after_each_new_session_and_one_comparison_at_a_time() {
        let (ttl, s) = (Duration::from_secs(4), Duration::from_secs);
        let [one, other] = [SessionId::new(), SessionId::new()];
        let mut schedule = Schedule::default();
        let mut due = |session, at| schedule.is_due(session, ttl, s(at));
        assert_eq!([100, 103, 104].map(|at| due(one, at)), [false, false, true]);
        // That one is still under way, although another would be due.
        assert_eq!([105, 300].map(|at| due(one, at)), [false, false]);
        assert!(!due(other, 310) && !due(other, 320));
        schedule.ended();
        let mut due = |at| schedule.is_due(other, ttl, s(at));
        assert_eq!([320, 321].map(&mut due), [true, false]);
        schedule.ended();
        let mut due = |at| schedule.is_due(other, ttl, s(at));
        assert_eq!([321, 439, 440].map(&mut due), [false, false, true]);
    }

    #[test]
    fn a_row_that_differs_is_doubted_and_one_of_no_group_is_a_stranger() {
        let mut groups = ["same", "newer", "owned", "lost", "busy", "lent"].map(|name| stable(name, 3));
        groups[4].step(Event::Doubt, Duration::ZERO);
        groups[5].ownership = ownership::Group::default();
        let table = [
            held("same", 3, None),
            held("newer", 4, None),
            held("owned", 3, Some("p1")),
            held("busy", 9, None),
            held("lent", 3, None),
            held("strange", 1, Some("p2")),
        ];
        let (doubtful, strangers) = compare(groups.iter(), &table);
        let doubtful: Vec<_> = doubtful.iter().map(|name| &*name.name).collect();
        assert_eq!(doubtful, ["newer", "owned", "lost"]);
        assert_eq!(strangers.iter().map(Key::as_str).collect::<Vec<_>>(), ["lent", "strange"]);
    }
}
