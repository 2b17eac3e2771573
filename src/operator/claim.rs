//! The calls that claim groups for this replica's session.

use std::sync::Arc;

use kube::Resource as _;

use super::{
    keys::{KeyRefusal, KeyRule},
    object::GroupName,
    record::{Record, same_place},
    trouble::Trouble,
};
use crate::{api::Sighting, routing::Router};
use leadergroup_lock::{Changed, Claim, Claimed, SessionId, Store, Token, Tombstone};

/// The most groups in one claim.
pub(super) const LARGEST_CLAIM: usize = 1_000;

/// The answer to a claim.
#[derive(Debug)]
pub(super) enum Answer {
    /// The answer of the lock.
    Lock(Box<Claimed>),
    /// The answer of the lock, which is final only once it is known whether the group still exists: see [`settle`].
    Unsettled(Box<Claimed>),
    /// The group is being deleted, and the lock has no row of it any more.
    Buried,
    /// The lock has no row of the group, which may not take its key.
    Refused(KeyRefusal),
}

/// What a quorum read says about a group.
enum Presence {
    /// It exists, with our finalizer on it.
    Exists(Box<Sighting>),
    /// It is being deleted, and its status declares this token.
    Deleting(i64),
    /// It is gone.
    Gone,
}

/// What came of the claim of one group.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) name: GroupName,
    pub(super) uid: Arc<str>,
    pub(super) answer: Result<Answer, Trouble>,
    /// The group as a quorum read returned it, if there was one.
    pub(super) object: Option<Box<Sighting>>,
}

impl Answered {
    fn new(group: &Record, answer: Result<Answer, Trouble>) -> Self {
        Self { name: group.name.clone(), uid: group.uid.clone(), answer, object: None }
    }
}

/// Claims these groups, with one statement for all of them. Rows are neither created nor taken over from earlier
/// groups.
pub(super) async fn claim(
    store: &Store,
    keys: &KeyRule,
    session: SessionId,
    groups: &[Arc<Record>],
) -> Vec<Answered> {
    let claims: Vec<Claim> = groups.iter().map(|group| claim_of(group, false, None)).collect();
    match store.claim(session, &claims).await {
        Ok(answers) => groups
            .iter()
            .zip(answers)
            .map(|(group, claimed)| Answered::new(group, Ok(first_answer(keys, group, claimed))))
            .collect(),
        Err(error) => {
            let trouble = Trouble::Lock(error.to_string());
            groups.iter().map(|group| Answered::new(group, Err(trouble.clone()))).collect()
        }
    }
}

/// What the answer of the lock means. A group that may not take its key gets no row, nor that of another group. It
/// keeps one that is its own already.
fn first_answer(keys: &KeyRule, group: &Record, claimed: Claimed) -> Answer {
    let has_no_row =
        matches!(claimed, Claimed::Missing | Claimed::Tombstone { .. } | Claimed::Foreign { .. });
    match keys.refusal(group).filter(|_| has_no_row) {
        Some(_) if group.is_deleting() => Answer::Buried,
        Some(refusal) => Answer::Refused(refusal),
        None if is_unsettled(&claimed, group) => Answer::Unsettled(Box::new(claimed)),
        None => Answer::Lock(Box::new(claimed)),
    }
}

/// Settles the claim of a group without a row of its own. A row is only created, or taken over from an earlier group of
/// the same name, after a quorum read has found the group: a cache may show a group that was deleted long ago. For a
/// group that is being deleted without a row, a tombstone is created.
pub(super) async fn settle(
    store: &Store,
    router: &Router,
    session: SessionId,
    group: &Record,
    claimed: Box<Claimed>,
) -> Answered {
    let mut answered = Answered::new(group, Ok(Answer::Buried));
    let missing = *claimed == Claimed::Missing;
    answered.answer = match confirm(router, group).await {
        Err(trouble) => Err(trouble),
        Ok(Presence::Gone) => Ok(Answer::Lock(claimed)),
        Ok(Presence::Deleting(floor)) if missing => {
            bury(store, session, group, floor).await.map(|()| Answer::Buried)
        }
        Ok(Presence::Deleting(_)) => Ok(Answer::Buried),
        Ok(Presence::Exists(object)) => {
            let predecessor = match *claimed {
                Claimed::Foreign { group } => Some(group),
                _ => None,
            };
            if let Some(other) = predecessor.as_ref().filter(|other| !same_place(other, &group.tag)) {
                Ok(Answer::Lock(Box::new(Claimed::Foreign { group: other.clone() })))
            } else {
                answered.object = Some(object);
                create(store, session, group, predecessor).await
            }
        }
    };
    answered
}

/// Claims a group that a quorum read has found, and creates its row.
async fn create(
    store: &Store,
    session: SessionId,
    group: &Record,
    predecessor: Option<String>,
) -> Result<Answer, Trouble> {
    let answers = store.claim(session, &[claim_of(group, true, predecessor)]).await;
    let answers = answers.map_err(|error| Trouble::Lock(error.to_string()))?;
    match answers.into_iter().next() {
        Some(Claimed::Tombstone { .. }) => Err(Trouble::Lock(format!(
            "the lock's row says that \"{}\" was deleted, and it exists, perhaps because etcd was restored: delete it, \
             and create it again",
            group.name
        ))),
        Some(claimed) => Ok(Answer::Lock(Box::new(claimed))),
        // Unreachable: there is one answer to each claim. Asking again is always safe.
        None => Ok(Answer::Lock(Box::new(Claimed::Busy))),
    }
}

fn claim_of(group: &Record, may_create: bool, supersedes: Option<String>) -> Claim {
    Claim { key: group.key.clone(), group: group.tag.clone(), may_create, supersedes }
}

/// Whether the claim depends on whether the group still exists.
fn is_unsettled(claimed: &Claimed, group: &Record) -> bool {
    match claimed {
        Claimed::Missing | Claimed::Tombstone { .. } => true,
        Claimed::Foreign { group: other } => same_place(other, &group.tag) || group.is_deleting(),
        _ => false,
    }
}

/// Creates a tombstone in place of a row that was lost, so that the tokens of the key's next user are larger than the
/// group's.
async fn bury(store: &Store, session: SessionId, group: &Record, floor: i64) -> Result<(), Trouble> {
    let tombstone = Tombstone { key: group.key.clone(), group: group.tag.clone(), floor: Token::new(floor) };
    match store.tombstone(session, &[tombstone]).await {
        Ok(answers) if answers.contains(&Changed::Done) => Ok(()),
        Ok(_) => Err(Trouble::Lock("the lock's row is busy; trying again".to_owned())),
        Err(error) => Err(Trouble::Lock(error.to_string())),
    }
}

/// Reads whether the group exists, by a quorum read.
async fn confirm(router: &Router, group: &Record) -> Result<Presence, Trouble> {
    let found = router.sight(&group.reference).await.map_err(|error| Trouble::from(&error))?;
    let Some(found) = found else { return Ok(Presence::Gone) };
    if found.meta().deletion_timestamp.is_some() {
        return Ok(Presence::Deleting(found.declaration().token));
    }
    // A replica that cannot decode it leaves it to one that can.
    if let Err(unreadable) = found.0 {
        return Err(Trouble::Unreachable(unreadable.problem));
    }
    let found = router.set_finalizer_of(&group.reference, found, true).await;
    let found = found.map_err(|error| Trouble::from(&error))?;
    Ok(found.map_or(Presence::Gone, |found| Presence::Exists(Box::new(found))))
}
