//! Acquiring a free key, and releasing one without waiters, locks nothing but the key's row: concurrent changes have to
//! show there.

use std::time::Duration;

use leadergroup_lock::{
    Changed, FencePolicy, Overrun, Refusal, SessionId, Token,
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::cast::{key, row, session};
use crate::fence::{LEVELS, SERIALIZATION_FAILURE, STALE, application, begin, run};
use crate::holders::{granted, release, wish};
use crate::postgres::{Database, eventually, migrated};

/// Does `action` while a waiter queues up, as `leadergroup.acquire` does it, and has not committed yet.
async fn during<T>(database: &Database, waiter: SessionId, action: impl Future<Output = T>) -> T {
    let mut admin = database.admin().await;
    let mut queueing = admin.begin().await.unwrap();
    let steps = [
        "select from leadergroup.lock where key = 'a' for no key update".to_owned(),
        "update leadergroup.lock set awaited = true where key = 'a' and not awaited".to_owned(),
        format!(
            "insert into leadergroup.waiter (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason)
             values ('a', gen_random_uuid(), '{waiter}', 'uid', 'namespace', 'p1', 'r')"
        ),
    ];
    for step in steps {
        assert_eq!(run(&mut queueing, &step).await, Ok(()));
    }
    let commit = async {
        eventually("it waits for the row", async || database.waiting().await == 1).await;
        queueing.commit().await.unwrap();
    };
    let (done, ()) = tokio::join!(action, commit);
    done
}

#[tokio::test]
async fn one_that_queues_up_while_the_key_is_released_gets_it() {
    let (database, store) = migrated().await;
    let (holder, waiter) = (session(&store).await, session(&store).await);
    assert_eq!(store.acquire(holder, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
    assert_eq!(during(&database, waiter, Box::pin(release(&store, holder, 1))).await, Changed::Done);
    let row = row(&store, &key("a")).await;
    assert_eq!((row.token, row.session), (Token::new(2), Some(waiter)), "the waiter was overlooked");
}

/// The release takes effect at that moment; if the holder could be marked dead meanwhile, the delay that it asked for
/// would be ignored.
#[tokio::test]
async fn a_release_that_has_to_wait_for_the_row_keeps_the_death_mark_waiting() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
    let mut admin = database.admin().await;
    let mut change = admin.begin().await.unwrap();
    let locks = "select from leadergroup.lock where key = 'a' for no key update";
    assert_eq!(run(&mut change, locks).await, Ok(()));
    let look = async {
        eventually("it waits for the row", async || database.waiting().await == 1).await;
        let markable = format!(
            "select count(*) from (select from leadergroup.session where id = '{own}' for update skip locked) as s"
        );
        assert_eq!(database.number(&markable).await, 0);
        change.commit().await.unwrap();
    };
    let (released, ()) = tokio::join!(Box::pin(release(&store, own, 1)), look);
    assert_eq!(released, Changed::Done);
}

#[tokio::test]
async fn a_try_for_a_free_key_while_another_one_queues_up_does_not_jump_the_queue() {
    let (database, store) = migrated().await;
    let (late, waiter) = (session(&store).await, session(&store).await);
    assert_eq!(store.acquire(late, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
    assert_eq!(release(&store, late, 1).await, Changed::Done);
    let tried = Box::pin(async { store.acquire(late, &wish("p0"), Wait::No).await.unwrap().outcome });
    assert_eq!(during(&database, waiter, tried).await, Acquired::Held);
}

#[tokio::test]
async fn the_mark_that_somebody_waits_goes_with_the_queue() {
    let (database, store) = migrated().await;
    let [one, two, three] = [session(&store).await, session(&store).await, session(&store).await];
    let awaited = async || database.number("select count(*) from leadergroup.lock where awaited").await;
    assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
    let (next, impatient) = (wish("p1"), wish("p2"));
    assert_eq!(store.acquire(two, &next, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    assert_eq!(store.acquire(three, &impatient, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    assert_eq!(
        (store.acquire(two, &next, Wait::InQueue).await.unwrap().outcome, awaited().await),
        (granted(2), 1)
    );
    // Giving up leaves the mark; the next release finds no waiter.
    store.give_up(three, &key("a"), impatient.grant).await.unwrap();
    assert_eq!(awaited().await, 1);
    assert_eq!(release(&store, two, 2).await, Changed::Done);
    assert_eq!(awaited().await, 0);
    // When the last waiter gets the key, the mark is cleared.
    assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(3));
    assert_eq!(store.acquire(two, &wish("p1"), Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    assert_eq!(release(&store, one, 3).await, Changed::Done);
    assert_eq!(awaited().await, 0);
}

/// In the snapshot of such a transaction, the token is current; the fence must not rely on it.
#[tokio::test]
async fn a_snapshot_from_before_the_change_does_not_help_a_holder_that_has_released_the_key() {
    for level in ["repeatable read", "serializable"] {
        let (database, store) = migrated().await;
        let application = application(&database).await;
        let (old, new) = (session(&store).await, session(&store).await);
        assert_eq!(store.acquire(old, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
        let mut bank = application.connect().await;
        begin(&mut bank, level).await;
        assert_eq!(run(&mut bank, "select 1 from pg_class limit 1").await, Ok(()));
        assert_eq!(release(&store, old, 1).await, Changed::Done);
        assert_eq!(store.acquire(new, &wish("p1"), Wait::No).await.unwrap().outcome, granted(2));
        let late = run(&mut bank, "select leadergroup.fence('a', 1)").await.expect_err("it may write");
        assert!(late == STALE || late == SERIALIZATION_FAILURE, "{level}: {late}");
    }
}

/// The fence admitted the transaction while its holder had the key. The next holder waits for it, or terminates it.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_a_key_past_a_transaction_of_its_last_holder() {
    for level in LEVELS {
        let (database, store) = migrated().await;
        let policy = |overrun| {
            store.clone().with_fence_policy(FencePolicy { patience: Duration::from_millis(50), overrun })
        };
        let application = application(&database).await;
        let (old, new) = (session(&store).await, session(&store).await);
        assert_eq!(store.acquire(old, &wish("p0"), Wait::No).await.unwrap().outcome, granted(1));
        let mut bank = application.connect().await;
        assert_eq!(run(&mut bank, "create table bank.account (balance int)").await, Ok(()));
        begin(&mut bank, level).await;
        assert_eq!(run(&mut bank, "select leadergroup.fence('a', 1)").await, Ok(()), "{level}");
        assert_eq!(run(&mut bank, "insert into bank.account values (1)").await, Ok(()));
        assert_eq!(release(&store, old, 1).await, Changed::Done, "{level}");
        let patient = policy(Overrun::Wait).acquire(new, &wish("p1"), Wait::No).await.unwrap().outcome;
        assert_eq!(patient, Acquired::Refused(Refusal::Busy), "{level}");
        let strict = policy(Overrun::Terminate).acquire(new, &wish("p1"), Wait::No).await.unwrap().outcome;
        assert_eq!(strict, granted(2), "{level}");
        assert!(run(&mut bank, "commit").await.is_err(), "{level}: a write after the next term began");
        assert_eq!(database.number("select count(*) from bank.account").await, 0, "{level}");
    }
}

#[tokio::test]
async fn the_history_says_how_each_term_ended_and_a_release_may_be_repeated() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    let gives_up = async |own, token, why| {
        assert_eq!(store.release(own, &key("a"), Token::new(token), why).await.unwrap(), Changed::Done);
    };
    for (token, why) in [(1, "first"), (2, "second")] {
        assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(token));
        gives_up(one, token, why).await;
    }
    // If the row is marked as awaited, correctly or not, the release looks for a waiter.
    database.sql("update leadergroup.lock set awaited = true").await;
    assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(3));
    let next = wish("p1");
    assert_eq!(store.acquire(two, &next, Wait::InQueue).await.unwrap().outcome, Acquired::Waiting);
    gives_up(one, 3, "third").await;
    gives_up(two, 4, "fourth").await;
    for (token, why) in [(5, "fifth"), (6, "sixth")] {
        assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(token));
        gives_up(one, token, why).await;
    }
    assert_eq!(store.acquire(one, &wish("p0"), Wait::No).await.unwrap().outcome, granted(7));
    let ends: Vec<_> =
        store.history(&key("a"), 10).await.unwrap().into_iter().map(|term| term.ended).collect();
    let ends: Vec<_> = ends.iter().map(|end| end.as_ref().map(|(_, why)| why.as_str())).collect();
    let expected = ["sixth", "fifth", "fourth", "third", "second", "first"];
    assert_eq!(ends, [vec![None], expected.map(Some).to_vec()].concat());
    // A release whose answer was lost is recognised when it is repeated, however long ago it took effect.
    for (token, own, why) in [
        (1, one, "first"),
        (2, one, "second"),
        (3, one, "third"),
        (4, two, "fourth"),
        (5, one, "fifth"),
        (6, one, "sixth"),
    ] {
        gives_up(own, token, why).await;
        // The same reason for another term, or of another session, or another reason.
        let other = if own == one { two } else { one };
        for (own, token, why) in [(own, token, "again"), (other, token, why), (own, token % 6 + 1, why)] {
            let answer = store.release(own, &key("a"), Token::new(token), why).await.unwrap();
            assert!(matches!(answer, Changed::Refused(Refusal::TokenChanged)), "{answer:?}");
        }
    }
    assert_eq!(store.history(&key("a"), 10).await.unwrap().len(), 7);
    assert!(store.info(&key("a")).await.unwrap().unwrap().holder.is_some(), "the present term lasts");
}

/// A person restored old rows. The history shows which tokens were granted.
#[tokio::test]
async fn a_row_with_an_old_token_does_not_bring_it_back() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    for token in 1..=3 {
        assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(token));
        assert_eq!(release(&store, own, token).await, Changed::Done);
    }
    let back = "update leadergroup.lock set token = 1, confirmed_token = 1";
    let refused = sqlx::query(back).execute(&mut database.admin().await).await.unwrap_err();
    assert!(refused.to_string().contains("must not go back from 3 to 1"), "{refused}");
    // Nor when a table is restored from a dump, or replicated.
    let replica = format!("set session_replication_role = replica; {back}");
    let refused =
        sqlx::raw_sql(AssertSqlSafe(replica)).execute(&mut database.admin().await).await.unwrap_err();
    assert!(refused.to_string().contains("must not go back from 3 to 1"), "{refused}");
    // If the triggers are disabled, the history prevents it.
    let past_the_guards = async |change: &str| {
        let table = "alter table leadergroup.lock";
        let change = format!(
            "{table} disable trigger user; {change}; {table} enable trigger user;
             {table} enable always trigger end_term; {table} enable always trigger keep_token_of_row;
             {table} enable always trigger keep_token_of_new_row; {table} enable always trigger raise_token_floor"
        );
        database.sql(&change).await;
    };
    past_the_guards(back).await;
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(4));
    assert_eq!(release(&store, own, 4).await, Changed::Done);
    let two = wish("other");
    assert_eq!(
        store.acquire(own, &two, Wait::No).await.unwrap().outcome,
        granted(5),
        "it continues from there"
    );
    assert_eq!(release(&store, own, 5).await, Changed::Done);
    // So old that the history no longer contains its next tokens.
    database
        .sql(
            "delete from leadergroup.term where token < 5;
             delete from leadergroup.lock;
             insert into leadergroup.lock (key, group_id, token, protocol) values ('a', 'held by programs', 1, 1)",
        )
        .await;
    let (token, floor) = ("select token from leadergroup.lock", "select token_floor from leadergroup.meta");
    assert_eq!((database.number(token).await, database.number(floor).await), (5, 5));
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(6));
    assert_eq!(release(&store, own, 6).await, Changed::Done);
    // Both: that old, and with the triggers disabled.
    database.sql("delete from leadergroup.term where token < 6").await;
    past_the_guards("update leadergroup.lock set token = 2, confirmed_token = 2").await;
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(7));
}

/// A person restored a row with its holder, for instance from a dump. Its key is not stuck.
#[tokio::test]
async fn a_term_that_the_history_knows_already_can_end() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    for token in 1..=2 {
        assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(token));
        assert_eq!(release(&store, own, token).await, Changed::Done);
    }
    database
        .sql(&format!(
            "delete from leadergroup.lock;
             insert into leadergroup.lock
                 (key, group_id, session, token, grant_id, holder_uid, holder_namespace, holder_name)
             values ('a', 'held by programs', '{own}', 1, gen_random_uuid(), 'uid', 'namespace', 'name')"
        ))
        .await;
    assert_eq!(release(&store, own, 2).await, Changed::Done, "not behind the history");
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, granted(3));
    assert_eq!(release(&store, own, 3).await, Changed::Done);
}

#[tokio::test]
async fn a_holder_without_a_session_is_not_taken_for_nobody() {
    let (database, store) = migrated().await;
    let (old, new) = (session(&store).await, session(&store).await);
    let delay = Duration::from_hours(1);
    let delayed = AcquireRequest { lock_delay: delay, ..wish("p0") };
    assert_eq!(store.acquire(old, &delayed, Wait::No).await.unwrap().outcome, granted(1));
    database.sql("update leadergroup.lock set session = null").await;
    let answer = store.acquire(new, &wish("p1"), Wait::No).await.unwrap().outcome;
    assert_eq!(answer, Acquired::Delayed { token: Token::new(1), delay });
}
