//! Keys that programs hold directly: acquiring them at once or in order, releasing them, giving requests up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leadergroup_lock::{
    Changed, FencePolicy, Overrun, Refusal, SessionId, Token,
    admin::Retention,
    controller::Claimed,
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::Connection;
use sqlx::postgres::PgListener;
use tokio::time::timeout;

use crate::cast::{
    Gate, assert_jumped, claim, claim_one, dead_session, end_quarantine, holder, key, row, session, take,
};
use crate::fence::{application, begin, run};
use crate::holders::{acquire, granted, queue, release, token_of, wish};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

async fn waiters(database: &Database) -> i64 {
    database.number("select count(*) from leadergroup.waiter").await
}

#[tokio::test]
async fn a_key_has_one_holder_and_only_its_token_releases_it() {
    let (_database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    let first = wish("p0");
    assert_eq!(acquire(&store, one, &first).await, granted(1));
    assert_eq!(acquire(&store, one, &first).await, granted(1), "the same request again");
    assert_eq!(acquire(&store, one, &wish("p0")).await, Acquired::Held, "another request of the same holder");
    assert_eq!(acquire(&store, two, &wish("p1")).await, Acquired::Held);
    let held = row(&store, &key("a")).await;
    assert_eq!((held.holder, held.session, held.confirmed), (Some(holder("p0")), Some(one), true));

    let before = row(&store, &key("a")).await;
    for (own, token) in [(two, 1), (one, 0), (one, 2)] {
        let refused = release(&store, own, token).await;
        assert!(matches!(refused, Changed::Refused(Refusal::TokenChanged)), "{refused:?}");
    }
    assert_eq!(row(&store, &key("a")).await, before, "nothing was changed");
    assert_eq!(acquire(&store, two, &wish("p1")).await, Acquired::Held);
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    assert_eq!(acquire(&store, two, &wish("p1")).await, granted(2));
    assert_eq!(release(&store, one, 1).await, Changed::Done, "a repetition: the first answer may be lost");
    let late = [
        store.release(one, &key("a"), Token::new(1), "for another reason").await.unwrap(),
        release(&store, two, 1).await,
    ];
    for late in late {
        assert!(matches!(late, Changed::Refused(Refusal::TokenChanged)), "an old term's release: {late:?}");
    }
    let held = row(&store, &key("a")).await;
    assert_eq!((held.holder, held.token), (Some(holder("p1")), Token::new(2)));
    let history = store.history(&key("a"), 10).await.unwrap();
    assert_eq!(history.len(), 2);
    assert_eq!(history[1].ended.as_ref().unwrap().1, "done");
    assert_eq!(
        store.release(one, &key("b"), Token::new(1), "x").await.unwrap(),
        Changed::Refused(Refusal::Missing)
    );
}

/// With any settings of the planner: clients in SQL have the server's defaults, with which small tables are scanned.
#[tokio::test]
async fn an_acquisition_takes_the_fence_of_its_own_key_only() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    for number in 0..60 {
        let wish = AcquireRequest::new(key(&format!("other-{number}")), holder("p0"), "test");
        let Acquired::Granted { token } = acquire(&store, own, &wish).await else { panic!("{number}") };
        assert_eq!(store.release(own, &wish.key, token, "done").await.unwrap(), Changed::Done);
    }
    database.sql("analyze leadergroup.lock").await;
    let request =
        "jsonb_build_array(jsonb_build_object('key', 'other-7', 'grant_id', gen_random_uuid(), 'uid', 'u',
        'namespace', 'n', 'name', 'p1', 'reason', 'test', 'wait', false))";
    let acquire = format!("select verdict from leadergroup.acquire('{own}', {request})");
    for plan in ["seqscan", "indexscan", "hashjoin", "mergejoin", "nestloop"] {
        let mut client = database.admin().await;
        let mut transaction = client.begin().await.unwrap();
        let off = sqlx::AssertSqlSafe(format!("set local enable_{plan} = off"));
        sqlx::query(off).execute(&mut *transaction).await.unwrap();
        let verdict: String = sqlx::query_scalar(sqlx::AssertSqlSafe(acquire.clone()))
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        let fences = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
        let fences: i64 = sqlx::query_scalar(fences).fetch_one(&mut *transaction).await.unwrap();
        assert_eq!((verdict.as_str(), fences), ("granted", 1), "without {plan}");
    }
}

#[tokio::test]
async fn a_dead_session_holds_nothing_and_gets_nothing() {
    let (_database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    assert_eq!(store.mark_dead(&[(one, 1)], None).await.unwrap(), [one]);
    assert_eq!(acquire(&store, one, &wish("p0")).await, Acquired::Refused(Refusal::SessionDead));
    assert_eq!(queue(&store, one, &wish("p0")).await, Acquired::Refused(Refusal::SessionDead));
    assert_eq!(release(&store, one, 1).await, Changed::Refused(Refusal::SessionDead));
    assert_eq!(acquire(&store, two, &wish("p1")).await, granted(2));

    // Nor is it asked to wait for a key that others hold: it would wait for ever.
    let (three, third) = (session(&store).await, wish("p2"));
    assert_eq!(queue(&store, three, &third).await, Acquired::Waiting);
    assert_eq!(store.mark_dead(&[(three, 1)], None).await.unwrap(), [three]);
    for dead in [one, three] {
        assert_eq!(acquire(&store, dead, &third).await, Acquired::Refused(Refusal::SessionDead));
        assert_eq!(queue(&store, dead, &third).await, Acquired::Refused(Refusal::SessionDead));
    }
}

#[tokio::test]
async fn those_who_wait_are_served_in_order_and_before_those_who_try() {
    let (database, store) = migrated().await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(session(&store).await);
    }
    assert_eq!(queue(&store, sessions[0], &wish("p0")).await, granted(1), "free: no need to wait");
    let wishes = ["p1", "p2", "p3"].map(wish);
    for _ in 0..2 {
        for (own, wish) in sessions[1..].iter().zip(&wishes) {
            assert_eq!(queue(&store, *own, wish).await, Acquired::Waiting);
        }
    }
    assert_eq!(waiters(&database).await, 3, "asking again is not queueing again");
    for (place, wish) in wishes.iter().enumerate() {
        let token = i64::try_from(place).unwrap() + 1;
        assert_eq!(release(&store, sessions[place], token).await, Changed::Done);
        // The key was handed over with the release: no other request could take it.
        assert_eq!(row(&store, &key("a")).await.holder, Some(wish.holder.clone()));
        assert_eq!(acquire(&store, sessions[0], &self::wish("p9")).await, Acquired::Held);
        assert_eq!(queue(&store, sessions[place + 1], wish).await, granted(token + 1));
    }
    assert_eq!(waiters(&database).await, 0);
}

#[tokio::test]
async fn the_dead_are_passed_over_and_removed() {
    let (database, store) = migrated().await;
    let [holder, dying, living, last] =
        [session(&store).await, session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, holder, &wish("p0")).await, granted(1));
    let (first, second) = (wish("p2"), wish("p3"));
    assert_eq!(queue(&store, dying, &wish("p1")).await, Acquired::Waiting);
    assert_eq!(queue(&store, living, &first).await, Acquired::Waiting);
    assert_eq!(queue(&store, last, &second).await, Acquired::Waiting);
    // The holder dies without a release: the first living waiter takes the key when it asks, and no other.
    assert_eq!(store.mark_dead(&[(dying, 1), (holder, 1)], None).await.unwrap().len(), 2);
    assert_eq!(queue(&store, last, &second).await, Acquired::Waiting);
    assert_eq!(acquire(&store, last, &wish("p4")).await, Acquired::Held, "others wait for it");
    assert_eq!(queue(&store, living, &first).await, granted(2));
    assert_eq!(waiters(&database).await, 1, "the dead one's place is gone");
    assert_eq!(release(&store, living, 2).await, Changed::Done);
    assert_eq!(queue(&store, last, &second).await, granted(3));

    // A place in the queue for a key that is no longer requested is removed with its session.
    let forgotten = dead_session(&store).await;
    database
        .sql(&format!(
            "insert into leadergroup.waiter (key, grant_id, session, holder_uid, holder_namespace, holder_name, reason)
             values ('z', gen_random_uuid(), '{forgotten}', 'u', 'n', 'n', 'r')"
        ))
        .await;
    store.prune(Retention { dead_sessions: Duration::ZERO, ..Retention::default() }).await.unwrap();
    assert_eq!(waiters(&database).await, 0);
}

#[tokio::test]
async fn a_request_that_is_given_up_is_not_waited_for() {
    let (database, store) = migrated().await;
    let [one, two, three] = [session(&store).await, session(&store).await, session(&store).await];
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let (impatient, unlucky, next) = (wish("p1"), wish("p2"), wish("p3"));
    for (own, wish) in [(two, &impatient), (two, &unlucky), (three, &next)] {
        assert_eq!(queue(&store, own, wish).await, Acquired::Waiting);
    }
    store.give_up(two, &key("a"), impatient.grant).await.unwrap();
    store.give_up(two, &key("a"), impatient.grant).await.unwrap();
    assert_eq!(waiters(&database).await, 2);
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    // The request was granted before it could be given up.
    assert_eq!(row(&store, &key("a")).await.holder, Some(unlucky.holder.clone()));
    store.give_up(two, &key("a"), unlucky.grant).await.unwrap();
    assert_eq!(queue(&store, three, &next).await, granted(3));
    store.give_up(three, &key("b"), next.grant).await.unwrap();
    assert_eq!(queue(&store, three, &next).await, granted(3), "another key's");
}

#[tokio::test]
async fn keys_of_groups_and_of_programs_are_kept_apart() {
    let (_database, store) = migrated().await;
    let (operator, program) = (session(&store).await, session(&store).await);
    take(&store, operator, &key("a")).await;
    let foreign = Acquired::Refused(Refusal::Foreign { group: crate::cast::GROUP.into() });
    assert_eq!(acquire(&store, program, &wish("p0")).await, foreign);
    assert_eq!(queue(&store, program, &wish("p0")).await, foreign);
    let elsewhere = AcquireRequest { key: key("b"), ..wish("p0") };
    assert_eq!(acquire(&store, program, &elsewhere).await, granted(1));
    let refused = claim_one(&store, operator, claim(&key("b"))).await;
    assert_eq!(refused, Claimed::Foreign { group: "held by programs".into() });
}

#[tokio::test]
async fn tokens_of_programs_jump_with_the_database_s_history() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let next = wish("p1");
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
    database.sql("update leadergroup.meta set history = 'elsewhere/00000001'").await;
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    assert_eq!(queue(&store, two, &next).await, Acquired::Quarantine, "a program may rely on a lost grant");
    end_quarantine(&database).await;
    assert_jumped(&database, 1, token_of(&queue(&store, two, &next).await)).await;
}

/// The next holder gets the key only after the last holder's fenced transactions have ended.
#[tokio::test(flavor = "multi_thread")]
async fn fenced_transactions_end_before_the_next_term() {
    for terminate in [false, true] {
        let (database, store) = migrated().await;
        let overrun = if terminate { Overrun::Terminate } else { Overrun::Wait };
        let store = store.with_fence_policy(FencePolicy { patience: Duration::from_millis(50), overrun });
        let (one, two) = (session(&store).await, session(&store).await);
        assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
        let next = wish("p1");
        assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
        let mut bank = application(&database).await.connect().await;
        begin(&mut bank, "repeatable read").await;
        run(&mut bank, "select leadergroup.fence('a', 1)").await.unwrap();
        assert_eq!(release(&store, one, 1).await, Changed::Done, "releasing does not wait");
        assert_eq!(row(&store, &key("a")).await.holder, None, "but no one follows yet");
        let looked = store.acquire(two, &next, Wait::InQueue).await.unwrap();
        if terminate {
            assert_eq!(looked.outcome, granted(2));
            assert!(run(&mut bank, "commit").await.is_err());
        } else {
            assert_eq!(looked.outcome, Acquired::Refused(Refusal::Busy));
            let blockers = looked.blockers.unwrap();
            assert!(blockers.contains("a fenced transaction") && blockers.contains("bank_"), "{blockers}");
            assert_eq!(run(&mut bank, "commit").await, Ok(()));
            assert_eq!(queue(&store, two, &next).await, granted(2));
        }
        bank.close_hard().await.unwrap();
    }
}

/// Many simultaneous tries would otherwise all wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_does_not_wait_for_another_one_that_is_under_way() {
    for known in [false, true] {
        let (database, store) = migrated().await;
        let (one, two) = (session(&store).await, session(&store).await);
        if known {
            assert_eq!(acquire(&store, two, &wish("p0")).await, granted(1));
            assert_eq!(release(&store, two, 1).await, Changed::Done);
        }
        let mut gate = Gate::close(&database).await;
        let first = tokio::spawn({
            let store = store.clone();
            async move { acquire(&store, one, &wish("p1")).await }
        });
        gate.somebody_waits().await;
        let other = store.acquire(two, &wish("p2"), Wait::No).await.unwrap();
        assert_eq!(other.outcome, Acquired::Refused(Refusal::Busy), "known: {known}");
        assert!(
            other.blockers.is_some_and(|who| who.contains("held exclusively")),
            "the answer says by whom"
        );
        assert_eq!(database.waiting().await, 1, "only the first one, at the gate");
        gate.open().await;
        assert_eq!(first.await.unwrap(), granted(1 + i64::from(known)));
        assert_eq!(acquire(&store, two, &wish("p2")).await, Acquired::Held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_next_one_is_woken() {
    let (database, store) = migrated().await;
    let (one, two) = (session(&store).await, session(&store).await);
    // Each session has its own channel; the other sessions are not notified.
    let mut listener = PgListener::connect(&database.url()).await.unwrap();
    let channel = |of: SessionId| format!("leadergroup_{}", of.as_uuid().simple());
    listener.listen_all([channel(one).as_str(), channel(two).as_str()]).await.unwrap();
    assert_eq!(acquire(&store, one, &wish("p0")).await, granted(1));
    let (next, after) = (wish("p1"), wish("p2"));
    assert_eq!(queue(&store, two, &next).await, Acquired::Waiting);
    assert_eq!(queue(&store, two, &after).await, Acquired::Waiting);
    assert_eq!(release(&store, one, 1).await, Changed::Done);
    assert_eq!(release(&store, two, 2).await, Changed::Done);
    for woken in [next, after] {
        let heard = timeout(DEADLINE, listener.recv()).await.expect("no one is woken").unwrap();
        assert_eq!((heard.channel(), heard.payload()), (&*channel(two), &*woken.grant.to_string()));
    }
}

/// When a client asked, when it was answered to wait, and which token it got in the end.
struct Turn {
    asked: Instant,
    told_to_wait: Option<Instant>,
    token: Token,
}

/// 32 clients with their own sessions, several times each.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_clients_one_holds_the_key_at_a_time_and_nobody_jumps_the_queue() {
    const CLIENTS: usize = 32;
    const TURNS: usize = 2;
    let (database, store) = migrated().await;
    let busy = Arc::new(AtomicBool::new(false));
    // A few programs, so that not everything goes through one pool.
    let stores = [store.clone(), database.store(), database.store(), database.store()];
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (store, busy) = (stores[client % stores.len()].clone(), Arc::clone(&busy));
            tokio::spawn(async move {
                let own = session(&store).await;
                let mut turns = Vec::new();
                for _ in 0..TURNS {
                    let wish = wish(&format!("p{client}"));
                    let (asked, mut told_to_wait) = (Instant::now(), None);
                    let token = loop {
                        assert!(asked.elapsed() < DEADLINE, "the queue does not move");
                        match queue(&store, own, &wish).await {
                            Acquired::Granted { token } => break token,
                            Acquired::Waiting => {
                                told_to_wait.get_or_insert_with(Instant::now);
                                tokio::time::sleep(Duration::from_millis(20)).await;
                            }
                            Acquired::Refused(Refusal::Busy) => {}
                            other => panic!("{other:?}"),
                        }
                    };
                    assert!(!busy.swap(true, Ordering::SeqCst), "two hold the key");
                    tokio::task::yield_now().await;
                    assert!(busy.swap(false, Ordering::SeqCst));
                    assert_eq!(release(&store, own, token.get()).await, Changed::Done);
                    turns.push(Turn { asked, told_to_wait, token });
                }
                turns
            })
        })
        .collect();
    let mut turns = Vec::new();
    for client in clients {
        turns.extend(client.await.unwrap());
    }
    turns.sort_by_key(|turn| turn.token);
    assert_eq!(turns.len(), CLIENTS * TURNS);
    assert!(turns.windows(2).all(|pair| pair[0].token < pair[1].token), "a token was used twice");
    assert_eq!(
        turns.last().unwrap().token.get(),
        i64::try_from(CLIENTS * TURNS).unwrap(),
        "no token is skipped"
    );
    for (place, later) in turns.iter().enumerate() {
        let jumped =
            turns[..place].iter().find(|earlier| later.told_to_wait.is_some_and(|told| told < earlier.asked));
        assert!(jumped.is_none(), "a later request was served first");
    }
    assert_eq!(waiters(&database).await, 0);
    eventually("nothing is held", async || row(&store, &key("a")).await.holder.is_none()).await;
}
