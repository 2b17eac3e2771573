//! Clocks jump, by up to a day: the server's, and that of a program that holds a lock. Wall-clock times are for
//! information; no session is judged by them.

use std::time::{Duration, SystemTime};

use leadergroup_lock::{Client, ClientConfig, SessionId, Store, Token, monotonic, protocol::FailureDetector};
use leadergroup_lock_conformance::clock::Clock;

use crate::cast::key;
use crate::pauses::{Holder, with_a_table};
use crate::postgres::{DEADLINE, Database, Server, eventually};

/// The time of the latest write, by the writer's clock.
const LAST_WRITE: &str = "select coalesce((select at from public.work order by id desc limit 1), 0)";

const DAY: i64 = 24 * 3600;
const TTL: Duration = Duration::from_secs(4);
const RETRY: Duration = Duration::from_millis(200);

/// Whether this time, in seconds, differs from the true one by about the offset.
fn is_off_by(time: i64, offset: i64) -> bool {
    let truth = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    (time - i64::try_from(truth).unwrap() - offset).abs() < 20
}

/// A server with such a clock.
struct Timed {
    server: Server,
    clock: Clock,
}

impl Timed {
    fn start() -> Self {
        let (server, clock) = (Server::start(&[]), Clock::new().unwrap());
        server.stop();
        for (name, value) in clock.environment() {
            server.set_environment(name, &value);
        }
        server.launch();
        Self { server, clock }
    }

    /// Sets the clock and makes sure that the server has noticed.
    async fn jump(&self, database: &Database, offset: i64) {
        self.clock.set(offset).unwrap();
        eventually(&format!("the server's clock is off by {offset} s"), async || {
            is_off_by(database.number("select extract(epoch from clock_timestamp())::bigint").await, offset)
        })
        .await;
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        // Stops it in order, so that the library leaves nothing behind in shared memory.
        self.server.stop();
    }
}

/// A session that watches others, as replicas of the operator do.
struct Watcher {
    store: Store,
    own: SessionId,
    observer: FailureDetector,
}

impl Watcher {
    async fn new(database: &Database) -> Self {
        let store = database.store();
        let own = store.register("watcher", TTL, None, None).await.unwrap().0;
        Self { store, own, observer: FailureDetector::new(RETRY) }
    }

    /// How many sessions it considers dead.
    async fn look(&mut self) -> usize {
        let sent = monotonic();
        let beat = self.store.beat(self.own, &[]).await.unwrap();
        assert!(beat.alive);
        self.observer.observe(monotonic(), sent, &beat).len()
    }
}

async fn client(database: &Database, name: &str) -> Client {
    let config =
        ClientConfig { name: name.into(), ttl: TTL, retry_interval: RETRY, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

/// A session's heartbeats.
async fn beats(database: &Database, name: &str) -> i64 {
    database.number(&format!("select max(beat) from leadergroup.session where name = '{name}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ends_nobody_and_a_real_death_is_noticed() {
    let timed = Timed::start();
    let database = timed.server.database().await;
    database.store().migrate().await.unwrap();
    let holder = client(&database, "holder").await;
    let held = holder.lock(&key("a"), DEADLINE).await.unwrap();
    let observer = client(&database, "observer").await;
    let waiting = tokio::spawn({
        let observer = observer.clone();
        async move { observer.lock(&key("a"), DEADLINE).await.unwrap() }
    });
    for (number, offset) in [DAY, -DAY, 3600, 0, -3600, 30, 0].into_iter().enumerate() {
        timed.jump(&database, offset).await;
        // A client that has seen nothing from before the jump.
        let fresh = client(&database, &format!("fresh-{number}")).await;
        let before = (beats(&database, "holder").await, beats(&database, "observer").await);
        eventually("all looked at all others several times", async || {
            beats(&database, "holder").await >= before.0 + 3
                && beats(&database, "observer").await >= before.1 + 3
                && beats(&database, &format!("fresh-{number}")).await >= 4
        })
        .await;
        assert!(!held.is_lost(), "after a jump to {offset:+} s");
        let dead = "select count(*) from leadergroup.session where dead and name not like 'fresh-%'";
        assert_eq!(database.number(dead).await, 0, "after a jump to {offset:+} s");
        assert!(!waiting.is_finished());
        fresh.shutdown().await.unwrap();
    }
    // The clock goes back, so by the database's time the last heartbeat is in the future.
    drop(holder);
    timed.jump(&database, -DAY).await;
    let next = waiting.await.unwrap();
    assert_eq!(next.token(), Token::new(2));
    assert!(held.is_lost() && !next.is_lost());
}

#[tokio::test]
async fn a_clock_that_jumps_while_the_database_is_away_ends_nobody() {
    let timed = Timed::start();
    let database = timed.server.database().await;
    database.store().migrate().await.unwrap();
    let mut watchers = Vec::new();
    for _ in 0..4 {
        watchers.push(Watcher::new(&database).await);
    }
    for offset in [600, -600, DAY, 0] {
        for _ in 0..2 {
            for watcher in &mut watchers {
                assert_eq!(watcher.look().await, 0);
            }
        }
        timed.server.stop();
        timed.clock.set(offset).unwrap();
        timed.server.launch();
        timed.jump(&database, offset).await;
        // A watcher that has just started, and those that had no answer for the longest time.
        watchers.push(Watcher::new(&database).await);
        for watcher in watchers.iter_mut().rev() {
            assert_eq!(watcher.look().await, 0, "after {offset:+} s without the database");
        }
    }
}

/// A real process, whose own clock jumps while it holds a lock and another process waits for the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_own_clock_jumps_holds_on() {
    let database = with_a_table().await;
    let clock = Clock::new().unwrap();
    let holder = Holder::start(&database, &clock.environment());
    assert_eq!(holder.says(), "held 1");
    let observer = client(&database, "observer").await;
    let waiting = tokio::spawn(async move { observer.lock(&key("a"), DEADLINE).await.unwrap().token() });
    for offset in [DAY, -DAY, 30, 0] {
        clock.set(offset).unwrap();
        eventually(&format!("the process's clock is off by {offset} s"), async || {
            is_off_by(database.number(LAST_WRITE).await, offset)
        })
        .await;
        let before = beats(&database, "holder").await;
        eventually("it beats", async || beats(&database, "holder").await >= before + 3).await;
        assert!(!waiting.is_finished(), "after a jump to {offset:+} s");
    }
    holder.says_nothing();
    drop(holder);
    assert_eq!(waiting.await.unwrap(), Token::new(2));
}
