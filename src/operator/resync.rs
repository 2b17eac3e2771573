//! Anti-entropy: now and then what this replica believes is compared with what the lock's table says.
//!
//! Heartbeats notice a database that is another one by its identity. What that cannot show is found here: a row that was
//! changed by hand, a restore under the same identity. And a row whose group went away while the database was out of
//! reach gets its tombstone: else its key would seem to be in use for ever.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::{StreamExt as _, stream};

use super::{
    controller::Driver,
    group::{Charge, Entry, tagged},
    message::{GroupName, Message},
};
use crate::{
    election::{Event, Phase},
    routing::{GroupRef, Router},
};
use leadergroup_lock::{ClaimedRow, Key, LockError, SessionId, Store, Token, Tombstone, Unclaimed};

/// How many times the ttl passes between two comparisons. Each reads the rows that this replica is in charge of.
const INTERVAL: u32 = 30;
/// The most rows without a group that are looked into at a time; the rest is for the next time.
const MOST_STRANGERS: usize = 200;
/// Rows in one statement.
const PAGE: u32 = 1_000;
/// Quorum reads at a time.
const PARALLEL_READS: usize = 4;

/// When the next comparison is due, and whether one is under way.
#[derive(Default)]
pub(super) struct Schedule {
    session: Option<SessionId>,
    next: Duration,
    running: bool,
}

/// What the table says.
#[derive(Debug)]
pub(super) struct Audit {
    session: SessionId,
    /// The rows that the session is in charge of; none when they could not be read.
    held: Option<Vec<ClaimedRow>>,
}

impl Driver {
    /// Starts a comparison if one is due: soon after each new session, and at long intervals from then on.
    pub(super) fn audit(&mut self, now: Duration) {
        let Some(session) = self.lock.own.filter(|_| self.lock.outage.is_none()) else { return };
        if self.audits.session != Some(session) {
            self.audits.session = Some(session);
            self.audits.next = now + self.parts.session_ttl;
        }
        if self.audits.running || now < self.audits.next {
            return;
        }
        self.audits.running = true;
        self.audits.next = now + self.parts.session_ttl * INTERVAL;
        let (store, messages) = (self.parts.store.clone(), self.parts.messages.clone());
        self.tasks.spawn(async move {
            let held = match store.rows_of(session).await {
                Ok(held) => Some(held),
                Err(error) => {
                    tracing::debug!(%error, "could not compare the rows of the lock; trying again later");
                    None
                }
            };
            // The loop is gone only when the process ends.
            let _ = messages.send(Message::Audited(Audit { session, held })).await;
        });
    }

    /// Reads anew what is not as believed, and looks for rows whose groups are gone.
    pub(super) fn audited(&mut self, audit: Audit, now: Duration) {
        self.audits.running = false;
        let Some(held) = audit.held.filter(|_| self.lock.own == Some(audit.session)) else { return };
        self.doubt_charges();
        let (doubtful, strangers) = compare(self.entries.values(), &held);
        for name in doubtful {
            tracing::info!(group = %name, "the lock's row is not what this replica believes: reading it anew");
            self.step(&name, Event::Doubt, now);
        }
        let burial = Burial {
            store: self.parts.store.clone(),
            router: self.parts.router.clone(),
            session: audit.session,
            cluster: self.parts.cluster.clone(),
            namespaces: self.parts.namespaces.clone(),
        };
        // Of rows that nobody is in charge of one replica takes care.
        let unclaimed = self.lock.living.iter().min() == Some(&audit.session);
        self.tasks.spawn(async move {
            if let Err(error) = burial.run(strangers, unclaimed).await {
                tracing::debug!(%error, "could not look for rows without a group; trying again later");
            }
        });
    }
}

/// The groups whose rows are not as believed, and the rows that belong to none of the groups that this replica is in
/// charge of. Only settled groups are compared: in the others the row is just being changed.
fn compare<'a>(entries: impl Iterator<Item = &'a Entry>, held: &[ClaimedRow]) -> (Vec<GroupName>, Vec<Key>) {
    let ours: Vec<&Entry> = entries.filter(|entry| entry.charge == Charge::Ours).collect();
    let known: HashSet<&Key> = ours.iter().map(|entry| &entry.key).collect();
    let strangers = held.iter().filter(|row| !known.contains(&row.key)).map(|row| row.key.clone()).collect();
    let rows: HashMap<&Key, &ClaimedRow> = held.iter().map(|row| (&row.key, row)).collect();
    let settled = |entry: &&Entry| *entry.machine.phase() == Phase::Stable && !entry.machine.busy();
    let doubtful = ours.into_iter().filter(settled).filter(|entry| {
        let believed = entry.machine.row();
        let owner = believed.owner.as_ref().map(|pod| pod.uid.as_str());
        rows.get(&entry.key)
            .is_none_or(|row| row.token.get() != believed.token || row.holder.as_deref() != owner)
    });
    (doubtful.map(|entry| entry.name.clone()).collect(), strangers)
}

/// What it takes to leave a tombstone where a group is gone.
struct Burial {
    store: Store,
    router: Router,
    session: SessionId,
    cluster: String,
    /// The namespaces that this operator looks after; all if empty.
    namespaces: Vec<String>,
}

impl Burial {
    /// Looks into the rows of these keys, and into those that nobody is in charge of.
    async fn run(&self, strangers: Vec<Key>, unclaimed: bool) -> Result<(), LockError> {
        let strangers = &strangers[..strangers.len().min(MOST_STRANGERS)];
        let rows = if strangers.is_empty() { Vec::new() } else { self.store.read(strangers).await? };
        let held = rows.into_iter().filter(|row| !row.tombstone && row.session == Some(self.session));
        let mut strangers: Vec<_> = held.map(|row| Unclaimed { key: row.key, group: row.group }).collect();
        if unclaimed {
            strangers.extend(self.unclaimed().await?);
        }
        let reads: Vec<_> = strangers.into_iter().map(|stranger| self.if_gone(stranger)).collect();
        let gone: Vec<_> =
            stream::iter(reads).buffered(PARALLEL_READS).filter_map(std::future::ready).collect().await;
        if gone.is_empty() {
            return Ok(());
        }
        tracing::info!(rows = gone.len(), "leaving tombstones of groups that went away unseen");
        let tombstones: Vec<_> = gone
            .into_iter()
            .map(|stranger| Tombstone { key: stranger.key, group: stranger.group, floor: Token::ZERO })
            .collect();
        self.store.tombstone(self.session, &tombstones).await.map(drop)
    }

    /// Rows of this cluster that nobody is in charge of.
    async fn unclaimed(&self) -> Result<Vec<Unclaimed>, LockError> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.unclaimed(after.as_ref(), PAGE).await?;
            after = page.last().map(|row| row.key.clone());
            let last = page.len() < PAGE as usize;
            found.extend(page.into_iter().filter(|row| self.group_of(&row.group).is_some()));
            if last || found.len() >= MOST_STRANGERS {
                found.truncate(MOST_STRANGERS);
                return Ok(found);
            }
        }
    }

    /// The group that a row's tag names, if this operator looks after it.
    fn group_of(&self, tag: &str) -> Option<GroupRef> {
        tagged(tag, &self.cluster)
            .filter(|group| self.namespaces.is_empty() || self.namespaces.contains(&group.namespace))
    }

    /// The row, if a quorum read says that its group is gone, or is another one by now.
    async fn if_gone(&self, stranger: Unclaimed) -> Option<Unclaimed> {
        let group = self.group_of(&stranger.group)?;
        match self.router.group(&group).await {
            Ok(None) => Some(stranger),
            Ok(Some(_)) => None,
            Err(error) => {
                tracing::debug!(%error, key = %stranger.key, "could not look for the group of a row");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::{
        api::Declaration,
        election::{Outcome, Row, World},
    };

    /// A settled group that this replica is in charge of, whose lock is free after so many terms.
    fn settled(name: &str, token: i64) -> Entry {
        let object = json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": name, "uid": name },
            "spec": { "selector": { "matchLabels": { "app": name } }, "lock": { "key": name } }
        });
        let object = serde_json::from_value(object).expect("a group");
        let place = GroupName { namespace: "shop".into(), name: name.into() };
        let mut entry = Entry::new(object, place, "c1", Duration::ZERO).expect("it has name and UID");
        entry.charge = Charge::Ours;
        let effects = entry.machine.step(Event::Owned { seed: Uuid::nil() }, Duration::ZERO);
        let row = Some(Row { token, ..Row::default() });
        let declared = Some(Declaration { token, ..Declaration::default() });
        entry.machine.step(
            Event::Outcome(effects[0].0, Outcome::Read { row, declared }, World::default()),
            Duration::ZERO,
        );
        assert_eq!(*entry.machine.phase(), Phase::Stable);
        entry
    }

    fn held(key: &str, token: i64, owner: Option<&str>) -> ClaimedRow {
        let key = Key::new(key).expect("a key");
        ClaimedRow { key, token: Token::new(token), holder: owner.map(str::to_owned) }
    }

    #[test]
    fn what_is_not_as_believed_is_doubted_and_what_nobody_here_knows_is_a_stranger() {
        let mut entries = ["same", "newer", "owned", "lost", "busy", "lent"].map(|name| settled(name, 3));
        entries[4].machine.step(Event::Doubt, Duration::ZERO);
        entries[5].charge = Charge::Open;
        let table = [
            held("same", 3, None),
            held("newer", 4, None),
            held("owned", 3, Some("p1")),
            held("busy", 9, None),
            held("lent", 3, None),
            held("strange", 1, Some("p2")),
        ];
        let (doubtful, strangers) = compare(entries.iter(), &table);
        let doubtful: Vec<_> = doubtful.iter().map(|name| &*name.name).collect();
        assert_eq!(doubtful, ["newer", "owned", "lost"]);
        assert_eq!(strangers.iter().map(Key::as_str).collect::<Vec<_>>(), ["lent", "strange"]);
    }
}
