//! Claims: which keys a session can claim, and that a claim changes neither holder nor token.

use std::collections::HashSet;
use std::sync::Arc;

use leadergroup_lock::{
    Changed, Key, Refusal, Token,
    controller::{Claim, Claimed, ClaimedRow},
};
use sqlx::{Connection, Executor};

use crate::cast::{
    GROUP, claim, claim_one, dead_session, grant, grant_one, granted, holder, key, keys, row, session, take,
    vacate,
};
use crate::postgres::{eventually, migrated};

#[tokio::test]
async fn a_missing_row_is_made_only_when_the_claim_says_so() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    let timid = Claim { may_create: false, ..claim(&key) };
    assert_eq!(claim_one(&store, own, timid.clone()).await, Claimed::Missing);
    assert_eq!(store.read(std::slice::from_ref(&key)).await.unwrap(), []);
    take(&store, own, &key).await;
    assert!(matches!(claim_one(&store, own, timid).await, Claimed::Ours(_)));
}

#[tokio::test]
async fn a_living_session_keeps_its_claim() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let key = key("a");
    take(&store, other, &key).await;
    assert_eq!(claim_one(&store, own, claim(&key)).await, Claimed::By { session: other });
    assert_eq!(row(&store, &key).await.session, Some(other));
}

#[tokio::test]
async fn a_claim_changes_neither_holder_nor_token() {
    let (_database, store) = migrated().await;
    let old = session(&store).await;
    let key = key("a");
    take(&store, old, &key).await;
    assert_eq!(grant_one(&store, old, grant(&key, 0, "p0")).await, granted(1));
    store.confirm(old, &key, Token::new(1)).await.unwrap();
    let before = row(&store, &key).await;
    let since = async || store.info(&key).await.unwrap().unwrap().since;
    let began = since().await;

    // After a death mark, a normal end, and a claim that was given up.
    store.mark_dead(&[(old, 1)], None).await.unwrap();
    let second = session(&store).await;
    let claimed = take(&store, second, &key).await;
    assert_eq!(claimed.session, Some(second));
    assert_eq!(claimed.holder, Some(holder("p0")));
    assert_eq!(
        (claimed.token, claimed.grant, claimed.confirmed),
        (before.token, before.grant, before.confirmed)
    );
    assert_eq!((since().await, &claimed.pending), (began, &before.pending));
    store.close(second).await.unwrap();
    let third = session(&store).await;
    take(&store, third, &key).await;
    assert_eq!(store.unclaim(third, std::slice::from_ref(&key)).await.unwrap(), [Changed::Done]);
    let fourth = session(&store).await;
    let claimed = take(&store, fourth, &key).await;
    assert_eq!((claimed.holder, claimed.token, claimed.grant), (before.holder, before.token, before.grant));
}

#[tokio::test]
async fn another_group_s_row_is_foreign_unless_that_group_is_gone() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let key = key("a");
    take(&store, other, &key).await;
    assert_eq!(grant_one(&store, other, grant(&key, 0, "p0")).await, granted(1));
    let before = row(&store, &key).await;
    let stranger = Claim { group: "group-2".into(), ..claim(&key) };
    let successor = Claim { supersedes: Some(GROUP.into()), ..stranger.clone() };
    let wrong_successor = Claim { supersedes: Some("group-0".into()), ..stranger.clone() };
    let foreign = Claimed::Foreign { group: GROUP.into() };
    for claim in [&stranger, &successor, &wrong_successor] {
        assert_eq!(claim_one(&store, own, claim.clone()).await, foreign, "its session lives");
    }
    store.close(other).await.unwrap();
    for claim in [&stranger, &wrong_successor] {
        assert_eq!(claim_one(&store, own, claim.clone()).await, foreign, "the claim does not supersede it");
    }
    assert_eq!(row(&store, &key).await, before, "nothing was changed");

    let Claimed::Ours(inherited) = claim_one(&store, own, successor).await else { panic!() };
    assert_eq!(
        (inherited.holder, inherited.token, inherited.group.as_str()),
        (None, Token::new(1), "group-2")
    );
    assert_eq!(inherited.pending.len(), 1, "the old holder may still have to be stripped");
    // The old group's own claim, from a stale cache.
    assert_eq!(claim_one(&store, own, claim(&key)).await, Claimed::Foreign { group: "group-2".into() });
}

#[tokio::test]
async fn the_own_session_may_pass_a_row_from_a_deleted_group_to_its_successor() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    let successor = Claim { group: "group-2".into(), supersedes: Some(GROUP.into()), ..claim(&key) };
    let Claimed::Ours(row) = claim_one(&store, own, successor).await else { panic!() };
    assert_eq!((row.group.as_str(), row.session), ("group-2", Some(own)));
}

#[tokio::test]
async fn a_newer_program_s_row_is_left_alone() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    database.sql("update leadergroup.lock set protocol = 99, session = null").await;
    assert_eq!(claim_one(&store, own, claim(&key)).await, Claimed::ProtocolNewer { protocol: 99 });
    assert_eq!(row(&store, &key).await.session, None);
    database.sql(&format!("update leadergroup.lock set session = '{own}'")).await;
    let newer = Changed::Refused(Refusal::ProtocolNewer { protocol: 99 });
    assert_eq!(store.unclaim(own, std::slice::from_ref(&key)).await.unwrap(), std::slice::from_ref(&newer));
    assert_eq!(store.confirm(own, &key, Token::ZERO).await.unwrap(), newer);
    assert_eq!(store.vacate(own, vacate(&key, 0)).await.unwrap(), newer);
}

#[tokio::test]
async fn a_row_that_a_hung_transaction_has_locked_is_skipped() {
    let (database, store) = migrated().await;
    let dying = session(&store).await;
    let keys = keys(50);
    let claims: Vec<_> = keys.iter().map(claim).collect();
    store.claim(dying, &claims).await.unwrap();
    store.mark_dead(&[(dying, 1)], None).await.unwrap();
    let own = session(&store).await;
    let mut admin = database.admin().await;
    let mut hung = admin.begin().await.unwrap();
    hung.execute("select from leadergroup.lock where key = 'key-00011' for update").await.unwrap();
    for (key, answer) in keys.iter().zip(store.claim(own, &claims).await.unwrap()) {
        if *key == keys[11] {
            assert_eq!(answer, Claimed::Busy);
        } else {
            assert!(matches!(answer, Claimed::Ours(_)), "{key}: {answer:?}");
        }
    }
    // An application's fence locks the row in this way; it does not block a change of the claim.
    hung.rollback().await.unwrap();
    let mut fenced = admin.begin().await.unwrap();
    fenced.execute("select from leadergroup.lock where key = 'key-00011' for key share").await.unwrap();
    take(&store, own, &keys[11]).await;
}

#[tokio::test]
async fn creating_rows_does_not_wait_for_another_creator_that_hangs() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(5);
    let mut admin = database.admin().await;
    let mut hung = admin.begin().await.unwrap();
    // The lock that a claim of another program takes for a row that it creates.
    hung.execute(
        "select pg_advisory_xact_lock(1818577515, hashtext('key-00002'));
         insert into leadergroup.lock (key, group_id, protocol) values ('key-00002', 'group-1', 1)",
    )
    .await
    .unwrap();
    let claims: Vec<_> = keys.iter().map(claim).collect();
    let answers = store.claim(own, &claims).await.unwrap();
    assert_eq!(answers[2], Claimed::Busy);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Claimed::Ours(_))).count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn claimants_at_once_share_the_rows_and_none_is_claimed_twice() {
    let (database, store) = migrated().await;
    let dying = session(&store).await;
    let keys = keys(3_000);
    let claims: Arc<Vec<Claim>> = Arc::new(keys.iter().map(claim).collect());
    store.claim(dying, &claims).await.unwrap();
    store.close(dying).await.unwrap();

    let claimants = (0..3).map(|_| {
        let (store, claims) = (database.store(), Arc::clone(&claims));
        tokio::spawn(async move {
            let own = session(&store).await;
            let mut mine = HashSet::new();
            // Claims for rows that another claimant had locked are repeated, as at the next poll.
            let mut open: Vec<Claim> = claims.to_vec();
            while !open.is_empty() {
                let answers = store.claim(own, &open).await.unwrap();
                let answers = open.into_iter().zip(answers);
                open = Vec::new();
                for (claim, answer) in answers {
                    match answer {
                        Claimed::Ours(row) => assert!(mine.insert(row.key)),
                        Claimed::By { .. } => {}
                        Claimed::Busy => open.push(claim),
                        other => panic!("{other:?}"),
                    }
                }
            }
            (own, mine)
        })
    });
    let mut all: HashSet<Key> = HashSet::new();
    for claimant in claimants.collect::<Vec<_>>() {
        let (own, mine) = claimant.await.unwrap();
        assert_eq!(store.rows_of(own).await.unwrap().len(), mine.len());
        for key in mine {
            assert!(all.insert(key), "claimed twice");
        }
    }
    assert_eq!(all.len(), keys.len());
    assert_eq!(store.unclaimed(None, 10).await.unwrap(), []);
}

/// The claimant's snapshot is older than the other session's registration, so it does not contain that session.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_younger_than_the_snapshot_is_not_taken_for_a_dead_one() {
    let (database, store) = migrated().await;
    let key = key("a");
    let first = session(&store).await;
    take(&store, first, &key).await;
    store.unclaim(first, std::slice::from_ref(&key)).await.unwrap();

    let slow = session(&store).await;
    let mut admin = database.admin().await;
    let mut hold = admin.begin().await.unwrap();
    hold.execute(sqlx::AssertSqlSafe(format!(
        "select from leadergroup.session where id = '{slow}' for update"
    )))
    .await
    .unwrap();
    let asking = tokio::spawn({
        let (store, key) = (database.store(), key.clone());
        async move { claim_one(&store, slow, claim(&key)).await }
    });
    eventually("the slow claim waits for its own session's row", async || database.waiting().await > 0).await;
    let quick = session(&store).await;
    let quick_answer = claim_one(&store, quick, claim(&key)).await;
    hold.rollback().await.unwrap();
    let slow_answer = asking.await.unwrap();

    let winners: Vec<_> = [(quick, quick_answer), (slow, slow_answer)]
        .into_iter()
        .filter(|(_, answer)| matches!(answer, Claimed::Ours(_)))
        .map(|(session, _)| Some(session))
        .collect();
    assert!(winners.len() <= 1, "both have the claim");
    let after = row(&store, &key).await.session;
    assert_eq!(after, winners.first().copied().flatten());
}

#[tokio::test]
async fn keys_that_no_session_has_claimed_are_listed_page_by_page() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let keys = keys(7);
    for key in &keys {
        take(&store, own, key).await;
    }
    store.unclaim(own, &keys[..5]).await.unwrap();
    store.tombstone(own, &[crate::cast::tombstone(&keys[0], GROUP)]).await.unwrap();
    let first = store.unclaimed(None, 3).await.unwrap();
    assert_eq!(first.iter().map(|row| &row.key).collect::<Vec<_>>(), [&keys[1], &keys[2], &keys[3]]);
    assert_eq!(first[0].group, GROUP);
    let rest = store.unclaimed(Some(&keys[3]), 3).await.unwrap();
    assert_eq!(rest.iter().map(|row| &row.key).collect::<Vec<_>>(), [&keys[4]]);
    let claimed = store.rows_of(own).await.unwrap();
    let unheld = |key: &Key| ClaimedRow { key: key.clone(), token: Token::ZERO, holder: None };
    assert_eq!(claimed, [unheld(&keys[5]), unheld(&keys[6])]);
    assert_eq!(grant_one(&store, own, grant(&keys[5], 0, "p0")).await, granted(1));
    let claimed = store.rows_of(own).await.unwrap();
    assert_eq!((claimed[0].token, claimed[0].holder.as_deref()), (Token::new(1), Some("uid-p0")));
}

#[tokio::test]
async fn giving_a_claim_up_says_what_it_found() {
    let (_database, store) = migrated().await;
    let own = session(&store).await;
    let other = session(&store).await;
    let (ours, theirs, missing) = (key("ours"), key("theirs"), key("missing"));
    take(&store, own, &ours).await;
    take(&store, other, &theirs).await;
    let keys = [ours, theirs, missing];
    let expected = [
        Changed::Done,
        Changed::Refused(Refusal::Unclaimed { session: Some(other) }),
        Changed::Refused(Refusal::Missing),
    ];
    for _ in 0..2 {
        assert_eq!(store.unclaim(own, &keys).await.unwrap(), expected);
    }
    let dead = dead_session(&store).await;
    let refused = vec![Changed::Refused(Refusal::SessionDead); 3];
    assert_eq!(store.unclaim(dead, &keys).await.unwrap(), refused);
}
