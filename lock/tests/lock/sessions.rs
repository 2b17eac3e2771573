//! Sessions: heartbeats, the death mark and its conditions, the normal end, pruning.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use leadergroup_lock::{
    DatabaseConfig, LockError, SessionId, Store, Token,
    admin::{Pruned, Retention},
    controller::{Claimed, Hint, LONGEST_MESSAGE},
    protocol::{Beat, SessionSeen},
};
use sqlx::{Connection, Executor};

use crate::cast::{
    TTL, claim, claim_one, dead_session, grant, grant_one, granted, key, keys, removed_of, session, take,
};
use crate::postgres::{eventually, migrated};

fn seen(beat: &Beat, id: SessionId) -> &SessionSeen {
    beat.sessions.iter().find(|session| session.id == id).unwrap()
}

#[tokio::test]
async fn a_heartbeat_moves_the_own_counter_and_shows_others() {
    let (_database, store) = migrated().await;
    let ttl = Duration::from_millis(3_500);
    let (own, era) = store.register("replica-1", ttl, None, None).await.unwrap();
    let other = store.register("replica-2", TTL, None, None).await.unwrap().0;
    for count in 2..5 {
        let beat = store.beat(own, &[]).await.unwrap();
        assert!(beat.alive);
        assert_eq!((beat.own, beat.count, beat.revoked), (own, count, 0));
        assert_eq!((beat.era, beat.quarantine), (era, None));
        let other = SessionSeen { id: other, beat: 1, ttl: TTL, dead: false, peer: false, place: None };
        assert_eq!(beat.sessions, [other]);
    }
    let beat = store.beat(other, &[]).await.unwrap();
    let own = SessionSeen { id: own, beat: 4, ttl, dead: false, peer: false, place: None };
    assert_eq!(beat.sessions, [own], "others watch its counter");
}

#[tokio::test]
async fn a_heartbeat_of_an_unknown_session_says_so_and_nothing_else() {
    let (database, store) = migrated().await;
    let beat = store.beat(SessionId::new(), &[]).await.unwrap();
    assert!(!beat.alive);
    assert_eq!(beat.sessions, []);
    assert_eq!(database.number("select count(*) from leadergroup.session").await, 0);
}

/// After a failover, the connections of a program may lead to different servers for a while.
#[tokio::test]
async fn the_death_mark_is_bound_to_the_era_of_the_observation() {
    let (database, store) = migrated().await;
    let (own, victim) = (session(&store).await, session(&store).await);
    let observed = [(victim, 1)];
    let before = store.beat(own, &[]).await.unwrap().era;
    database.sql("update leadergroup.meta set history = 'elsewhere/00000001'").await;
    assert_eq!(store.mark_dead(&observed, Some(before)).await.unwrap(), [], "the history is another one");
    let present = store.beat(own, &[]).await.unwrap().era;
    assert_eq!(store.mark_dead(&observed, Some(before)).await.unwrap(), [], "the era is another one");
    assert_eq!(store.mark_dead(&observed, Some(present)).await.unwrap(), [victim]);
}

#[tokio::test]
async fn the_death_mark_is_bound_to_the_observed_counter() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let victim = session(&store).await;
    let observed = seen(&store.beat(own, &[]).await.unwrap(), victim).beat;
    store.beat(victim, &[]).await.unwrap();
    assert_eq!(store.mark_dead(&[(victim, observed)], None).await.unwrap(), [], "it has moved on");
    assert!(store.beat(victim, &[]).await.unwrap().alive);

    let observed = seen(&store.beat(own, &[]).await.unwrap(), victim).beat;
    let already = dead_session(&store).await;
    let unknown = SessionId::new();
    let mut dead = store.mark_dead(&[(victim, observed), (already, 77), (unknown, 1)], None).await.unwrap();
    dead.sort();
    let mut expected = [victim, already, unknown];
    expected.sort();
    assert_eq!(dead, expected, "those that were dead before, or are gone altogether, count as well");
    assert!(!store.beat(victim, &[]).await.unwrap().alive);
    assert_eq!(store.beat(own, &[]).await.unwrap().sessions, [], "dead sessions are not returned");
    let watched = store.beat(own, &[victim, already, unknown]).await.unwrap();
    let dead: BTreeSet<_> = watched.sessions.iter().map(|seen| (seen.id, seen.dead)).collect();
    assert_eq!(dead, [(victim, true), (already, true)].into(), "unless they are asked for");
}

/// A change under way delays the death mark until it is committed: it cannot take effect after the mark.
#[tokio::test]
async fn the_death_mark_passes_over_a_session_with_a_change_under_way() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let mut admin = database.admin().await;
    let mut change = admin.begin().await.unwrap();
    change
        .execute(sqlx::AssertSqlSafe(format!(
            "select from leadergroup.session where id = '{own}' for key share"
        )))
        .await
        .unwrap();
    // Its heartbeats do not wait for it.
    assert!(store.beat(own, &[]).await.unwrap().alive);
    assert_eq!(store.mark_dead(&[(own, 2)], None).await.unwrap(), [], "nor does the mark");
    assert!(store.beat(own, &[]).await.unwrap().alive);
    change.commit().await.unwrap();
    assert_eq!(store.mark_dead(&[(own, 3)], None).await.unwrap(), [own]);
}

#[tokio::test]
async fn a_change_that_hangs_delays_its_own_death_mark_only() {
    let (database, store) = migrated().await;
    let hanging = session(&store).await;
    let silent = session(&store).await;
    let mut admin = database.admin().await;
    let mut change = admin.begin().await.unwrap();
    change
        .execute(sqlx::AssertSqlSafe(format!(
            "select from leadergroup.session where id = '{hanging}' for key share"
        )))
        .await
        .unwrap();
    assert_eq!(store.mark_dead(&[(hanging, 1), (silent, 1)], None).await.unwrap(), [silent]);
    let config = DatabaseConfig { statement_timeout: Duration::from_secs(1), ..database.config() };
    let impatient = Store::new(&config).unwrap();
    assert_eq!(impatient.mark_dead(&[(hanging, 1)], None).await.unwrap(), [], "still in the middle of it");
    drop(change);
    drop(admin);
    eventually("the mark succeeds", async || {
        store.mark_dead(&[(hanging, 1)], None).await.unwrap() == [hanging]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_observers_mark_at_once() {
    let (database, store) = migrated().await;
    let mut victims = Vec::new();
    for _ in 0..20 {
        victims.push((session(&store).await, 1));
    }
    let marks = (0..8).map(|_| {
        let (store, victims) = (database.store(), victims.clone());
        tokio::spawn(async move { store.mark_dead(&victims, None).await.unwrap() })
    });
    for mark in marks.collect::<Vec<_>>() {
        mark.await.unwrap();
    }
    assert_eq!(database.number("select count(*) from leadergroup.session where dead").await, 20);
}

#[tokio::test]
async fn closing_frees_all_claims_without_a_look_at_a_single_row_of_them() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(100);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    assert_eq!(grant_one(&store, own, grant(&keys[3], 0, "p0")).await, granted(1));
    let before = database.number("select max(xmin::text::bigint) from leadergroup.lock").await;

    let mut admin = database.admin().await;
    let mut locked = admin.begin().await.unwrap();
    locked.execute("lock table leadergroup.lock in access exclusive mode").await.unwrap();
    let impatient = DatabaseConfig { statement_timeout: Duration::from_secs(5), ..database.config() };
    let impatient = Store::new(&impatient).unwrap();
    for _ in 0..2 {
        impatient.close(own).await.expect("it does not even read the table");
    }
    locked.rollback().await.unwrap();
    assert_eq!(database.number("select max(xmin::text::bigint) from leadergroup.lock").await, before);
    assert!(!store.beat(own, &[]).await.unwrap().alive);
    let next = session(&store).await;
    assert_eq!(store.unclaimed(None, 1_000).await.unwrap().len(), 100);
    let row = take(&store, next, &keys[3]).await;
    assert_eq!((row.token, row.holder.unwrap().name), (Token::new(1), "p0".to_owned()));
}

#[tokio::test]
async fn a_close_is_heard_by_those_who_listen() {
    let (database, store) = migrated().await;
    let controller = async || store.register("replica", TTL, Some("web"), None).await.unwrap().0;
    let own = controller().await;
    let other = database.store();
    let mut hints = Box::pin(other.listen());
    assert_eq!(hints.next().await, Some(Hint::Missed), "listening from now on");
    let nothing = controller().await;
    store.close(nothing).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Freed), "whether or not it claimed anything");
    store.close(nothing).await.unwrap();
    take(&store, own, &key("a")).await;
    store.close(own).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Freed));
    let lives = session(&store).await;
    take(&store, lives, &key("b")).await;
    store.unclaim(lives, &[key("b")]).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Yielded(key("b"))));
    // The connection is terminated on the server.
    database.sql("select pg_terminate_backend(pid) from pg_stat_activity where query like 'LISTEN%'").await;
    assert_eq!(hints.next().await, Some(Hint::Missed), "made again by itself");
    let again = controller().await;
    store.mark_dead(&[(again, 1)], None).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Freed));
}

#[tokio::test]
async fn what_a_session_tells_is_heard_by_its_peers_alone() {
    let (database, store) = migrated().await;
    let other = database.store();
    let [mut peers, mut strangers] = ["shop", "shop-2"].map(|peers| Box::pin(other.listen_among(peers)));
    for hints in [&mut peers, &mut strangers] {
        assert_eq!(hints.next().await, Some(Hint::Missed), "listening from now on");
    }
    let longest = "m".repeat(LONGEST_MESSAGE);
    store.tell("shop", &["one\ntwo".to_owned(), longest.clone()]).await.unwrap();
    store.tell("shop-2", &["three".to_owned()]).await.unwrap();
    assert_eq!(peers.next().await, Some(Hint::Told("one\ntwo".to_owned())));
    assert_eq!(peers.next().await, Some(Hint::Told(longest.clone())));
    assert_eq!(strangers.next().await, Some(Hint::Told("three".to_owned())));
    let nothing = store.register("replica", TTL, Some("shop"), None).await.unwrap().0;
    store.close(nothing).await.unwrap();
    assert_eq!(peers.next().await, Some(Hint::Freed), "the other hints arrive as well");
    let refused = store.tell("shop", &[longest + "m"]).await;
    assert!(matches!(refused, Err(LockError::Invalid { what: "message", .. })), "{refused:?}");
}

#[tokio::test]
async fn pruning_keeps_what_is_needed() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let (busy, unconfirmed) = (key("busy"), key("unconfirmed"));
    for key in [&busy, &unconfirmed] {
        take(&store, own, key).await;
        for token in 0..10 {
            assert_eq!(grant_one(&store, own, grant(key, token, "p0")).await, granted(token + 1));
        }
    }
    dead_session(&store).await;
    let claimant = session(&store).await;
    take(&store, claimant, &key("still-claimed")).await;
    store.mark_dead(&[(claimant, 1)], None).await.unwrap();

    let keep = |terms, dead_sessions| Retention { terms, dead_sessions, ..Retention::default() };
    let hour = Duration::from_hours(1);
    let pruned = store.prune(keep(3, hour)).await.unwrap();
    assert_eq!(pruned, Pruned::default(), "nothing was ever confirmed: all of it is pending");
    store.confirm(own, &busy, Token::new(10)).await.unwrap();
    let pruned = store.prune(keep(3, Duration::ZERO)).await.unwrap();
    assert_eq!(pruned, removed_of(6, 0, 2));
    let oldest = "select min(token) from leadergroup.terms where key = 'busy'";
    assert_eq!(database.number(oldest).await, 7, "three that have ended, and the present one");
    assert_eq!(database.number("select count(*) from leadergroup.terms where key = 'unconfirmed'").await, 10);
    let known: Vec<SessionId> = sqlx::query_scalar::<_, uuid::Uuid>("select id from leadergroup.session")
        .fetch_all(&mut database.admin().await)
        .await
        .unwrap()
        .into_iter()
        .map(SessionId::from)
        .collect();
    assert_eq!(known, [own], "dead ones are gone, also one whose claim was not taken over");
    take(&store, own, &key("still-claimed")).await;
    // The last confirmation is old: everything after it is kept.
    assert_eq!(grant_one(&store, own, grant(&busy, 10, "p1")).await, granted(11));
    assert_eq!(store.prune(keep(1, hour)).await.unwrap().terms, 3);
    assert_eq!(database.number("select count(*) from leadergroup.terms where key = 'busy'").await, 2);
}

#[tokio::test]
async fn a_session_that_was_removed_by_hand_is_as_dead_as_any() {
    let (database, store) = migrated().await;
    let gone = session(&store).await;
    let key = key("a");
    take(&store, gone, &key).await;
    database.sql("delete from leadergroup.session").await;
    let own = session(&store).await;
    assert_eq!(store.unclaimed(None, 10).await.unwrap().len(), 1);
    assert!(matches!(claim_one(&store, own, claim(&key)).await, Claimed::Ours(_)));
    assert!(!store.beat(gone, &[]).await.unwrap().alive);
}
