//! The calls that claim groups for this replica's session.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::{Resource as _, ResourceExt as _};

use super::{
    object::GroupName,
    record::{Record, same_place},
    trouble::Trouble,
};
use crate::{api::FINALIZER, routing::Router};
use leadergroup_lock::{Changed, Claim, Claimed, SessionId, Store, Token, Tombstone};

/// The most groups in one claim.
pub(super) const LARGEST_CLAIM: usize = 1_000;
/// Quorum reads at a time before rows are created.
const PARALLEL_READS: usize = 16;

/// The answer to a claim.
#[derive(Debug)]
pub(super) enum Answer {
    /// The answer of the lock.
    Lock(Box<Claimed>),
    /// The group is being deleted, and the lock has no row of it any more.
    Buried,
}

/// What a quorum read says about a group.
enum Presence {
    /// It exists, with our finalizer on it.
    Exists,
    /// It is being deleted, and its status declares this token.
    Deleting(i64),
    /// It is gone.
    Gone,
}

/// The answer to the claim of one group: its name and UID, and what came of the claim.
pub(super) type Answered = (GroupName, Arc<str>, Result<Answer, Trouble>);

/// Claims these groups. A row is only created, or taken over from an earlier group of the same name, after a quorum read
/// has found the group: a cache may show a group that was deleted long ago. For a group that is being deleted without a
/// row, a tombstone is created.
pub(super) async fn claim(
    store: &Store,
    router: &Router,
    session: SessionId,
    groups: Vec<Arc<Record>>,
) -> Vec<Answered> {
    let all: Vec<&Record> = groups.iter().map(|group| &**group).collect();
    let mut answers = ask(store, session, &all, &vec![(false, None); all.len()]).await;
    let unsettled: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter(|(index, answer)| match answer {
            Ok(Claimed::Missing | Claimed::Tombstone { .. }) => true,
            Ok(Claimed::Foreign { group }) => {
                same_place(group, &groups[*index].tag) || groups[*index].is_deleting()
            }
            _ => false,
        })
        .map(|(index, _)| index)
        .collect();
    let reads: Vec<_> = unsettled.iter().map(|index| confirm(router, &groups[*index])).collect();
    let presence: Vec<_> = stream::iter(reads).buffered(PARALLEL_READS).collect().await;
    let (mut confirmed, mut buried) = (Vec::new(), Vec::new());
    for (index, presence) in unsettled.into_iter().zip(presence) {
        match (presence, &answers[index]) {
            (Ok(Presence::Exists), Ok(Claimed::Foreign { group }))
                if !same_place(group, &groups[index].tag) => {}
            (Ok(Presence::Exists), _) => confirmed.push(index),
            (Ok(Presence::Deleting(floor)), Ok(Claimed::Missing)) => {
                match bury(store, session, &groups[index], floor).await {
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
    let chosen: Vec<&Record> = confirmed.iter().map(|index| all[*index]).collect();
    let second = ask(store, session, &chosen, &again).await;
    for (index, answer) in confirmed.into_iter().zip(second) {
        answers[index] = answer;
    }
    let mut answers: Vec<_> =
        answers.into_iter().map(|answer| answer.map(|claimed| Answer::Lock(Box::new(claimed)))).collect();
    for index in buried {
        answers[index] = Ok(Answer::Buried);
    }
    let named = groups.iter().map(|group| (group.name.clone(), group.uid.clone()));
    named.zip(answers).map(|((name, uid), answer)| (name, uid, answer)).collect()
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
    let found = found.0.map_err(|unreadable| Trouble::Unreachable(unreadable.problem))?;
    if !found.finalizers().iter().any(|name| name == FINALIZER) {
        router.set_finalizer(&group.reference, true).await.map_err(|error| Trouble::from(&error))?;
    }
    Ok(Presence::Exists)
}

async fn ask(
    store: &Store,
    session: SessionId,
    groups: &[&Record],
    terms: &[(bool, Option<String>)],
) -> Vec<Result<Claimed, Trouble>> {
    if groups.is_empty() {
        return Vec::new();
    }
    let claims: Vec<Claim> = groups
        .iter()
        .zip(terms)
        .map(|(group, (may_create, supersedes))| Claim {
            key: group.key.clone(),
            group: group.tag.clone(),
            may_create: *may_create,
            supersedes: supersedes.clone(),
        })
        .collect();
    match store.claim(session, &claims).await {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) => claims.iter().map(|_| Err(Trouble::Lock(error.to_string()))).collect(),
    }
}
