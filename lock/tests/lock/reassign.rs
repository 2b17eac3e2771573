//! Reassignment: a key passes to another group by hand, its token never goes back, and a living owner keeps it unless
//! it is taken by force.

use std::time::Duration;

use leadergroup_lock::{
    Key, Refusal, SessionId, Store, Token,
    controller::{Claim, Claimed, Grant, Granted, Reassigned, Reassignment},
};

use crate::cast::{
    GROUP, claim, claim_one, dead_session, grant, grant_one, granted, key, row, session, take, tombstone,
};
use crate::holders::{acquire, wish};
use crate::postgres::{Database, migrated};

const OTHER: &str = "group-2";

fn request(key: &Key, expected: Option<i64>, floor: i64) -> Reassignment {
    Reassignment {
        key: key.clone(),
        group: OTHER.to_owned(),
        expected: expected.map(Token::new),
        floor: Token::new(floor),
        reason: "the cluster is gone (by me)".to_owned(),
        force: false,
    }
}

fn done(token: i64) -> Reassigned {
    Reassigned::Done { token: Token::new(token) }
}

fn of_other(key: &Key) -> Claim {
    Claim { group: OTHER.to_owned(), may_create: false, ..claim(key) }
}

/// A key that a pod of the first group holds with token 1.
async fn held() -> (Database, Store, SessionId, Key) {
    let (database, store) = migrated().await;
    let (own, key) = (session(&store).await, key("orders"));
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    (database, store, own, key)
}

fn to_other(key: &Key, expected: i64) -> Grant {
    Grant { group: OTHER.to_owned(), ..grant(key, expected, "q0") }
}

#[tokio::test]
async fn a_key_whose_owner_is_dead_passes_to_the_other_group_and_its_tokens_go_on() {
    let (_database, store, old, key) = held().await;
    store.mark_dead(&[(old, 1)], None).await.unwrap();
    assert_eq!(store.reassign(&request(&key, Some(1), 0)).await.unwrap(), done(1));
    let now = row(&store, &key).await;
    assert_eq!((now.group.as_str(), now.holder, now.session), (OTHER, None, None));
    let history = store.history(&key, 10).await.unwrap();
    assert_eq!(history[0].ended.as_ref().unwrap().1, "the cluster is gone (by me)");

    // A repetition changes nothing.
    assert_eq!(store.reassign(&request(&key, Some(1), 0)).await.unwrap(), done(1));
    // The old group comes back.
    let back = session(&store).await;
    let foreign = Claimed::Foreign { group: OTHER.to_owned() };
    assert_eq!(claim_one(&store, back, claim(&key)).await, foreign);
    let new = session(&store).await;
    assert!(matches!(claim_one(&store, new, of_other(&key)).await, Claimed::Ours(_)));
    assert_eq!(grant_one(&store, new, to_other(&key, 1)).await, granted(2));
}

#[tokio::test]
async fn a_living_owner_keeps_its_key_unless_it_is_taken_by_force() {
    let (_database, store, old, key) = held().await;
    let refused = Reassigned::Refused(Refusal::Unclaimed { session: Some(old) });
    assert_eq!(store.reassign(&request(&key, Some(1), 9)).await.unwrap(), refused);
    assert_eq!(row(&store, &key).await.group, GROUP);

    let revoked = store.beat(old, &[]).await.unwrap().revoked;
    let forced = Reassignment { force: true, ..request(&key, Some(1), 9) };
    assert_eq!(store.reassign(&forced).await.unwrap(), done(9));
    assert_eq!(store.beat(old, &[]).await.unwrap().revoked, revoked + 1, "it is told");
    // It can grant nothing more, whatever token it expects.
    for expected in [1, 9] {
        let late = grant_one(&store, old, grant(&key, expected, "p1")).await;
        assert!(matches!(late, Granted::Refused(_)), "{late:?}");
    }
}

#[tokio::test]
async fn a_floor_raises_tokens_and_never_lowers_them() {
    let (_database, store, old, key) = held().await;
    store.mark_dead(&[(old, 1)], None).await.unwrap();
    assert_eq!(store.reassign(&request(&key, Some(1), 57)).await.unwrap(), done(57));
    // Nobody holds it: its owner keeps it, and finds the larger token.
    let new = session(&store).await;
    assert!(matches!(claim_one(&store, new, of_other(&key)).await, Claimed::Ours(_)));
    assert_eq!(store.reassign(&request(&key, Some(57), 60)).await.unwrap(), done(60));
    assert_eq!(row(&store, &key).await.session, Some(new));
    let outdated = grant_one(&store, new, to_other(&key, 57)).await;
    assert!(matches!(outdated, Granted::Refused(Refusal::TokenChanged)), "{outdated:?}");
    assert_eq!(grant_one(&store, new, to_other(&key, 60)).await, granted(61));
    let lower = Reassignment { force: true, ..request(&key, Some(61), 5) };
    assert_eq!(store.reassign(&lower).await.unwrap(), done(61));
}

#[tokio::test]
async fn a_row_that_is_not_there_is_made() {
    let (_database, store) = migrated().await;
    let key = key("orders");
    assert_eq!(
        store.reassign(&request(&key, Some(3), 0)).await.unwrap(),
        Reassigned::Refused(Refusal::Missing)
    );
    assert_eq!(store.reassign(&request(&key, None, 41)).await.unwrap(), done(41));
    let new = session(&store).await;
    assert!(matches!(claim_one(&store, new, of_other(&key)).await, Claimed::Ours(_)));
    assert_eq!(grant_one(&store, new, to_other(&key, 41)).await, granted(42));
}

#[tokio::test]
async fn what_was_changed_in_between_and_what_is_not_a_groups_is_left_alone() {
    let (database, store, old, key) = held().await;
    store.mark_dead(&[(old, 1)], None).await.unwrap();
    for expected in [None, Some(0), Some(2)] {
        assert_eq!(
            store.reassign(&request(&key, expected, 9)).await.unwrap(),
            Reassigned::Refused(Refusal::TokenChanged),
            "{expected:?}"
        );
    }
    database.sql("update leadergroup.lock set protocol = 2").await;
    assert_eq!(
        store.reassign(&request(&key, Some(1), 9)).await.unwrap(),
        Reassigned::Refused(Refusal::ProtocolNewer { protocol: 2 })
    );
    let program = session(&store).await;
    let report = crate::cast::key("a");
    acquire(&store, program, &wish("p")).await;
    store.mark_dead(&[(program, 1)], None).await.unwrap();
    let refused = store.reassign(&request(&report, Some(1), 9)).await.unwrap();
    assert!(matches!(refused, Reassigned::Refused(Refusal::Foreign { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_deleted_groups_key_passes_on() {
    let (_database, store, old, key) = held().await;
    store.tombstone(old, &[tombstone(&key, GROUP)]).await.unwrap();
    assert_eq!(store.reassign(&request(&key, Some(1), 0)).await.unwrap(), done(1));
    let new = session(&store).await;
    assert!(matches!(claim_one(&store, new, of_other(&key)).await, Claimed::Ours(_)));
}

#[tokio::test]
async fn a_session_is_dead_when_its_heartbeat_does_not_change_for_its_ttl() {
    let (_database, store) = migrated().await;
    let ttl = Duration::from_secs(1);
    let (silent, _) = store.register("silent", ttl, None, None).await.unwrap();
    assert!(store.observe_death("observer", silent).await.unwrap());
    assert!(!store.beat(silent, &[]).await.unwrap().alive, "it is marked");
    assert!(store.observe_death("observer", dead_session(&store).await).await.unwrap());

    let (alive, _) = store.register("alive", ttl, None, None).await.unwrap();
    let beats = async {
        loop {
            store.beat(alive, &[]).await.unwrap();
            tokio::time::sleep(ttl / 5).await;
        }
    };
    let observed = tokio::select! {
        () = beats => unreachable!(),
        observed = store.observe_death("observer", alive) => observed,
    };
    assert!(!observed.unwrap());
    assert!(store.beat(alive, &[]).await.unwrap().alive);
}
