//! A database with a high latency: everything works, more slowly; and one with such a latency that heartbeats come too
//! late.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, DatabaseConfig, Released, Store, Successor, Token, Transferred,
};
use tokio::time::timeout;

use crate::network::taken;
use crate::postgres::{DEADLINE, Database, eventually, migrated, shared};
use crate::proxy::{Backend, Proxy};

const ONE_WAY: Duration = Duration::from_millis(200);

async fn client(database: &Database, url: String, name: &str, ttl: Duration) -> Client {
    let store = Store::new(&DatabaseConfig { url: url.into(), ..database.config() }).unwrap();
    let keep = ClientConfig { name: name.into(), ttl, retry_interval: ttl / 20, ..ClientConfig::default() };
    Client::connect(store, keep).await.unwrap()
}

async fn beats(database: &Database, name: &str) -> i64 {
    database.number(&format!("select max(beat) from leadergroup.session where name = '{name}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_long_way_keys_are_kept_and_handed_over() {
    // Longer than any pause of the machine, and than the slowest operation here, which is connecting.
    const TTL: Duration = Duration::from_secs(10);
    let (database, _store) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    proxy.slow_down(ONE_WAY);
    let url = proxy.url(&database.url());
    let one = client(&database, url.clone(), "one", TTL).await;
    let two = client(&database, url.clone(), "two", TTL).await;
    let three = client(&database, url, "three", TTL).await;
    // The first heartbeat makes its own connection. On a machine that is very busy, it may come after the end of the
    // lease: the client then begins with another session, and a place that it has in a queue is lost with the first
    // one. A second heartbeat shows that the first one came in time.
    let settled =
        "select (count(*) = 3 and min(beat) >= 3)::int::bigint from leadergroup.session where not dead";
    eventually("the sessions have begun", async || database.number(settled).await == 1).await;
    let dead = async || database.number("select count(*) from leadergroup.session where dead").await;
    let dead_before = dead().await;
    let held = taken(&one).await;
    let waits = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { taken(&client).await })
    };
    let waiters = async || database.number("select count(*) from leadergroup.waiter").await;
    let second = waits(&two);
    eventually("the second one waits", async || waiters().await == 1).await;
    let third = waits(&three);
    eventually("the third one waits", async || waiters().await == 2).await;
    let before = (beats(&database, "one").await, beats(&database, "two").await);
    eventually("they watch each other for longer than a ttl", async || {
        beats(&database, "one").await >= before.0 + 20 && beats(&database, "two").await >= before.1 + 20
    })
    .await;
    assert!(!held.is_lost());
    assert_eq!(waiters().await, 2);
    assert_eq!(dead().await, dead_before);

    assert!(matches!(held.transfer_to(Successor::Name("three")).await.unwrap(), Transferred::Done));
    let third = third.await.unwrap();
    assert_eq!(third.token(), Token::new(2));
    assert_eq!(third.release().await.unwrap(), Released::Done);
    let second = second.await.unwrap();
    assert_eq!(second.token(), Token::new(3));
    assert!(!second.is_lost());
}

/// Others can watch a session only once it is registered. So the lease counts from the registration, and not from
/// before the connection was made.
#[tokio::test(flavor = "multi_thread")]
async fn connecting_takes_nothing_from_the_lease() {
    // Longer than any pause of the machine.
    const TTL: Duration = Duration::from_secs(10);
    let (database, _store) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    proxy.freeze(true);
    let url = proxy.url(&database.url());
    let mut connecting = Box::pin(client(&database, url, "slow to connect", TTL));
    assert!(timeout(TTL, &mut connecting).await.is_err(), "it connects while nothing gets through");
    proxy.freeze(false);
    let client = connecting.await;
    let held = taken(&client).await;
    eventually("its heartbeats begin", async || beats(&database, "slow to connect").await >= 3).await;
    assert!(!held.is_lost());
    assert_eq!(held.token(), Token::new(1));
    let sessions = database.number("select count(*) from leadergroup.session").await;
    assert_eq!(sessions, 1, "the first one was lost");
}

/// Its heartbeats arrive, and count for others, but its own lease counts from when they were sent: it must end before
/// another holder has the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_too_far_off_knows_it_before_others_have_the_lock() {
    const TTL: Duration = Duration::from_secs(2);
    let (database, _store) = migrated().await;
    let proxy = Proxy::before(Backend::of(&shared().0)).await.unwrap();
    let far = client(&database, proxy.url(&database.url()), "far", TTL).await;
    let near = client(&database, database.url(), "near", TTL).await;
    // First one way alone takes longer than the ttl, then only both ways together do.
    for one_way in [TTL * 2, TTL * 2 / 3] {
        let held = taken(&far).await;
        proxy.slow_down(one_way);
        let next = taken(&near).await;
        assert!(held.is_lost(), "two hold the lock");
        assert!(next.token() > held.token());
        timeout(DEADLINE, held.lost()).await.expect("the guard is lost");
        // Its earlier and later statements change nothing.
        assert_eq!(held.release().await.unwrap(), Released::WasLost);
        assert!(!next.is_lost());
        proxy.slow_down(Duration::ZERO);
        assert_eq!(next.release().await.unwrap(), Released::Done);
    }
}
