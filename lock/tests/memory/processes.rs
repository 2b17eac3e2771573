//! Whole processes on the database in memory, in paused time: sessions, heartbeats, waits and notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use leadergroup_lock::memory::{Call, End, Fate, MemoryClient, MemoryDatabase};
use leadergroup_lock::{
    Client, ClientConfig, Clock, DatabaseConfig, Key, Store,
    controller::{BeatEvent, Claim, Claimed, Hint, Membership, SessionConfig, SessionEvent},
};
use serde_json::json;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(5);

fn config(name: &str) -> SessionConfig {
    SessionConfig { name: name.into(), peers: Some("operators".into()), ..SessionConfig::default() }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn claim(store: &Store, member: &Membership, name: &str) -> Claimed {
    let claim = Claim { key: key(name), group: "group".into(), may_create: true, supersedes: None };
    store.claim(member.session(), &[claim]).await.unwrap().remove(0)
}

/// The first event that this finds something in.
async fn event<T>(events: &mut Receiver<SessionEvent>, find: impl Fn(SessionEvent) -> Option<T>) -> T {
    loop {
        if let Some(found) = find(events.recv().await.unwrap()) {
            return found;
        }
    }
}

fn beat(event: SessionEvent) -> Option<BeatEvent> {
    match event {
        SessionEvent::Beat(beat) => Some(beat),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_heartbeats_stop_is_found_dead_after_its_ttl() {
    let database = MemoryDatabase::new();
    let silenced = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&silenced);
    database.set_network(move |call: &Call<'_>| {
        let hangs = call.client == "one" && silent.load(Ordering::Relaxed);
        if hangs { Fate::HANGS } else { Fate::answered(Duration::from_millis(3), Duration::from_millis(2)) }
    });
    let [one, two] = ["one", "two"].map(|name| MemoryClient::new(&database, name).store().unwrap());
    let (member, mut events) = Membership::join(one.clone(), config("one")).await.unwrap();
    let (watcher, mut seen) = Membership::join(two.clone(), config("two")).await.unwrap();
    assert!(matches!(claim(&one, &member, "a").await, Claimed::Ours(_)));
    assert_eq!(claim(&two, &watcher, "a").await, Claimed::By { session: member.session() });
    // Both see each other.
    event(&mut seen, |event| beat(event).filter(|beat| beat.peers.len() == 2)).await;
    event(&mut events, beat).await;
    let last = Instant::now();
    silenced.store(true, Ordering::Relaxed);
    let silent = member.session();
    let died = event(&mut seen, |event| match event {
        SessionEvent::Died(died) => Some(died),
        _ => None,
    })
    .await;
    assert_eq!(died, [silent]);
    let took = last.elapsed();
    assert!(took + SECOND >= TTL && took <= TTL + 2 * SECOND, "{took:?}");
    assert!(matches!(claim(&two, &watcher, "a").await, Claimed::Ours(_)));
    // When its heartbeats arrive again, the first one learns it.
    silenced.store(false, Ordering::Relaxed);
    event(&mut events, |event| (event == SessionEvent::Lost).then_some(())).await;
    event(&mut events, |event| beat(event).filter(|beat| beat.own != silent && beat.peers.len() == 2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_whose_answer_was_lost_is_repeated() {
    let database = MemoryDatabase::new();
    let store = MemoryClient::new(&database, "one").store().unwrap();
    let (_member, mut events) = Membership::join(store, config("one")).await.unwrap();
    event(&mut events, beat).await;
    let once = AtomicBool::new(true);
    database.set_network(move |call: &Call<'_>| {
        let lost = call.statement == "heartbeat" && once.swap(false, Ordering::Relaxed);
        if lost { Fate::ANSWER_LOST } else { Fate::default() }
    });
    let before = database.commits().len();
    let took = event(&mut events, beat).await.took;
    assert!(took < SECOND, "{took:?}");
    assert_eq!(database.commits()[before..], ["heartbeat", "heartbeat"]);
}

#[tokio::test(start_paused = true)]
async fn a_failover_shows_in_the_next_heartbeat_and_its_quarantine_ends() {
    let database = MemoryDatabase::new();
    let store = Store::in_memory(&database);
    let (member, mut events) = Membership::join(store.clone(), config("one")).await.unwrap();
    event(&mut events, beat).await;
    assert!(matches!(claim(&store, &member, "a").await, Claimed::Ours(_)));
    assert_eq!(database.fail_over_losing(1), 1);
    let changed = event(&mut events, |event| beat(event).filter(|beat| beat.era_changed)).await;
    assert_eq!(changed.own, member.session());
    assert_eq!(store.rows_of(member.session()).await.unwrap(), [], "the claim was lost");
    let began = Instant::now();
    while database.dump()["meta"]["quarantine"] == true {
        event(&mut events, beat).await;
    }
    let took = began.elapsed();
    assert!(took >= TTL && took <= TTL + 3 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn notifications_reach_those_who_listen_and_are_lost_in_a_restart() {
    let database = MemoryDatabase::new();
    let [one, two] = ["one", "two"].map(|name| MemoryClient::new(&database, name).store().unwrap());
    let mut hints = Box::pin(two.listen_among("operators"));
    assert_eq!(hints.next().await, Some(Hint::Missed));
    let (member, _events) = Membership::join(one.clone(), config("one")).await.unwrap();
    assert!(matches!(claim(&one, &member, "a").await, Claimed::Ours(_)));
    one.unclaim(member.session(), &[key("a")]).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Yielded(key("a"))));
    one.tell("operators", &["hello".into()]).await.unwrap();
    one.tell("others", &["not for them".into()]).await.unwrap();
    member.leave().await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Told("hello".into())));
    assert_eq!(hints.next().await, Some(Hint::Freed));
    database.restart();
    one.tell("operators", &["nobody listens".into()]).await.unwrap();
    assert_eq!(hints.next().await, Some(Hint::Missed));
    // Some arrive late, and some do not.
    database.set_network(|call: &Call<'_>| match call.statement {
        "notification" => Fate::answered(SECOND, Duration::ZERO),
        _ => Fate::default(),
    });
    one.tell("operators", &["late".into()]).await.unwrap();
    let sent = Instant::now();
    assert_eq!(hints.next().await, Some(Hint::Told("late".into())));
    assert_eq!(sent.elapsed(), SECOND);
    database.set_network(|call: &Call<'_>| match call.statement {
        "notification" => Fate::ended(End::Silent { commits: false }),
        _ => Fate::default(),
    });
    one.tell("operators", &["lost".into()]).await.unwrap();
    assert!(tokio::time::timeout(10 * SECOND, hints.next()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn programs_hand_a_key_from_one_to_the_next() {
    let database = MemoryDatabase::new();
    let connect = async |name: &str| {
        let config = ClientConfig { name: name.into(), ..ClientConfig::default() };
        Client::connect(Store::in_memory(&database), config).await.unwrap()
    };
    let (one, two) = (connect("one").await, connect("two").await);
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert!(two.try_lock(&key("a")).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { two.lock(&key("a"), 60 * SECOND).await.unwrap() });
    while database.dump()["waiters"].as_array().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It listens by now.
    tokio::time::sleep(SECOND).await;
    let released = Instant::now();
    let _ = held.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert_eq!(guard.token().get(), 2);
    assert!(released.elapsed() < SECOND / 2, "it was notified: {:?}", released.elapsed());
    // A program that ends without a word: another one waits for its ttl.
    drop(one);
    let three = connect("three").await;
    drop(guard);
    let _guard = three.lock(&key("a"), 60 * SECOND).await.unwrap();
}

/// Of two primaries, the one to which new connections lead lacks a grant that the other one has.
#[tokio::test(start_paused = true)]
async fn a_key_is_compared_only_on_the_server_that_the_heartbeats_reach() {
    let database = MemoryDatabase::new();
    // Longer than the pause between heartbeats, shorter than that between comparisons.
    let config = DatabaseConfig { connection_max_idle_time: 30 * SECOND, ..DatabaseConfig::default() };
    let program = MemoryClient::new(&database, "one").with_config(&config);
    let client = Client::connect(program.store().unwrap(), ClientConfig::default()).await.unwrap();
    let held = client.try_lock(&key("a")).await.unwrap().unwrap();
    // By then there is a connection for heartbeats.
    tokio::time::sleep(5 * SECOND).await;
    let since_grant = database.commits().iter().rev().take_while(|commit| *commit != "acquire").count();
    let promoted = database.fork(since_grant + 1);
    assert_eq!(promoted.dump()["locks"], json!([]));
    promoted.begin_era(0);
    program.move_to(&promoted);
    tokio::time::sleep(600 * SECOND).await;
    assert!(!held.is_lost(), "its heartbeats reach the server that has the grant");
    program.cut();
    tokio::time::timeout(10 * SECOND, held.lost()).await.expect("the heartbeats have moved as well");
}

#[tokio::test(start_paused = true)]
async fn the_clocks_of_processes_may_run_at_different_rates() {
    let database = MemoryDatabase::new();
    let client = |name: &str, ppm, offset| {
        MemoryClient::new(&database, name).with_clock(Clock::simulated(ppm, offset)).store().unwrap()
    };
    let fast = client("fast", 100_000, 1_000 * SECOND);
    let slow = client("slow", -100_000, Duration::ZERO);
    let (fast_member, mut of_fast) = Membership::join(fast, config("fast")).await.unwrap();
    let (slow_member, mut of_slow) = Membership::join(slow, config("slow")).await.unwrap();
    let sessions = (fast_member.session(), slow_member.session());
    // Clocks that differ by a fifth stay within the lease's margin.
    let end = Instant::now() + 100 * SECOND;
    while Instant::now() < end {
        for events in [&mut of_fast, &mut of_slow] {
            event(events, |event| match event {
                SessionEvent::Beat(beat) => Some(beat),
                other => panic!("{other:?}"),
            })
            .await;
        }
    }
    assert_eq!((fast_member.session(), slow_member.session()), sessions);
}

/// However many guards are watched, one task looks at the lease for them.
#[tokio::test(start_paused = true)]
async fn a_thousand_guards_that_are_watched_wake_up_rarely_and_learn_of_a_loss_at_once() {
    const GUARDS: usize = 1_000;
    let database = MemoryDatabase::new();
    let client = Client::connect(Store::in_memory(&database), ClientConfig::default()).await.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let lost = Arc::new(AtomicUsize::new(0));
    for number in 0..GUARDS {
        let guard = client.try_lock(&key(&number.to_string())).await.unwrap().unwrap();
        let (polls, lost) = (Arc::clone(&polls), Arc::clone(&lost));
        tokio::spawn(async move {
            let mut watched = Box::pin(guard.lost());
            std::future::poll_fn(|context| {
                polls.fetch_add(1, Ordering::Relaxed);
                watched.as_mut().poll(context)
            })
            .await;
            lost.fetch_add(1, Ordering::Relaxed);
        });
    }
    tokio::time::sleep(SECOND).await;
    polls.store(0, Ordering::Relaxed);
    // Twenty leases.
    tokio::time::sleep(80 * SECOND).await;
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= GUARDS * 2 * 20, "{polls}");
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    database.stop();
    // A lease lasts for four fifths of the ttl.
    tokio::time::sleep(TTL * 4 / 5 + Duration::from_millis(2)).await;
    assert_eq!(lost.load(Ordering::Relaxed), GUARDS);
}

/// The history shows nothing of it.
#[tokio::test(start_paused = true)]
async fn commits_that_were_lost_without_a_new_history_begin_an_era() {
    let database = MemoryDatabase::new();
    let client = Client::connect(Store::in_memory(&database), ClientConfig::default()).await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let kept = client.try_lock(&key("kept")).await.unwrap().unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let gone = client.try_lock(&key("gone")).await.unwrap().unwrap();
    tokio::time::sleep(3 * SECOND).await;
    let since_grant = database.commits().iter().rev().take_while(|commit| *commit != "acquire").count();
    assert_eq!(database.rewind(since_grant + 1), since_grant + 1);
    tokio::time::sleep(2 * SECOND).await;
    assert!(gone.is_lost() && !kept.is_lost());
    assert!(database.dump()["meta"]["era"].as_i64().unwrap() > 0);
    // So many that the session is not known any more.
    database.rewind(usize::MAX);
    tokio::time::sleep(2 * SECOND).await;
    assert!(kept.is_lost());
    let next = client.lock(&key("kept"), 60 * SECOND).await.unwrap();
    assert!(next.token().get() > 1_000_000, "{}", next.token());
}
