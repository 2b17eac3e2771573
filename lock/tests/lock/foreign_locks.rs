//! Any role of the database may take any advisory lock, including that of a key. This delays an acquisition, but not
//! for long, and the answer names the role.

use std::time::Duration;

use leadergroup_lock::{
    Client, ClientConfig, ClientError, DatabaseConfig, Reason, Refusal, Store, Token,
    controller::Granted,
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::cast::{grant, grant_one, granted, holder, key, session, take, why};
use crate::holders::{self, release, wish};
use crate::postgres::{Database, PASSWORD, ROLE, migrated};

/// Another program in the same database, without any privilege on the lock's schema.
struct Stranger {
    connection: PgConnection,
    name: String,
    process: i32,
}

impl Stranger {
    async fn connect(database: &Database) -> Self {
        let name = format!("stranger_{}", database.name);
        database.sql(&format!("create role {name} login password '{PASSWORD}'")).await;
        let url = database.url().replace(&format!("{ROLE}:"), &format!("{name}:"));
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let process = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
        Self { connection, name, process }
    }

    /// The lock's role may end its connections.
    async fn can_be_ended(&self, database: &Database) {
        database.sql(&format!("grant {} to {ROLE}", self.name)).await;
    }

    /// `pg_advisory_lock`, for instance, with the number of the key `a`.
    async fn call(&mut self, database: &Database, function: &str) {
        let id = database.number("select leadergroup.fence_id('a')").await;
        self.connection.execute(AssertSqlSafe(format!("select {function}({id})"))).await.unwrap();
    }

    fn is_named_by(&self, text: &str) -> bool {
        text.contains(&format!("process {} of role {}", self.process, self.name))
    }

    /// Its connection has not been terminated.
    async fn lives(&mut self) {
        self.connection.execute("select 1").await.unwrap();
    }
}

/// A store whose statements fail if they take longer than this.
fn impatient(database: &Database) -> Store {
    Store::new(&DatabaseConfig { statement_timeout: Duration::from_secs(3), ..database.config() }).unwrap()
}

#[tokio::test]
async fn an_exclusive_lock_of_another_role_makes_a_key_busy_and_is_not_ended() {
    let (database, _store) = migrated().await;
    let store = impatient(&database);
    let own = session(&store).await;
    let mut stranger = Stranger::connect(&database).await;
    // It could be terminated, but only what looks like a fenced transaction is.
    stranger.can_be_ended(&database).await;
    stranger.call(&database, "pg_advisory_lock").await;
    // A key that was never used, and one that was released.
    for token in 1..=2 {
        for wait in [Wait::No, Wait::InQueue] {
            let attempt = store.acquire(own, &wish("p0"), wait).await.unwrap();
            assert_eq!(attempt.outcome, Acquired::Refused(Refusal::Busy), "{wait:?}");
            let blockers = attempt.blockers.unwrap();
            assert!(stranger.is_named_by(&blockers) && blockers.contains("held exclusively"), "{blockers}");
        }
        stranger.lives().await;
        // Other keys are not affected.
        let other = AcquireRequest::new(key(&format!("b{token}")), holder("p0"), "test");
        assert_eq!(store.acquire(own, &other, Wait::No).await.unwrap().outcome, holders::granted(1));
        stranger.call(&database, "pg_advisory_unlock").await;
        assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, holders::granted(token));
        // It does not prevent the holder from releasing.
        stranger.call(&database, "pg_advisory_lock").await;
        assert_eq!(release(&store, own, token).await, leadergroup_lock::Changed::Done);
    }
}

/// A lock that looks like a fenced transaction, of a role whose connections this role may not terminate.
#[tokio::test]
async fn a_shared_lock_of_another_role_makes_a_key_busy_and_is_named() {
    let (database, _store) = migrated().await;
    let store = impatient(&database);
    let own = session(&store).await;
    let mut stranger = Stranger::connect(&database).await;
    stranger.call(&database, "pg_advisory_lock_shared").await;
    for wait in [Wait::No, Wait::InQueue] {
        let attempt = store.acquire(own, &wish("p0"), wait).await.unwrap();
        assert_eq!(attempt.outcome, Acquired::Refused(Refusal::Busy), "{wait:?}");
        let blockers = attempt.blockers.unwrap();
        assert!(stranger.is_named_by(&blockers) && blockers.contains("fenced transaction"), "{blockers}");
    }
    stranger.lives().await;
    stranger.call(&database, "pg_advisory_unlock_shared").await;
    assert_eq!(store.acquire(own, &wish("p0"), Wait::No).await.unwrap().outcome, holders::granted(1));
}

#[tokio::test]
async fn a_controllers_grant_is_refused_in_time() {
    let (database, _store) = migrated().await;
    let store = impatient(&database);
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    let mut stranger = Stranger::connect(&database).await;
    for function in ["pg_advisory_lock_shared", "pg_advisory_lock"] {
        if function == "pg_advisory_lock" {
            stranger.can_be_ended(&database).await;
        }
        stranger.call(&database, function).await;
        let refused = Granted::Refused(Refusal::Busy);
        assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, refused, "{function}");
        stranger.lives().await;
        stranger.call(&database, &function.replace("_lock", "_unlock")).await;
    }
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_who_is_in_the_way() {
    let (database, _store) = migrated().await;
    let config = ClientConfig { ttl: Duration::from_secs(9), ..ClientConfig::default() };
    let client = Client::connect(impatient(&database), config).await.unwrap();
    let mut stranger = Stranger::connect(&database).await;
    stranger.call(&database, "pg_advisory_lock").await;
    let reason = why(client.try_lock_or_why(&key("a")).await.unwrap());
    assert!(matches!(reason, Reason::Busy { .. }) && stranger.is_named_by(&reason.to_string()), "{reason}");
    let error = client.lock(&key("a"), Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(&error, ClientError::Deadline { reason: Reason::Busy { .. }, .. }), "{error}");
    assert!(stranger.is_named_by(&error.to_string()), "{error}");
    stranger.lives().await;
    let waiting = tokio::spawn(async move { client.lock(&key("a"), crate::postgres::DEADLINE).await });
    stranger.call(&database, "pg_advisory_unlock").await;
    assert!(waiting.await.unwrap().unwrap().token() > Token::ZERO);
}
