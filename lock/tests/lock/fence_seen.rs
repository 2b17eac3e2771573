//! `leadergroup.fence_seen`: the fence for data in a database other than the lock's.

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use leadergroup_lock::admin::FENCE_SEEN_SQL;

use crate::fence::{Application, LEVELS, STALE, application, begin, run};
use crate::postgres::{Database, PASSWORD, ROLE, database, eventually, migrated};

async fn installed() -> (Database, Application) {
    let database = database().await;
    database.sql(FENCE_SEEN_SQL).await;
    let application = application(&database).await;
    (database, application)
}

async fn seen(connection: &mut PgConnection, token: i64) -> Result<(), String> {
    run(connection, &format!("select leadergroup.fence_seen('a', {token})")).await
}

async fn open(application: &Application, level: &str, token: i64) -> PgConnection {
    let mut connection = application.connect().await;
    begin(&mut connection, level).await;
    assert_eq!(seen(&mut connection, token).await, Ok(()), "{level}, token {token}");
    connection
}

#[tokio::test]
async fn tokens_below_the_largest_one_committed_are_refused() {
    let (database, application) = installed().await;
    database.sql(FENCE_SEEN_SQL).await;
    for (number, level) in (0..).zip(LEVELS) {
        let first = 10 * number + 5;
        let mut bank = open(&application, level, first).await;
        run(&mut bank, "commit").await.unwrap();
        for (token, expected) in [(first, Ok(())), (first - 1, Err(STALE.to_owned())), (first + 1, Ok(()))] {
            begin(&mut bank, level).await;
            assert_eq!(seen(&mut bank, token).await, expected, "{level}, token {token}");
            run(&mut bank, "commit").await.unwrap();
        }
        // A transaction that was rolled back does not count as seen.
        begin(&mut bank, level).await;
        assert_eq!(seen(&mut bank, first + 2).await, Ok(()));
        run(&mut bank, "rollback").await.unwrap();
        assert_eq!(seen(&mut bank, first + 1).await, Ok(()));
    }
    let mut bank = application.connect().await;
    assert_eq!(run(&mut bank, "select leadergroup.fence_seen(null, 1)").await, Err("22004".to_owned()));
    assert_eq!(run(&mut bank, "delete from leadergroup.fence_mark").await, Err("42501".to_owned()));
    let error = bank.execute("select leadergroup.fence_seen('a', 1)").await.unwrap_err();
    assert!(error.to_string().contains("token 1 of key \"a\" is outdated"), "{error}");
}

/// A role that an administrator has named for a key, and another application of the same database.
#[tokio::test]
async fn the_mark_of_a_key_with_a_role_is_raised_by_its_members_only() {
    let (database, application) = installed().await;
    let (owner, member) = (format!("owner_{}", database.name), format!("member_{}", database.name));
    let mark = format!(
        "create role {owner}; create role {member} login password '{PASSWORD}' in role {owner};
         grant usage on schema leadergroup to {owner};
         insert into leadergroup.fence_mark (key, token, role) values ('a', 0, '{owner}')"
    );
    database.sql(&mark).await;
    let mut other = application.connect().await;
    for call in ["fence_seen('a', 9007199254740991)", "fence_mark_raise('a', 9007199254740991)"] {
        assert_eq!(
            run(&mut other, &format!("select leadergroup.{call}")).await,
            Err("42501".to_owned()),
            "{call}"
        );
    }
    // It is the caller that counts, however the session became this role.
    assert_eq!(run(&mut other, &format!("set role {owner}")).await, Err("42501".to_owned()));
    let url = database.url().replace(&format!("{ROLE}:"), &format!("{member}:"));
    let mut holder = PgConnection::connect(&url).await.unwrap();
    assert_eq!(seen(&mut holder, 1).await, Ok(()));
    assert_eq!(run(&mut holder, &format!("set role {owner}")).await, Ok(()));
    assert_eq!(seen(&mut holder, 2).await, Ok(()));
    assert_eq!(seen(&mut holder, 1).await, Err(STALE.to_owned()));
    let mut admin = database.admin().await;
    let impostor = format!("set role {}", application.role());
    assert_eq!(run(&mut admin, &impostor).await, Ok(()));
    assert_eq!(
        seen(&mut admin, 3).await,
        Err("42501".to_owned()),
        "the set role counts, not the one behind it"
    );
    assert_eq!(database.number("select token from leadergroup.fence_mark").await, 2);
    // It may be installed over itself, and over a version without roles.
    database.sql(FENCE_SEEN_SQL).await;
    database.sql("alter table leadergroup.fence_mark drop column role").await;
    database.sql(FENCE_SEEN_SQL).await;
    assert_eq!(seen(&mut other, 3).await, Ok(()), "no role is named any more");
}

/// It works beside the lock's own schema in the same database, whichever was installed first.
#[tokio::test]
async fn it_can_live_beside_the_lock() {
    let (database, store) = migrated().await;
    database.sql(FENCE_SEEN_SQL).await;
    let application = application(&database).await;
    assert_eq!(seen(&mut application.connect().await, 1).await, Ok(()));
    store.migrate().await.unwrap();

    let (database, _application) = installed().await;
    database.sql(&format!("alter schema leadergroup owner to {ROLE}")).await;
    database.store().migrate().await.unwrap();
}

#[tokio::test]
async fn transactions_with_the_same_token_do_not_wait_for_each_other() {
    let (_database, application) = installed().await;
    open(&application, "read committed", 1).await.execute("commit").await.unwrap();
    let mut all = Vec::new();
    for level in LEVELS.iter().cycle().take(9) {
        // Waiting for any transaction would last for ever.
        all.push(open(&application, level, 1).await);
    }
    for mut bank in all {
        assert_eq!(run(&mut bank, "commit").await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_transaction_of_a_term_waits_for_those_of_the_term_before() {
    for level in LEVELS {
        let (database, application) = installed().await;
        open(&application, level, 1).await.execute("commit").await.unwrap();
        let mut old = open(&application, level, 1).await;
        let new = tokio::spawn({
            let application = application.clone();
            async move { open(&application, level, 2).await }
        });
        eventually("the new one waits", async || database.waiting().await == 1).await;
        let mut late = application.connect().await;
        begin(&mut late, level).await;
        late.execute("select 1 from pg_class limit 1").await.unwrap();
        let late = tokio::spawn(async move { seen(&mut late, 1).await });
        eventually("a late one of the old term waits, too", async || database.waiting().await == 2).await;
        assert_eq!(run(&mut old, "commit").await, Ok(()));
        let mut new = new.await.unwrap();
        assert!(!late.is_finished());
        assert_eq!(run(&mut new, "commit").await, Ok(()));
        let refused = late.await.unwrap().unwrap_err();
        assert!(refused == STALE || level != "read committed" && refused == "40001", "{level}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_never_ends_is_ended_unless_configured_otherwise() {
    for level in LEVELS {
        let (database, application) = installed().await;
        let mut old = open(&application, level, 1).await;
        run(&mut old, "commit").await.unwrap();
        begin(&mut old, level).await;
        assert_eq!(seen(&mut old, 1).await, Ok(()));

        let mut new = application.connect().await;
        new.execute("set leadergroup.fence_patience = '30ms'; set lock_timeout = '200ms'").await.unwrap();
        new.execute("set leadergroup.fence_terminate = off").await.unwrap();
        assert_eq!(seen(&mut new, 2).await, Err("55P03".to_owned()), "{level}: waits as long as it may");
        new.execute("reset leadergroup.fence_terminate; set lock_timeout = '20s'").await.unwrap();
        assert_eq!(seen(&mut new, 2).await, Ok(()), "{level}");
        assert_eq!(database.number("select token from leadergroup.fence_mark").await, 2);
        assert!(run(&mut old, "commit").await.is_err(), "{level}: the old one was ended");
        let timeout: String = sqlx::query_scalar("show lock_timeout").fetch_one(&mut new).await.unwrap();
        assert_eq!(timeout, "20s", "the application's own setting is as before");
    }
}
