//! What holders publish, and who sees it.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, Key, Leader, LockError, Reason, Released, Store, Tried, blocking,
};

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, database, eventually, migrated};

const OFTEN: Duration = Duration::from_millis(20);

async fn client(store: &Store, name: &str) -> Client {
    let config = ClientConfig { name: name.into(), ..ClientConfig::default() };
    Client::connect(store.clone(), config).await.unwrap()
}

/// The name of a leader, and what it has published.
fn shown(leader: Option<&Leader>) -> Option<(&str, Option<&str>)> {
    leader.map(|leader| (leader.holder.name.as_str(), leader.data.as_deref()))
}

#[tokio::test]
async fn what_a_holder_publishes_is_shown_until_its_term_ends() {
    let (database, store) = migrated().await;
    let (one, two, key) = (client(&store, "one").await, client(&store, "two").await, key("a"));
    assert_eq!(store.leader(&key).await.unwrap(), None);
    let guard = one.lock(&key, DEADLINE).await.unwrap();
    let leader = store.leader(&key).await.unwrap();
    assert_eq!(shown(leader.as_ref()), Some(("one", None)));
    for data in ["http://one:1", "", "http://one:2"] {
        guard.publish(data).await.unwrap();
        let leader = store.leader(&key).await.unwrap();
        assert_eq!(shown(leader.as_ref()), Some(("one", Some(data))));
        assert_eq!(leader.unwrap().token, guard.token());
    }
    let info = store.list("", None, 10).await.unwrap();
    assert_eq!(info[0].data.as_deref(), Some("http://one:2"));
    assert_eq!(guard.release().await.unwrap(), Released::Done);
    assert_eq!(store.leader(&key).await.unwrap(), None);

    // The next holder has published nothing.
    let guard = two.lock(&key, DEADLINE).await.unwrap();
    assert_eq!(shown(store.leader(&key).await.unwrap().as_ref()), Some(("two", None)));
    guard.publish("http://two").await.unwrap();
    assert_eq!(shown(store.leader(&key).await.unwrap().as_ref()), Some(("two", Some("http://two"))));

    // The row goes with the key.
    drop(guard);
    database.sql("delete from leadergroup.lock").await;
    assert_eq!(database.number("select count(*) from leadergroup.published").await, 0);
}

#[tokio::test]
async fn nothing_is_published_without_the_key_and_a_late_statement_hides_nothing() {
    let (database, store) = migrated().await;
    let (one, two, key) = (client(&store, "one").await, client(&store, "two").await, key("a"));
    let old = one.lock(&key, DEADLINE).await.unwrap();
    let token = old.token();
    store.force_release(&key, token, "by hand").await.unwrap();
    let error = old.publish("late").await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error}");
    let guard = two.lock(&key, DEADLINE).await.unwrap();
    guard.publish("two").await.unwrap();

    // A statement of this term that is carried out after a later one.
    let session = "(select session from leadergroup.lock)";
    let late =
        format!("select leadergroup.publish({session}, 'a', {}, -1, 'late')::int::bigint", guard.token());
    assert_eq!(database.number(&late).await, 1, "it holds the key");
    assert_eq!(shown(store.leader(&key).await.unwrap().as_ref()), Some(("two", Some("two"))));
    // As if it had been checked before its term ended, and the row were written after the next holder's.
    database.sql("update leadergroup.published set token = token + 1").await;
    let late = late.replace("-1", "9");
    assert_eq!(database.number(&late).await, 1);
    assert_eq!(database.number("select count(*) from leadergroup.published where data = 'two'").await, 1);

    let long = "x".repeat(4_097);
    for wrong in [long.as_str(), "nul \0"] {
        let error = guard.publish(wrong).await.unwrap_err();
        assert!(matches!(error, ClientError::Lock(LockError::Invalid { what: "data", .. })), "{error}");
    }
}

#[tokio::test]
async fn an_observer_sees_each_holder_its_data_and_the_end_of_its_session() {
    let (database, store) = migrated().await;
    let (one, two, key) = (client(&store, "one").await, client(&store, "two").await, key("a"));
    let mut observer = store.observe(&key, OFTEN);
    assert_eq!(observer.changed().await.unwrap(), None);
    let guard = one.lock(&key, DEADLINE).await.unwrap();
    assert_eq!(shown(observer.changed().await.unwrap().as_ref()), Some(("one", None)));
    guard.publish("http://one").await.unwrap();
    assert_eq!(shown(observer.changed().await.unwrap().as_ref()), Some(("one", Some("http://one"))));

    // The observer is dropped in the middle, and asked again.
    assert!(tokio::time::timeout(OFTEN * 3, observer.changed()).await.is_err(), "nothing has changed");
    let waiting = tokio::spawn({
        let (two, key) = (two.clone(), key.clone());
        async move { two.lock(&key, DEADLINE).await.unwrap() }
    });
    eventually("the second one waits", async || {
        database.number("select count(*) from leadergroup.waiter").await == 1
    })
    .await;
    let _ = guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert_eq!(shown(observer.changed().await.unwrap().as_ref()), Some(("two", None)));

    // A session that was marked dead holds nothing, although its row may still name it.
    database.sql("update leadergroup.session set dead = true, dead_at = now() where name = 'two'").await;
    assert_eq!(observer.changed().await.unwrap(), None);
    database.sql("delete from leadergroup.session where name = 'two'").await;
    assert_eq!(store.leader(&key).await.unwrap(), None, "nor does one whose row was pruned");
    drop(next);
}

#[tokio::test]
async fn an_observer_reports_errors_and_goes_on() {
    let (database, store) = migrated().await;
    let (one, key) = (client(&store, "one").await, key("a"));
    let mut observer = store.observe(&key, OFTEN);
    assert_eq!(observer.changed().await.unwrap(), None);
    database.sql("alter table leadergroup.published rename to away").await;
    observer.changed().await.unwrap_err();
    database.sql("alter table leadergroup.away rename to published").await;
    assert_eq!(observer.changed().await.unwrap(), None, "it is known again");
    database.sql("alter table leadergroup.published rename to away").await;
    observer.changed().await.unwrap_err();
    let _guard = one.lock(&key, DEADLINE).await.unwrap();
    database.sql("alter table leadergroup.away rename to published").await;
    let mut answer = observer.changed().await;
    while answer.is_err() {
        answer = observer.changed().await;
    }
    assert_eq!(shown(answer.unwrap().as_ref()), Some(("one", None)));
}

#[test]
fn blocking_programs_publish_and_observe_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_database, config): (Database, _) = runtime.block_on(async {
        let database = database().await;
        database.store().migrate().await.unwrap();
        let config = database.config();
        (database, config)
    });
    let config_of = ClientConfig { name: "one".into(), ..ClientConfig::default() };
    let client = blocking::Client::connect(Store::new(&config).unwrap(), config_of).unwrap();
    let key = Key::new("a").unwrap();
    let mut observer = client.observe(&key, OFTEN);
    assert_eq!(observer.changed(Duration::ZERO).unwrap(), blocking::Seen::Nobody);
    assert_eq!(observer.changed(OFTEN * 3).unwrap(), blocking::Seen::Unchanged);
    let guard = client.try_lock_or_why(&key).unwrap().held().unwrap();
    guard.publish("http://one").unwrap();
    assert_eq!(shown(client.leader(&key).unwrap().as_ref()), Some(("one", Some("http://one"))));
    let blocking::Seen::Leader(seen) = observer.changed(DEADLINE).unwrap() else { panic!("a change") };
    assert_eq!(seen.holder.name, "one");
    assert!(matches!(client.try_lock_or_why(&key).unwrap(), Tried::NotHeld(Reason::Others)));
    client.shutdown().unwrap();
}
