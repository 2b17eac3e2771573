//! The calls that claim groups for this replica's session.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt as _, stream};
use kube::Resource as _;

use super::{
    object::GroupName,
    record::{Record, same_place},
    trouble::Trouble,
};
use crate::{api::Sighting, routing::Router};
use leadergroup_lock::{Changed, Claim, Claimed, SessionId, Store, Token, Tombstone};

/// The most groups in one claim.
pub(super) const LARGEST_CLAIM: usize = 1_000;
/// The most of them that are new. Each is read first, and none of the claim is answered before all were read.
pub(super) const MOST_NEW: usize = 64;
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

/// Claims these groups. A row is only created, or taken over from an earlier group of the same name, after a quorum
/// read has found the group: a cache may show a group that was deleted long ago. For a group that is being deleted
/// without a row, a tombstone is created.
pub(super) async fn claim(
    store: &Store,
    router: &Router,
    session: SessionId,
    groups: Vec<Arc<Record>>,
) -> Vec<Answered> {
    let all: Vec<&Record> = groups.iter().map(|group| &**group).collect();
    let mut answers = ask(store, session, &all, &vec![(false, None); all.len()]).await;
    let asked = answers.iter().zip(&groups).enumerate();
    let unsettled: Vec<usize> =
        asked.filter(|(_, (answer, group))| is_unsettled(answer, group)).map(|(index, _)| index).collect();
    let reads: Vec<_> = unsettled.iter().map(|index| confirm(router, &groups[*index])).collect();
    let presence: Vec<_> = stream::iter(reads).buffered(PARALLEL_READS).collect().await;
    let (mut confirmed, mut buried) = (Vec::new(), Vec::new());
    let mut objects = HashMap::new();
    for (index, presence) in unsettled.into_iter().zip(presence) {
        match (presence, &answers[index]) {
            (Ok(Presence::Exists(_)), Ok(Claimed::Foreign { group }))
                if !same_place(group, &groups[index].tag) => {}
            (Ok(Presence::Exists(object)), _) => {
                confirmed.push(index);
                objects.insert(index, object);
            }
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
        answers[index] = match answer {
            // The quorum read found the group.
            Ok(Claimed::Tombstone { .. }) => Err(Trouble::Lock(format!(
                "the lock's row says that \"{}\" was deleted, and it exists, perhaps because etcd was restored: delete it, \
                 and create it again",
                groups[index].name
            ))),
            answer => answer,
        };
    }
    let mut answers: Vec<_> =
        answers.into_iter().map(|answer| answer.map(|claimed| Answer::Lock(Box::new(claimed)))).collect();
    for index in buried {
        answers[index] = Ok(Answer::Buried);
    }
    let answered = |(index, (group, answer)): (usize, (&Arc<Record>, _))| Answered {
        name: group.name.clone(),
        uid: group.uid.clone(),
        answer,
        object: objects.remove(&index),
    };
    groups.iter().zip(answers).enumerate().map(answered).collect()
}

/// Whether the claim depends on whether the group still exists.
fn is_unsettled(answer: &Result<Claimed, Trouble>, group: &Record) -> bool {
    match answer {
        Ok(Claimed::Missing | Claimed::Tombstone { .. }) => true,
        Ok(Claimed::Foreign { group: other }) => same_place(other, &group.tag) || group.is_deleting(),
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
