//! Two copies of one server, both promoted, have the same past: their eras differ, and so do their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, DatabaseConfig, Store,
    protocol::{AcquireRequest, Acquired, EraId, Wait},
};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::cast::{TTL, end_quarantine, grant, grant_one, holder, key, session, take};
use crate::postgres::{DEADLINE, Database, Server, eventually, migrated};

/// Tokens of two eras differ by at least this.
const JUMP: i64 = 1_000_000;

/// Two copies of a server with everything that was committed until now.
fn copies(primary: &Server, name: &str) -> [(Server, Database); 2] {
    let [one, two] = [primary.standby(), primary.standby()];
    let copy = |server: Server| {
        server.launch();
        let database = server.database_called(name);
        (server, database)
    };
    let copies = [copy(one), copy(two)];
    primary.kill();
    for (server, _) in &copies {
        server.psql("select pg_promote()");
    }
    copies
}

async fn history(database: &Database) -> String {
    let history = "select history from leadergroup.meta";
    sqlx::query_scalar(history).fetch_one(&mut database.admin().await).await.unwrap()
}

async fn era(database: &Database) -> i64 {
    database.number("select era from leadergroup.meta").await
}

async fn new_session(store: &Store) -> EraId {
    store.register("replica", TTL, None, None).await.unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn two_promoted_copies_begin_eras_of_their_own_with_tokens_of_their_own() {
    let primary = Server::start(&[]);
    let (before, store) = primary.migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    grant_one(&store, own, grant(&key("a"), 0, "p0")).await;
    let past = new_session(&store).await;
    let [(_one, first), (_two, second)] = copies(&primary, &before.name);
    // Each number grows by one of a thousand amounts at random: the same amount twice is rare, and repeatedly rarer
    // still.
    for _ in 0..4 {
        let (one, two) = (first.store(), second.store());
        let (era_one, era_two) = (new_session(&one).await, new_session(&two).await);
        assert_eq!(history(&first).await, history(&second).await, "nothing but the era tells them apart");
        assert!(era_one != past && era_two != past);
        assert_ne!(era_one, era_two);
        assert_eq!(one.beat(own, &[]).await.unwrap().era, era_one);
        if era(&first).await != era(&second).await {
            break;
        }
        for database in [&first, &second] {
            database.sql("update leadergroup.meta set history = 'lost'").await;
        }
    }
    let mut tokens = Vec::new();
    for database in [&first, &second] {
        let (store, era) = (database.store(), era(database).await);
        let mut expected = 1;
        for number in 0..3 {
            let leadergroup_lock::controller::Granted::Granted { token } =
                grant_one(&store, own, grant(&key("a"), expected, &format!("p{number}"))).await
            else {
                panic!("not granted")
            };
            expected = token.get();
            assert_eq!(expected / JUMP, era, "in the range of its era");
            tokens.push(expected);
        }
    }
    let [of_one, of_two] = [&tokens[..3], &tokens[3..]];
    assert!(of_one.iter().all(|token| !of_two.contains(token)), "{tokens:?}");
    assert_ne!(of_one[0] / JUMP, of_two[0] / JUMP, "nor later");
}

#[tokio::test]
async fn the_number_of_an_era_grows_by_a_random_amount() {
    let (database, store) = migrated().await;
    let mut steps = std::collections::BTreeSet::new();
    let (mut last, mut ids) = (0, std::collections::BTreeSet::new());
    for round in 0..30 {
        // In turns by a new history and by hand.
        if round % 2 == 0 {
            database.sql("update leadergroup.meta set history = 'lost'").await;
        } else {
            database.sql("select leadergroup.begin_era()").await;
        }
        assert!(ids.insert(new_session(&store).await), "an era of its own");
        let era = era(&database).await;
        assert!((1..=1_000).contains(&(era - last)), "from {last} to {era}");
        steps.insert(era - last);
        last = era;
    }
    assert!(steps.len() > 15, "{steps:?}");
}

/// Tokens may be far beyond the range of their era's number. After a failover they still grow with that number: the
/// tokens of two copies differ, and no token is granted that was granted and lost.
#[tokio::test]
async fn tokens_of_another_era_differ_however_large_they_were_before() {
    const LARGE: i64 = 5_000_000_000;
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let take = async |name: &str| {
        let request = AcquireRequest::new(key(name), holder("me"), "test");
        let Acquired::Granted { token } = store.acquire(own, &request, Wait::No).await.unwrap().outcome
        else {
            panic!("{name} is not granted")
        };
        store.release(own, &key(name), token, "done").await.unwrap();
        token.get()
    };
    // A key with many terms, and a removed key, above whose tokens new keys begin.
    database
        .sql(&format!(
            "insert into leadergroup.lock (key, group_id, token)
             select key, 'held by programs', {LARGE} from unnest('{{old,gone}}'::text[]) as key;
             delete from leadergroup.lock where key = 'gone'"
        ))
        .await;
    let (mut old, mut new) = (take("old").await, take("new-0").await);
    assert_eq!((old, new), (LARGE + 1, LARGE + 1));
    let mut number = 0;
    for round in 1..=3 {
        let change = if round % 2 == 0 {
            "select leadergroup.begin_era()"
        } else {
            "update leadergroup.meta set history = 'lost'"
        };
        database.sql(change).await;
        new_session(&store).await;
        database.sql("update leadergroup.meta set quarantine = false").await;
        let steps = era(&database).await - number;
        number += steps;
        // The first key's row exists; the second key's row was lost with the commits.
        let (before, lost) = (old, new);
        old = take("old").await;
        new = take(&format!("new-{round}")).await;
        assert_eq!((old, new), (before + steps * JUMP + 1, lost + steps * JUMP), "{steps} eras later");
    }
}

/// The URL led to one copy, and now leads to the other one. A key that was acquired in the first is not held in the
/// second.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gets_from_one_promoted_copy_to_the_other_learns_that_its_key_is_lost() {
    let primary = Server::start(&[]);
    let (before, store) = primary.migrated().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let leads_to = |database: &Database| std::fs::write(file.path(), database.url()).unwrap();
    leads_to(&before);
    let url_file = Some(file.path().into());
    let moving = Store::new(&DatabaseConfig { url: "".into(), url_file, ..before.config() }).unwrap();
    // Only the answer to a heartbeat shows it in time.
    let config = ClientConfig {
        name: "moving".into(),
        ttl: DEADLINE * 10,
        retry_interval: Duration::from_millis(200),
        ..ClientConfig::default()
    };
    let client = Client::connect(moving, config).await.unwrap();
    let kept = client.try_lock(&key("kept")).await.unwrap().unwrap();
    drop(store);
    let [(_one, first), (_two, second)] = copies(&primary, &before.name);

    leads_to(&first);
    let in_quarantine = "select count(*) from leadergroup.meta where quarantine";
    eventually("it has found the first one", async || first.number(in_quarantine).await == 1).await;
    first.sql("update leadergroup.meta set quarantine = false").await;
    let taken = tokio::spawn({
        let client = client.clone();
        async move { client.lock(&key("a"), DEADLINE).await.unwrap() }
    });
    let guard = taken.await.unwrap();
    assert!(!guard.is_lost() && !kept.is_lost());
    leads_to(&second);
    timeout(DEADLINE, guard.lost()).await.expect("the second one does not have the grant");
    assert!(!kept.is_lost(), "both have this grant");
    let other = second.store();
    let own = session(&other).await;
    let request = AcquireRequest::new(key("a"), holder("other"), "test");
    assert_eq!(other.acquire(own, &request, Wait::No).await.unwrap().outcome, Acquired::Quarantine);
}

/// A name that leads first to one server and then to the other, as in DNS. A connection stays with the server to which
/// it was made.
struct Name {
    own: u16,
    leads_to: Arc<AtomicU16>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Name {
    async fn of(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let leads_to = Arc::new(AtomicU16::new(server.port()));
        let target = Arc::clone(&leads_to);
        let accepting = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let port = target.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { own, leads_to, accepting }
    }

    fn leads_to(&self, server: &Server) {
        self.leads_to.store(server.port(), Ordering::SeqCst);
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A client of two promoted copies, which has a session on both and connections to the first.
struct Moving {
    servers: [(Server, Database); 2],
    name: Name,
    client: Client,
}

impl Moving {
    async fn new() -> Self {
        let primary = Server::start(&[]);
        let (before, _store) = primary.migrated().await;
        let name = Name::of(&primary).await;
        let url = before.url().replace(&format!(":{}/", primary.port()), &format!(":{}/", name.own));
        let config = DatabaseConfig { url: url.into(), ..before.config() };
        let client = Client::connect(Store::new(&config).unwrap(), Self::config("moving")).await.unwrap();
        let servers = copies(&primary, &before.name);
        name.leads_to(&servers[0].0);
        let in_quarantine = "select count(*) from leadergroup.meta where quarantine";
        let first = &servers[0].1;
        eventually("it has found the first one", async || first.number(in_quarantine).await == 1).await;
        end_quarantine(first).await;
        Self { servers, name, client }
    }

    fn config(name: &str) -> ClientConfig {
        let (ttl, retry_interval) = (Duration::from_secs(10), Duration::from_millis(200));
        ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() }
    }

    /// New connections lead to the second server, and those on which the last statement was like this are cut.
    async fn moves(&self, statement: &str) {
        self.name.leads_to(&self.servers[1].0);
        let cut = format!(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and usename = 'app' and query {statement} '%leadergroup.beat%'"
        );
        self.servers[0].1.sql(&cut).await;
    }
}

/// Only the connection for heartbeats was made again, and leads to the other server. A key that the first server still
/// shows as held is lost before the other server grants it to another holder.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_looked_for_on_the_server_that_answers_the_heartbeats() {
    let moving = Moving::new().await;
    let guard = moving.client.lock(&key("a"), DEADLINE).await.unwrap();
    moving.moves("like").await;
    let second = &moving.servers[1].1;
    let other = Client::connect(second.store(), Moving::config("other")).await.unwrap();
    let theirs = other.lock(&key("a"), DEADLINE).await.unwrap();
    assert!(guard.is_lost(), "two hold the same lock, {guard:?} and {theirs:?}");
}

/// The other way round: a grant by the second server does not count while the first one answers the heartbeats.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_worth_nothing_is_not_asked_for_without_end() {
    let moving = Moving::new().await;
    let second = &moving.servers[1].1;
    new_session(&second.store()).await;
    end_quarantine(second).await;
    moving.moves("not like").await;
    let tried = timeout(Duration::from_secs(5), moving.client.try_lock(&key("a"))).await;
    assert!(tried.expect("a try has an end").is_ok_and(|guard| guard.is_none()));
    let wait = Duration::from_secs(2);
    moving.client.lock(&key("a"), wait).await.unwrap_err();
    let terms = second.number("select count(*) from leadergroup.terms").await;
    assert!(terms < 50, "{terms} terms in {wait:?}");
}
