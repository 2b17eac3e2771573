//! Granting, confirming, vacating: what is done, what is refused, and that repeating does no harm.

#![allow(clippy::unwrap_used, missing_docs)]

mod postgres;

use std::time::Duration;

use leadergroup::lock::{
    Changed, Claim, Claimed, Grant, GrantId, Granted, Key, LockRow, Owner, Refusal, SessionId, Store, Token,
    Vacate,
};
use postgres::migrated;

const TTL: Duration = Duration::from_secs(5);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn owner(name: &str) -> Owner {
    Owner { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() }
}

fn grant(key: &Key, expected: i64, to: &str) -> Grant {
    Grant {
        key: key.clone(),
        expected: Token::new(expected),
        floor: Token::ZERO,
        owner: owner(to),
        grant: GrantId::new(),
        reason: "test".into(),
    }
}

async fn claimed(store: &Store, own: SessionId, key: &Key) -> LockRow {
    let claim = Claim { key: key.clone(), group: "group-1".into(), may_create: true, supersedes: None };
    match store.claim(own, &[claim]).await.unwrap().remove(0) {
        Claimed::Ours(row) => row,
        other => panic!("{other:?}"),
    }
}

async fn row(store: &Store, key: &Key) -> LockRow {
    store.read(std::slice::from_ref(key)).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_term_from_claim_to_vacancy() {
    let (_database, store) = migrated().await;
    let own = store.register("replica-1", TTL).await.unwrap();
    let key = key("a");
    let fresh = claimed(&store, own, &key).await;
    assert_eq!((fresh.token, fresh.owner.clone(), fresh.session), (Token::ZERO, None, Some(own)));

    let first = grant(&key, 0, "p0");
    assert_eq!(
        store.grant(own, &[first.clone()]).await.unwrap(),
        [Granted::Granted { token: Token::new(1) }]
    );
    let held = row(&store, &key).await;
    assert_eq!(held.owner, Some(owner("p0")));
    assert_eq!((held.grant, held.confirmed, held.pending.len()), (Some(first.grant), false, 1));

    assert_eq!(store.confirm(own, &[(key.clone(), Token::new(1))]).await.unwrap(), [Changed::Done]);
    assert!(row(&store, &key).await.confirmed);

    let second = Grant { floor: Token::new(40), ..grant(&key, 1, "p1") };
    assert_eq!(store.grant(own, &[second]).await.unwrap(), [Granted::Granted { token: Token::new(41) }]);
    let held = row(&store, &key).await;
    let pending: Vec<_> = held.pending.iter().map(|term| (term.token.get(), term.confirmed)).collect();
    assert_eq!(pending, [(1, true), (41, false)]);

    let vacate =
        Vacate { key: key.clone(), token: Token::new(41), grant: GrantId::new(), reason: "gone".into() };
    assert_eq!(store.vacate(own, &[vacate]).await.unwrap(), [Changed::Done]);
    let vacant = row(&store, &key).await;
    assert_eq!((vacant.owner, vacant.token), (None, Token::new(41)));

    assert_eq!(store.beat(own).await.unwrap().sessions.len(), 1);
    assert_eq!(store.close(own).await.unwrap(), 1);
    assert!(!store.beat(own).await.unwrap().alive);
    assert_eq!(
        store.grant(own, &[grant(&key, 41, "p2")]).await.unwrap(),
        [Granted::Refused(Refusal::SessionDead)]
    );
}
