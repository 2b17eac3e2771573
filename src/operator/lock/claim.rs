//! The calls that claim groups for this replica's session.

use std::sync::Arc;

use kube::Resource as _;

use super::keys::KeyRule;
use crate::{
    api::Sighting,
    operator::{
        object::{
            GroupName,
            record::{Record, same_place},
        },
        trouble::Trouble,
    },
    ownership::Answer,
    routing::Router,
};
use leadergroup_lock::{
    Changed, SessionId, Store, Token,
    controller::{Claim, Claimed, Tombstone},
};

/// The most keys in one claim.
pub(in crate::operator) const LARGEST_CLAIM: usize = 1_000;

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
pub(in crate::operator) struct Answered {
    pub(in crate::operator) name: GroupName,
    pub(in crate::operator) uid: Arc<str>,
    pub(in crate::operator) answer: Result<Answer, Trouble>,
    /// The group as a quorum read returned it, if there was one.
    pub(in crate::operator) object: Option<Box<Sighting>>,
}

impl Answered {
    fn new(group: &Record, answer: Result<Answer, Trouble>) -> Self {
        Self { name: group.name.clone(), uid: group.uid.clone(), answer, object: None }
    }
}

/// Claims these groups, which are listed by key. Rows are neither created nor taken over from earlier groups.
///
/// One statement asks for one group of each key. The answer also says whether the others of the key can have the row,
/// so their number makes no difference to the database. If it belongs to one of them, a second statement claims it.
pub(in crate::operator) async fn claim(
    store: &Store,
    keys: &KeyRule,
    session: SessionId,
    groups: &[Vec<Arc<Record>>],
) -> Vec<Answered> {
    let asked: Vec<&Record> = groups.iter().filter_map(|of_key| of_key.first()).map(AsRef::as_ref).collect();
    let answers = match ask(store, session, &asked).await {
        Ok(answers) => answers,
        Err(trouble) => {
            let all = groups.iter().flatten();
            return all.map(|group| Answered::new(group, Err(trouble.clone()))).collect();
        }
    };
    let (mut answered, owners) = spread(keys, groups, answers);
    if !owners.is_empty() {
        answered.extend(match ask(store, session, &owners).await {
            Ok(answers) => owners
                .iter()
                .zip(answers)
                .map(|(group, claimed)| Answered::new(group, Ok(first_answer(keys, group, claimed))))
                .collect::<Vec<_>>(),
            Err(trouble) => owners.iter().map(|group| Answered::new(group, Err(trouble.clone()))).collect(),
        });
    }
    answered
}

async fn ask(store: &Store, session: SessionId, groups: &[&Record]) -> Result<Vec<Claimed>, Trouble> {
    let claims: Vec<Claim> = groups.iter().map(|group| claim_of(group, false, None)).collect();
    store.claim(session, &claims).await.map_err(|error| Trouble::Lock(error.to_string()))
}

/// What the answers for the first group of each key mean for all of them; and the groups that have to be asked for
/// themselves, because the row is theirs.
fn spread<'a>(
    keys: &KeyRule,
    groups: &'a [Vec<Arc<Record>>],
    answers: Vec<Claimed>,
) -> (Vec<Answered>, Vec<&'a Record>) {
    let (mut answered, mut owners) = (Vec::new(), Vec::new());
    let of_keys = groups.iter().filter_map(|of_key| of_key.split_first());
    for ((asked, others), claimed) in of_keys.zip(answers) {
        let of_others = match &claimed {
            Claimed::Ours(_) | Claimed::By { .. } => Claimed::Foreign { group: asked.tag.clone() },
            same => same.clone(),
        };
        for other in others {
            if matches!(&of_others, Claimed::Foreign { group } if *group == other.tag) {
                owners.push(other.as_ref());
            } else {
                answered.push(Answered::new(other, Ok(first_answer(keys, other, of_others.clone()))));
            }
        }
        answered.push(Answered::new(asked, Ok(first_answer(keys, asked, claimed))));
    }
    (answered, owners)
}

/// What the answer of the lock means. A group that may not take its key gets no row, nor that of another group. It
/// keeps one that is its own already.
fn first_answer(keys: &KeyRule, group: &Record, claimed: Claimed) -> Answer {
    let has_no_row = matches!(claimed, Claimed::Missing | Claimed::Tombstone | Claimed::Foreign { .. });
    match keys.refusal(group).filter(|_| has_no_row) {
        Some(_) if group.is_deleting() => Answer::Buried,
        Some(refusal) => Answer::Refused(refusal.to_string().into()),
        None if is_provisional(&claimed, group) => Answer::Provisional(Box::new(claimed)),
        None => Answer::Lock(Box::new(claimed)),
    }
}

/// Resolves the claim of a group without a row of its own. A row is only created, or taken over from an earlier group
/// of the same name, after a quorum read has found the group: a cache may show a group that was deleted long ago. For
/// a group that is being deleted without a row, a tombstone is created.
pub(in crate::operator) async fn resolve(
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
        Some(Claimed::Tombstone) => Err(Trouble::Lock(format!(
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
fn is_provisional(claimed: &Claimed, group: &Record) -> bool {
    match claimed {
        Claimed::Missing | Claimed::Tombstone => true,
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{api::FINALIZER, operator::executor::fake_api::FakeApi};

    const GROUP: &str = "/apis/leadergroup.dev/v1alpha1/namespaces/shop/leadergroups/web";

    fn object(deleting: bool) -> Value {
        json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "5", "finalizers": [FINALIZER],
                "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
        })
    }

    fn record(deleting: bool) -> Record {
        let object = serde_json::from_value(object(deleting)).expect("a group");
        let name = GroupName { namespace: "shop".into(), name: "web".into() };
        Record::first(object, name, "c1").expect("it has a name")
    }

    fn foreign(tag: &str) -> Claimed {
        Claimed::Foreign { group: tag.to_owned() }
    }

    /// Resolves a claim while the API server has this group, and there is no database: a row cannot be changed.
    async fn resolved(found: Option<Value>, claimed: Claimed) -> Result<Answer, Trouble> {
        let api = FakeApi::with(found.map(|object| (GROUP, object)).into_iter().collect());
        let (store, router) = (&api.context.store, &api.context.router);
        resolve(store, router, SessionId::new(), &record(false), Box::new(claimed)).await.answer
    }

    #[test]
    fn only_an_answer_that_depends_on_whether_the_group_exists_is_provisional() {
        let by = Claimed::By { session: SessionId::new() };
        for (claimed, present, deleting) in [
            (Claimed::Missing, true, true),
            (Claimed::Tombstone, true, true),
            (foreign("c1/shop/web/u0"), true, true),
            (foreign("c1/shop/db/u1"), false, true),
            (foreign("c2/shop/web/u0"), false, true),
            (by, false, false),
            (Claimed::Busy, false, false),
        ] {
            let provisional = [false, true].map(|deleting| is_provisional(&claimed, &record(deleting)));
            assert_eq!(provisional, [present, deleting], "{claimed:?}");
        }
    }

    /// Groups with the key `k`, with these names.
    fn of_one_key(names: &[&str]) -> Vec<Arc<Record>> {
        let group = |name: &&str| {
            let mut object = object(false);
            (object["metadata"]["name"], object["metadata"]["uid"]) =
                ((*name).into(), format!("u-{name}").into());
            object["spec"]["lock"] = json!({ "key": "k" });
            let object = serde_json::from_value(object).expect("a group");
            let name = GroupName { namespace: "shop".into(), name: (*name).into() };
            Arc::new(Record::first(object, name, "c1").expect("it has a name"))
        };
        names.iter().map(group).collect()
    }

    #[test]
    fn the_answer_for_one_group_of_a_key_holds_for_the_others_but_for_the_one_that_has_the_row() {
        let keys = KeyRule { cluster: "c1".to_owned(), namespaced: false };
        let groups = [of_one_key(&["a", "b", "c"])];
        let spread = |claimed| {
            let (answered, owners) = spread(&keys, &groups, vec![claimed]);
            let of_lock = |answered: Answered| match answered.answer {
                Ok(Answer::Lock(claimed)) => (answered.name.name.to_string(), *claimed),
                other => panic!("{other:?}"),
            };
            let mut answered: Vec<_> = answered.into_iter().map(of_lock).collect();
            answered.sort_by(|(one, _), (other, _)| one.cmp(other));
            (answered, owners.iter().map(|group| group.name.name.to_string()).collect::<Vec<_>>())
        };
        let to = |claimed: [Claimed; 3]| {
            ["a", "b", "c"].map(str::to_owned).into_iter().zip(claimed).collect::<Vec<_>>()
        };
        let none = Vec::<String>::new();
        let (by, of_a) = (Claimed::By { session: SessionId::new() }, foreign("c1/shop/a/u-a"));
        assert_eq!(spread(by.clone()), (to([by, of_a.clone(), of_a]), none.clone()));
        for same in [foreign("c2/shop/d/u-d"), Claimed::Busy, Claimed::ProtocolNewer { protocol: 9 }] {
            assert_eq!(spread(same.clone()), (to([same.clone(), same.clone(), same]), none.clone()));
        }
        let of_b = foreign("c1/shop/b/u-b");
        let told = ["a", "c"].map(|name| (name.to_owned(), of_b.clone())).to_vec();
        assert_eq!(spread(of_b.clone()), (told, vec!["b".to_owned()]));
    }

    #[test]
    fn each_group_of_a_key_without_a_row_is_resolved_by_itself() {
        let keys = KeyRule { cluster: "c1".to_owned(), namespaced: false };
        let groups = [of_one_key(&["a", "b"]), of_one_key(&["c"])];
        let (answered, owners) = spread(&keys, &groups, vec![Claimed::Missing, Claimed::Busy]);
        let provisional = answered.iter().filter(|of| matches!(of.answer, Ok(Answer::Provisional(_))));
        assert_eq!((provisional.count(), answered.len(), owners.len()), (2, 3, 0));
    }

    /// The watch's cache may show a group that was deleted long ago.
    #[tokio::test]
    async fn no_row_is_created_for_a_group_that_a_quorum_read_does_not_find() {
        let mut successor = object(false);
        successor["metadata"]["uid"] = "u2".into();
        for found in [None, Some(successor)] {
            for claimed in [Claimed::Missing, Claimed::Tombstone, foreign("c1/shop/web/u0")] {
                let answer = resolved(found.clone(), claimed.clone()).await;
                assert!(matches!(&answer, Ok(Answer::Lock(same)) if **same == claimed), "{answer:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_row_of_another_place_is_not_taken_over() {
        for other in ["c2/shop/web/u0", "c1/shop/db/u0", "reports"] {
            let answer = resolved(Some(object(false)), foreign(other)).await;
            assert!(matches!(&answer, Ok(Answer::Lock(same)) if **same == foreign(other)), "{answer:?}");
        }
        // One of the same place is: its group is certainly gone.
        let answer = resolved(Some(object(false)), foreign("c1/shop/web/u0")).await;
        assert!(matches!(&answer, Err(Trouble::Lock(_))), "there is no database: {answer:?}");
    }

    #[tokio::test]
    async fn a_group_that_is_being_deleted_gets_no_row_but_a_tombstone() {
        for claimed in [Claimed::Tombstone, foreign("c2/shop/web/u0")] {
            let answer = resolved(Some(object(true)), claimed).await;
            assert!(matches!(answer, Ok(Answer::Buried)), "{answer:?}");
        }
        let answer = resolved(Some(object(true)), Claimed::Missing).await;
        assert!(matches!(answer, Err(Trouble::Lock(_))), "there is no database: {answer:?}");
    }

    #[tokio::test]
    async fn a_group_that_cannot_be_decoded_or_read_is_not_claimed() {
        let mut wrong = object(false);
        wrong["spec"]["deletionPolicy"] = "Explode".into();
        for found in [wrong, json!(500)] {
            let answer = resolved(Some(found.clone()), Claimed::Missing).await;
            assert!(matches!(answer, Err(Trouble::Unreachable(_))), "{found}: {answer:?}");
        }
    }
}
