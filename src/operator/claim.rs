//! Sharing the groups out among the replicas: who claims what, and the claim itself.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use kube::{Resource as _, ResourceExt as _};

use super::{
    group::{Charge, Entry, same_place},
    message::{GroupName, Trouble},
};
use crate::{
    api::FINALIZER,
    routing::{GroupRef, Router},
};
use leadergroup_lock::{Changed, Claim, Claimed, Key, SessionId, Store, Token, Tombstone};

/// The most groups in one claim.
pub(super) const LARGEST_CLAIM: usize = 1_000;
/// Quorum reads at a time before rows are made.
const PARALLEL_READS: usize = 16;
/// After so many heartbeats without anybody in charge, a replica no longer leaves a group to the one it falls to.
const PATIENT_BEATS: u32 = 2;
/// How soon a refused claim is made again.
const RECLAIM: Duration = Duration::from_secs(5);

/// The session that a key falls to, of those that live: the highest hash wins, so that every replica comes to the same
/// result without a word, and a session that goes takes only its own share away (rendezvous hashing).
pub(super) fn falls_to<'a>(key: &Key, sessions: impl Iterator<Item = &'a SessionId>) -> Option<SessionId> {
    let weight = |session: &&SessionId| {
        let mut hasher = DefaultHasher::new();
        (key.as_str(), session.as_uuid()).hash(&mut hasher);
        (hasher.finish(), **session)
    };
    sessions.max_by_key(weight).copied()
}

/// What came of a claim.
#[derive(Debug)]
pub(super) enum Answer {
    /// The lock's word.
    Lock(Box<Claimed>),
    /// The group is being deleted, and the lock holds nothing of it any more.
    Buried,
}

/// What a quorum read says of a group.
enum Presence {
    /// It is there, with our finalizer on it.
    Exists,
    /// It is being deleted; this is the token that its status declares.
    Deleting(i64),
    /// It is gone.
    Gone,
}

/// One group to claim.
pub(super) struct Wish {
    pub(super) name: GroupName,
    pub(super) uid: Arc<str>,
    pub(super) group: GroupRef,
    pub(super) key: Key,
    pub(super) tag: String,
    pub(super) deleting: bool,
}

impl Entry {
    /// Whether this replica should claim the group now, given who lives.
    pub(super) fn wants_claim(&mut self, own: SessionId, living: &[SessionId], now: Duration) -> bool {
        if let Charge::Other(session) = self.charge
            && !living.contains(&session)
        {
            self.charge = Charge::Open;
            self.open_beats = 0;
        }
        let asks = match self.charge {
            Charge::Open | Charge::Foreign(_) => true,
            Charge::Other(session) => self.doubted == Some(session),
            Charge::Claiming | Charge::Ours => false,
        };
        if !asks || now < self.claim_after {
            return false;
        }
        if self.unreadable.is_some() && self.object.metadata.deletion_timestamp.is_none() {
            // It is left to a replica that can read it.
            return false;
        }
        self.open_beats = self.open_beats.saturating_add(1);
        falls_to(&self.key, living.iter()) == Some(own) || self.open_beats > PATIENT_BEATS
    }

    pub(super) fn wish(&self) -> Wish {
        Wish {
            name: self.name.clone(),
            uid: self.uid.clone(),
            group: self.group.clone(),
            key: self.key.clone(),
            tag: self.tag.clone(),
            deleting: self.object.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Whoever is in charge may have given the charge up without coming to an end: it is asked for anew.
    pub(super) fn doubt_charge(&mut self) {
        if let Charge::Other(session) = self.charge
            && self.doubted.replace(session) != Some(session)
        {
            self.open_beats = 0;
        }
    }

    /// Takes the answer in. True when this replica is in charge now.
    pub(super) fn claimed(&mut self, answer: Result<Answer, Trouble>, now: Duration) -> bool {
        self.claim_after = Duration::ZERO;
        let answer = match answer {
            Ok(Answer::Lock(claimed)) => *claimed,
            Ok(Answer::Buried) => {
                self.charge = Charge::Open;
                self.claim_after = now + RECLAIM;
                return false;
            }
            Err(trouble) => {
                self.trouble = Some(trouble);
                self.charge = Charge::Open;
                return false;
            }
        };
        match answer {
            Claimed::Ours(_) => {
                self.charge = Charge::Ours;
                self.open_beats = 0;
                self.trouble = None;
                return true;
            }
            Claimed::By { session } => self.charge = Charge::Other(session),
            Claimed::Foreign { group } => {
                self.charge = Charge::Foreign(group);
                self.claim_after = now + RECLAIM;
            }
            Claimed::ProtocolNewer { protocol } => {
                let text = format!(
                    "a newer operator (lock protocol {protocol}) has taken this group; upgrade this replica"
                );
                self.trouble = Some(Trouble::Lock(text));
                self.charge = Charge::Open;
                self.claim_after = now + RECLAIM;
            }
            Claimed::Busy => self.charge = Charge::Open,
            // The quorum read did not find the group: the watch will say so too.
            Claimed::Missing | Claimed::Tombstone { .. } => {
                self.charge = Charge::Open;
                self.claim_after = now + RECLAIM;
            }
        }
        false
    }
}

/// Makes the claims. A row is only made, or taken from a group that went before, after a quorum read found the group:
/// a cache may show one that was deleted long ago. Of one that is being deleted a tombstone is left, or found.
pub(super) async fn claim(
    store: Store,
    router: Router,
    session: SessionId,
    wishes: Vec<Wish>,
) -> Vec<(GroupName, Arc<str>, Result<Answer, Trouble>)> {
    let all: Vec<&Wish> = wishes.iter().collect();
    let mut answers = ask(&store, session, &all, &vec![(false, None); all.len()]).await;
    let unsettled: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter(|(index, answer)| match answer {
            Ok(Claimed::Missing | Claimed::Tombstone { .. }) => true,
            Ok(Claimed::Foreign { group }) => {
                same_place(group, &wishes[*index].tag) || wishes[*index].deleting
            }
            _ => false,
        })
        .map(|(index, _)| index)
        .collect();
    let reads: Vec<_> = unsettled.iter().map(|index| confirm(&router, &wishes[*index])).collect();
    let presence: Vec<_> = stream::iter(reads).buffered(PARALLEL_READS).collect().await;
    let (mut confirmed, mut buried) = (Vec::new(), Vec::new());
    for (index, presence) in unsettled.into_iter().zip(presence) {
        match (presence, &answers[index]) {
            (Ok(Presence::Exists), Ok(Claimed::Foreign { group }))
                if !same_place(group, &wishes[index].tag) => {}
            (Ok(Presence::Exists), _) => confirmed.push(index),
            (Ok(Presence::Deleting(floor)), Ok(Claimed::Missing)) => {
                match bury(&store, session, &wishes[index], floor).await {
                    Ok(()) => buried.push(index),
                    Err(trouble) => answers[index] = Err(trouble),
                }
            }
            (Ok(Presence::Deleting(_)), _) => buried.push(index),
            (Ok(Presence::Gone), _) => {}
            (Err(trouble), _) => answers[index] = Err(trouble),
        }
    }
    let predecessor = |index: usize| match &answers[index] {
        Ok(Claimed::Foreign { group }) => Some(group.clone()),
        _ => None,
    };
    let again: Vec<_> = confirmed.iter().map(|index| (true, predecessor(*index))).collect();
    let chosen: Vec<&Wish> = confirmed.iter().map(|index| &wishes[*index]).collect();
    let second = ask(&store, session, &chosen, &again).await;
    for (index, answer) in confirmed.into_iter().zip(second) {
        answers[index] = answer;
    }
    let mut answers: Vec<_> =
        answers.into_iter().map(|answer| answer.map(|claimed| Answer::Lock(Box::new(claimed)))).collect();
    for index in buried {
        answers[index] = Ok(Answer::Buried);
    }
    wishes.into_iter().zip(answers).map(|(wish, answer)| (wish.name, wish.uid, answer)).collect()
}

/// Leaves a tombstone where the row was lost, so that the key's next user goes on above the group's tokens.
async fn bury(store: &Store, session: SessionId, wish: &Wish, floor: i64) -> Result<(), Trouble> {
    let tombstone = Tombstone { key: wish.key.clone(), group: wish.tag.clone(), floor: Token::new(floor) };
    match store.tombstone(session, &[tombstone]).await {
        Ok(answers) if answers.contains(&Changed::Done) => Ok(()),
        Ok(_) => Err(Trouble::Lock("the lock's row is busy; trying again".to_owned())),
        Err(error) => Err(Trouble::Lock(error.to_string())),
    }
}

/// Whether the group is there, by a quorum read.
async fn confirm(router: &Router, wish: &Wish) -> Result<Presence, Trouble> {
    let found = router.sight(&wish.group).await.map_err(|error| Trouble::from(&error))?;
    let Some(found) = found else { return Ok(Presence::Gone) };
    if found.meta().deletion_timestamp.is_some() {
        return Ok(Presence::Deleting(found.declaration().token));
    }
    // A replica that cannot read it leaves it to one that can.
    let found = found.0.map_err(|unreadable| Trouble::Unreachable(unreadable.problem))?;
    if !found.finalizers().iter().any(|name| name == FINALIZER) {
        router.set_finalizer(&wish.group, true).await.map_err(|error| Trouble::from(&error))?;
    }
    Ok(Presence::Exists)
}

async fn ask(
    store: &Store,
    session: SessionId,
    wishes: &[&Wish],
    terms: &[(bool, Option<String>)],
) -> Vec<Result<Claimed, Trouble>> {
    if wishes.is_empty() {
        return Vec::new();
    }
    let claims: Vec<Claim> = wishes
        .iter()
        .zip(terms)
        .map(|(wish, (may_create, supersedes))| Claim {
            key: wish.key.clone(),
            group: wish.tag.clone(),
            may_create: *may_create,
            supersedes: supersedes.clone(),
        })
        .collect();
    match store.claim(session, &claims).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) => claims.iter().map(|_| Err(Trouble::Lock(error.to_string()))).collect(),
    }
}
