//! Granting, confirming, vacating, leaving tombstones: effects, refusals, and repetitions without harm.

use std::time::Duration;

use futures::future::join_all;
use leadergroup_lock::{
    Changed, FencePolicy, GrantId, Key, LockError, Overrun, Refusal, Store, Token,
    controller::{Claim, Claimed, Grant, Granted, Tombstone},
};
use sqlx::{Connection, Executor};

use crate::cast::{
    GROUP, Gate, claim, claim_one, confirm_all, dead_session, grant, grant_all, grant_one, granted, holder,
    key, keys, row, session, take, tombstone, vacate,
};
use crate::postgres::{Database, eventually, migrated};

#[tokio::test]
async fn a_term_from_claim_to_vacancy() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    let fresh = take(&store, own, &key).await;
    assert_eq!((fresh.token, fresh.holder.clone(), fresh.session), (Token::ZERO, None, Some(own)));

    let first = grant(&key, 0, "p0");
    assert_eq!(grant_one(&store, own, first.clone()).await, granted(1));
    let held = row(&store, &key).await;
    assert_eq!(held.holder, Some(holder("p0")));
    assert_eq!((held.grant, held.confirmed, held.pending.len()), (Some(first.grant), false, 1));

    assert_eq!(store.confirm(own, &key, Token::new(1)).await.unwrap(), Changed::Done);
    assert!(row(&store, &key).await.confirmed);

    let second = Grant { floor: Token::new(40), ..grant(&key, 1, "p1") };
    assert_eq!(grant_one(&store, own, second).await, granted(41));
    let third = grant(&key, 41, "p2");
    assert_eq!(grant_one(&store, own, third).await, granted(42));
    let held = row(&store, &key).await;
    assert!(!held.confirmed);
    let pending: Vec<_> = held.pending.iter().map(|term| (term.token.get(), term.confirmed)).collect();
    assert_eq!(pending, [(1, true), (41, false), (42, false)]);
    let holders: Vec<_> = held.pending.iter().map(|term| term.holder.name.as_str()).collect();
    assert_eq!(holders, ["p0", "p1", "p2"]);

    assert_eq!(store.confirm(own, &key, Token::new(42)).await.unwrap(), Changed::Done);
    assert_eq!(row(&store, &key).await.pending.len(), 1);
    assert_eq!(store.vacate(own, vacate(&key, 42)).await.unwrap(), Changed::Done);
    let vacant = row(&store, &key).await;
    assert_eq!((vacant.holder, vacant.token), (None, Token::new(42)));
    assert_eq!(vacant.pending.len(), 1, "the old holder may still act: its term stays pending");
}

#[tokio::test]
async fn a_grant_is_refused_with_the_reason() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let (ours, theirs, nobodys, ended, newer, missing) =
        (key("ours"), key("theirs"), key("nobodys"), key("ended"), key("newer"), key("missing"));
    for key in [&ours, &nobodys, &ended, &newer] {
        take(&store, own, key).await;
    }
    take(&store, other, &theirs).await;
    store.unclaim(own, std::slice::from_ref(&nobodys)).await.unwrap();
    store.tombstone(own, &[tombstone(&ended, GROUP)]).await.unwrap();
    database.sql("update leadergroup.lock set protocol = 99 where key = 'newer'").await;
    assert_eq!(grant_one(&store, own, grant(&ours, 0, "p0")).await, granted(1));

    let batch = [
        grant(&ours, 0, "p1"),
        grant(&theirs, 0, "p1"),
        grant(&nobodys, 0, "p1"),
        grant(&ended, 0, "p1"),
        grant(&newer, 0, "p1"),
        grant(&missing, 0, "p1"),
    ];
    let answers = grant_all(&store, own, &batch).await;
    assert_eq!(answers[0], Granted::Refused(Refusal::TokenChanged));
    assert_eq!(answers[1], Granted::Refused(Refusal::Unclaimed { session: Some(other) }));
    assert_eq!(answers[2], Granted::Refused(Refusal::Unclaimed { session: None }));
    // A tombstone has no claim.
    assert_eq!(answers[3], Granted::Refused(Refusal::Unclaimed { session: None }));
    assert_eq!(answers[4], Granted::Refused(Refusal::ProtocolNewer { protocol: 99 }));
    assert_eq!(answers[5], Granted::Refused(Refusal::Missing));
    assert_eq!(
        database.number("select count(*) from leadergroup.terms").await,
        1,
        "nothing else was granted"
    );
}

/// The database failed over to a copy that lacks the claim for the present group: there the session still has the key
/// for the former group of the same name, with the same token.
#[tokio::test]
async fn a_grant_to_a_group_that_the_copy_does_not_know_is_refused() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    database.sql("update leadergroup.lock set group_id = 'former'").await;
    let before = row(&store, &key).await;
    let refused = Granted::Refused(Refusal::Unclaimed { session: Some(own) });
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, refused);
    assert_eq!(row(&store, &key).await, before, "nothing was changed");
    let again = Claim { supersedes: Some("former".into()), ..claim(&key) };
    assert!(matches!(claim_one(&store, own, again).await, Claimed::Ours(_)));
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
}

#[tokio::test]
async fn changes_of_a_dead_session_have_no_effect() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    let before = row(&store, &key).await;
    assert_eq!(store.mark_dead(&[(own, 1)], None).await.unwrap(), [own]);

    let dead = Changed::Refused(Refusal::SessionDead);
    assert_eq!(grant_one(&store, own, grant(&key, 1, "p1")).await, Granted::Refused(Refusal::SessionDead));
    assert_eq!(store.confirm(own, &key, Token::new(1)).await.unwrap(), dead);
    assert_eq!(store.vacate(own, vacate(&key, 1)).await.unwrap(), dead);
    assert_eq!(store.tombstone(own, &[tombstone(&key, GROUP)]).await.unwrap(), std::slice::from_ref(&dead));
    assert_eq!(store.unclaim(own, std::slice::from_ref(&key)).await.unwrap(), [dead]);
    assert_eq!(store.claim(own, &[claim(&key)]).await, Err(LockError::SessionDead));
    assert!(!store.beat(own, &[]).await.unwrap().alive, "a late heartbeat does not bring it back");
    assert_eq!(row(&store, &key).await, before);
    assert_eq!(database.number("select count(*) from leadergroup.terms").await, 1);
}

#[tokio::test]
async fn repeating_a_grant_answers_as_the_first_time() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let first = grant(&key, 0, "p0");
    for _ in 0..3 {
        assert_eq!(grant_one(&store, own, first.clone()).await, granted(1));
    }
    assert_eq!(database.number("select count(*) from leadergroup.terms").await, 1);
    // Confirming does not end that.
    store.confirm(own, &key, Token::new(1)).await.unwrap();
    assert_eq!(grant_one(&store, own, first.clone()).await, granted(1));
    assert!(row(&store, &key).await.confirmed);

    // The id is bound to the holder as well.
    let disguised = Grant { holder: holder("p9"), ..first.clone() };
    assert!(matches!(grant_one(&store, own, disguised).await, Granted::Refused(Refusal::TokenChanged)));
    // Another change followed: the old grant no longer counts.
    assert_eq!(grant_one(&store, own, grant(&key, 1, "p1")).await, granted(2));
    assert!(matches!(grant_one(&store, own, first.clone()).await, Granted::Refused(Refusal::TokenChanged)));
    let leave = vacate(&key, 2);
    for _ in 0..2 {
        assert_eq!(store.vacate(own, leave.clone()).await.unwrap(), Changed::Done);
    }
    let second = Grant { expected: Token::new(1), ..grant(&key, 1, "p1") };
    assert!(matches!(grant_one(&store, own, second).await, Granted::Refused(Refusal::TokenChanged)));
    assert_eq!(row(&store, &key).await.holder, None);
}

#[tokio::test]
async fn confirm_and_vacate_are_bound_to_the_token() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    assert_eq!(grant_one(&store, own, grant(&key, 1, "p1")).await, granted(2));

    for answer in [
        store.confirm(own, &key, Token::new(1)).await.unwrap(),
        store.vacate(own, vacate(&key, 1)).await.unwrap(),
    ] {
        assert_eq!(answer, Changed::Refused(Refusal::TokenChanged));
    }
    let not_ours = Changed::Refused(Refusal::Unclaimed { session: Some(own) });
    assert_eq!(store.confirm(other, &key, Token::new(2)).await.unwrap(), not_ours);
    assert_eq!(store.vacate(other, vacate(&key, 2)).await.unwrap(), not_ours);
    let missing = Changed::Refused(Refusal::Missing);
    let nowhere = Key::new("nowhere").unwrap();
    assert_eq!(store.confirm(own, &nowhere, Token::new(1)).await.unwrap(), missing);
    assert_eq!(store.vacate(own, vacate(&nowhere, 1)).await.unwrap(), missing);

    // A term without a holder can no longer be confirmed.
    assert_eq!(store.vacate(own, vacate(&key, 2)).await.unwrap(), Changed::Done);
    let late = store.confirm(own, &key, Token::new(2)).await.unwrap();
    assert_eq!(late, Changed::Refused(Refusal::TokenChanged));
}

#[tokio::test]
async fn a_tombstone_keeps_the_token_and_its_successor_goes_on() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    for _ in 0..2 {
        assert_eq!(store.tombstone(own, &[tombstone(&key, GROUP)]).await.unwrap(), [Changed::Done]);
    }
    let ended = row(&store, &key).await;
    assert_eq!(
        (ended.tombstone, ended.holder, ended.session, ended.token),
        (true, None, None, Token::new(1))
    );
    assert_eq!(claim_one(&store, own, claim(&key)).await, Claimed::Tombstone);

    let successor = |may_create| Claim { group: "group-2".into(), may_create, ..claim(&key) };
    assert_eq!(claim_one(&store, own, successor(false)).await, Claimed::Tombstone);
    let Claimed::Ours(revived) = claim_one(&store, own, successor(true)).await else { panic!() };
    assert_eq!((revived.tombstone, revived.token, revived.group.as_str()), (false, Token::new(1), "group-2"));
    assert_eq!(revived.pending.len(), 1, "the old group's last holder may still have to be stripped");
    let next = Grant { group: "group-2".into(), ..grant(&key, 1, "p1") };
    assert_eq!(grant_one(&store, own, next).await, granted(2));
    let old = Changed::Refused(Refusal::Foreign { group: "group-2".into() });
    assert_eq!(store.tombstone(own, &[tombstone(&key, GROUP)]).await.unwrap(), [old]);
}

#[tokio::test]
async fn a_tombstone_needs_no_row_and_no_claim() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let (theirs, orphaned, lost) = (key("theirs"), key("orphaned"), key("lost"));
    let dying = session(&store).await;
    take(&store, other, &theirs).await;
    take(&store, dying, &orphaned).await;
    store.mark_dead(&[(dying, 1)], None).await.unwrap();

    let lost_stone = Tombstone { floor: Token::new(57), ..tombstone(&lost, GROUP) };
    let answers = store
        .tombstone(own, &[tombstone(&theirs, GROUP), tombstone(&orphaned, GROUP), lost_stone])
        .await
        .unwrap();
    assert_eq!(answers[0], Changed::Refused(Refusal::Unclaimed { session: Some(other) }));
    assert_eq!(answers[1..], [Changed::Done, Changed::Done]);
    let claim = Claim { group: "group-2".into(), ..claim(&lost) };
    assert!(matches!(claim_one(&store, own, claim).await, Claimed::Ours(_)));
    let next = Grant { group: "group-2".into(), ..grant(&lost, 57, "p0") };
    assert_eq!(grant_one(&store, own, next).await, granted(58));
}

#[tokio::test]
async fn a_row_removed_by_hand_does_not_bring_old_tokens_back() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    assert_eq!(grant_one(&store, own, grant(&key, 1, "p1")).await, granted(2));
    database.sql("delete from leadergroup.lock").await;
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p2")).await, granted(3));
}

#[tokio::test]
async fn a_row_in_another_transaction_is_busy_and_the_rest_is_done() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(20);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(own, &claims).await.unwrap();
    let mut admin = database.admin().await;
    let mut hung = admin.begin().await.unwrap();
    hung.execute("select from leadergroup.lock where key = 'key-00007' for update").await.unwrap();

    let grants: Vec<_> = keys.iter().map(|key| grant(key, 0, "p0")).collect();
    for (answer, grant) in grant_all(&store, own, &grants).await.iter().zip(&grants) {
        let expected = if grant.key == keys[7] { Granted::Refused(Refusal::Busy) } else { granted(1) };
        assert_eq!(*answer, expected, "{}", grant.key);
    }
    let confirmed = confirm_all(&store, own, &keys, 1).await;
    assert_eq!(confirmed[7], Changed::Refused(Refusal::Busy));
    assert_eq!(confirmed.iter().filter(|answer| **answer == Changed::Done).count(), 19);
    let busy = [Changed::Refused(Refusal::Busy)];
    assert_eq!(store.vacate(own, vacate(&keys[7], 0)).await.unwrap(), busy[0]);
    assert_eq!(store.tombstone(own, &[tombstone(&keys[7], GROUP)]).await.unwrap(), busy);
    assert_eq!(store.unclaim(own, &keys[7..8]).await.unwrap(), busy);

    hung.rollback().await.unwrap();
    assert_eq!(grant_all(&store, own, &grants).await, vec![granted(1); 20], "the same grants, repeated");
}

/// The answer to COMMIT is lost: the client gives up while the server is still working.
#[tokio::test]
async fn a_lost_answer_is_resolved_by_repeating_the_grant() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let mut gate = Gate::close(&database).await;
    let grant = grant(&key, 0, "p0");
    {
        let call = grant_one(&store, own, grant.clone());
        tokio::pin!(call);
        tokio::select! {
            answer = &mut call => panic!("the gate is closed, yet: {answer:?}"),
            () = gate.somebody_waits() => {}
        }
    }
    // Repeated while the first one may still be under way: never two answers.
    let policy = FencePolicy { patience: Duration::from_millis(50), overrun: Overrun::Wait };
    let early = grant_one(&store.clone().with_fence_policy(policy), own, grant.clone()).await;
    assert!(matches!(early, Granted::Refused(Refusal::Busy)), "{early:?}");
    gate.open().await;
    eventually("the first statement is over", async || {
        grant_one(&store, own, grant.clone()).await == granted(1)
    })
    .await;
    assert_eq!(database.number("select count(*) from leadergroup.terms").await, 1);
}

#[tokio::test]
async fn arguments_that_cannot_be_stored_are_refused_before_anything_is_sent() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    assert!(matches!(Key::new(""), Err(LockError::Invalid { what: "key", .. })));
    assert!(matches!(Key::new("a\0b"), Err(LockError::Invalid { what: "key", .. })));
    assert!(matches!(Key::new("x".repeat(513)), Err(LockError::Invalid { what: "key", .. })));
    let invalid = |what: &'static str| move |error: &LockError| matches!(error, LockError::Invalid { what: w, .. } if *w == what);

    let mut bad = grant(&key, 0, "p0");
    bad.holder.uid = String::new();
    assert!(invalid("holder's uid")(&store.grant(own, bad).await.unwrap_err()));
    let bad = Grant { floor: Token::new(-1), ..grant(&key, 0, "p0") };
    assert!(invalid("token")(&store.grant(own, bad).await.unwrap_err()));
    let bad = Grant { floor: Token::new(i64::MAX), ..grant(&key, 0, "p0") };
    assert!(invalid("token")(&store.grant(own, bad).await.unwrap_err()));
    assert!(invalid("batch")(&store.claim(own, &[claim(&key), claim(&key)]).await.unwrap_err()));
    assert!(invalid("session's name")(
        &store.register("", Duration::from_secs(1), None, None).await.unwrap_err()
    ));
    assert!(invalid("ttl")(&store.register("replica", Duration::ZERO, None, None).await.unwrap_err()));
}

/// They go to the server together.
#[tokio::test]
async fn a_grant_does_not_fail_because_of_those_of_other_tasks() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let (contested, other) = (key("contested"), key("other"));
    for key in [&contested, &other] {
        take(&store, own, key).await;
    }
    let unfit = Grant { reason: String::new(), ..grant(&key("unfit"), 0, "p0") };
    let asked = [grant(&contested, 0, "p0"), grant(&contested, 0, "p1"), unfit, grant(&other, 0, "p0")];
    let answers = join_all(asked.map(|grant| store.grant(own, grant))).await;
    assert_eq!(answers[0], Ok(granted(1)));
    assert!(matches!(answers[1], Ok(Granted::Refused(Refusal::TokenChanged))), "{answers:?}");
    assert!(matches!(answers[2], Err(LockError::Invalid { what: "reason", .. })), "{answers:?}");
    assert_eq!(answers[3], Ok(granted(1)));
    assert_eq!(row(&store, &contested).await.holder, Some(holder("p0")));
}

#[tokio::test]
async fn empty_batches_ask_nothing() {
    let (_database, store) = migrated().await;
    let own = dead_session(&store).await;
    assert_eq!(store.claim(own, &[]).await.unwrap(), []);
    assert_eq!(store.mark_dead(&[], None).await.unwrap(), []);
    assert_eq!(store.read(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn the_history_says_who_held_what_and_why_it_ended() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let first = GrantId::new();
    let grant = Grant { grant: first, reason: "first of all".into(), ..grant(&key, 0, "p0") };
    assert_eq!(grant_one(&store, own, grant).await, granted(1));
    store.vacate(own, vacate(&key, 1)).await.unwrap();
    let found = sqlx::query_as::<_, (i64, uuid::Uuid, String, String, String, Option<String>)>(
        "select token, grant_id, group_id, holder_name, reason, end_reason from leadergroup.terms",
    )
    .fetch_all(&mut database.admin().await)
    .await
    .unwrap();
    let expected = (
        1,
        first.as_uuid(),
        GROUP.to_owned(),
        "p0".to_owned(),
        "first of all".to_owned(),
        Some("gone".to_owned()),
    );
    assert_eq!(found, [expected]);
}

/// A program whose session was marked dead must not be able to end a living group.
#[tokio::test]
async fn a_dead_session_cannot_make_tombstones_of_missing_rows() {
    let (_database, store): (Database, Store) = migrated().await;
    let dead = dead_session(&store).await;
    let key = key("a");
    let answer = store.tombstone(dead, &[tombstone(&key, GROUP)]).await.unwrap();
    assert_eq!(answer, [Changed::Refused(Refusal::SessionDead)]);
    assert_eq!(store.read(&[key]).await.unwrap(), []);
}
