//! Two copies of one server, both promoted, have one past and two futures: their eras are told apart, and so are the tokens.

use std::time::Duration;

use leadergroup_lock::{AcquireRequest, Acquired, Client, ClientConfig, DatabaseConfig, EraId, Store, Wait};
use tokio::time::timeout;

use crate::cast::{TTL, grant, grant_one, holder, key, session, take};
use crate::postgres::{DEADLINE, Database, Server, eventually, migrated};

/// Tokens of another era differ by this at least.
const JUMP: i64 = 1_000_000;

/// A server with a database, and two copies of it that have all that was committed until now.
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
    store.register("replica", TTL, None).await.unwrap().1
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
    // Each number grows by one of a thousand at random: that they are the same is rare, and that they are so twice rarer.
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
            let leadergroup_lock::Granted::Granted { token } =
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
        // By a new history, and by hand.
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

/// Tokens may be far beyond the range of their era's number. After a failover they grow with that number all the same: those
/// that two copies grant differ, and none is one that was granted and lost.
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
    // A key with many terms, and one that is gone, above whose tokens new keys begin.
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
        // The first one's row is there, the second one's row was lost with the commits.
        let (before, lost) = (old, new);
        old = take("old").await;
        new = take(&format!("new-{round}")).await;
        assert_eq!((old, new), (before + steps * JUMP + 1, lost + steps * JUMP), "{steps} eras later");
    }
}

/// The URL led to one copy, and leads to the other one now. What was taken in the first is not held in the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gets_from_one_promoted_copy_to_the_other_learns_that_its_key_is_lost() {
    let primary = Server::start(&[]);
    let (before, store) = primary.migrated().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let leads_to = |database: &Database| std::fs::write(file.path(), database.url()).unwrap();
    leads_to(&before);
    let url_file = Some(file.path().into());
    let moving = Store::new(&DatabaseConfig { url: "".into(), url_file, ..before.config() }).unwrap();
    // Only the answer to a heartbeat tells in time.
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
    timeout(DEADLINE, guard.lost()).await.expect("the second one does not know of it");
    assert!(!kept.is_lost(), "both know of this one");
    let other = second.store();
    let own = session(&other).await;
    let request = AcquireRequest::new(key("a"), holder("other"), "test");
    assert_eq!(other.acquire(own, &request, Wait::No).await.unwrap().outcome, Acquired::Quarantine);
}
