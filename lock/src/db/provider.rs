//! Connection options that the program itself gives: for credentials that expire, and TLS settings of its own.

use std::error::Error;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use crate::LockError;

/// Only one task calls the provider at a time.
pub(crate) type Turn = OwnedMutexGuard<()>;

type Options = Result<PgConnectOptions, Box<dyn Error + Send + Sync>>;

/// Gives the options of each new connection, in place of a URL: for passwords that expire, such as the tokens of cloud
/// databases or the credentials of a secrets service, and for the driver's TLS settings.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use leadergroup_lock::{DatabaseConfig, PgConnectOptions, PgSslMode, Provider, Store};
///
/// let options = PgConnectOptions::new()
///     .host("db.example")
///     .username("app")
///     .database("app")
///     .ssl_mode(PgSslMode::VerifyFull);
/// let provider = Provider::new(move || {
///     let options = options.clone();
///     async move { Ok(options.password(&token().await?)) }
/// });
/// let store = Store::new(&DatabaseConfig { provider: Some(provider), ..DatabaseConfig::default() })?;
/// # Ok(())
/// # }
/// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
/// ```
///
/// [`PgConnectOptions`] is the type of sqlx, whose versions are therefore part of this crate's interface: a breaking
/// release of sqlx means a breaking release of this crate. Use the type through this crate, and no dependency on
/// sqlx is needed. Options that never change are a provider by `From`.
///
/// - The closure is called for each new connection, by one task at a time. It must not block the thread. Its future,
///   with the wait for the calls before it, may take
///   [`statement_timeout`](crate::DatabaseConfig::statement_timeout) before the connection is made, and may be dropped
///   at any time. Cache what is slow or limited in number.
/// - A failure, or a panic, is [`LockError::Provider`] for that statement, and the next one calls again. The text of
///   the error is part of errors and logs, so it must contain no secret.
/// - A new password alone closes no connection. When the options name another server, database or user than before, the
///   connections to the former place are closed. So return the same user for as long as its connections may be used. A
///   change is noticed with the next new connection, at the latest after
///   [`connection_max_lifetime`](crate::DatabaseConfig::connection_max_lifetime).
/// - The options are used as they are, including the TLS mode, which is the driver's `prefer` unless it is set: that
///   verifies nothing. Only statement logging is disabled, and settings of the server that the lock needs are added. An
///   application name is set if there is none.
/// - There is one host, and no check of what kind of server it is: the options must lead to the primary.
/// - Threads with their own runtime call it as well: those of [`blocking`](crate::blocking) and of
///   [`heartbeat_thread`](crate::ClientConfig::heartbeat_thread).
#[derive(Clone)]
pub struct Provider {
    provide: Arc<dyn Fn() -> BoxFuture<'static, Options> + Send + Sync>,
    turn: Arc<Mutex<()>>,
}

impl Provider {
    /// A provider that calls this closure for each new connection.
    pub fn new<F>(provide: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<PgConnectOptions, Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        Self { provide: Arc::new(move || Box::pin(provide())), turn: Arc::default() }
    }

    /// The options for one connection. The next call waits until the turn is dropped: use the options before, so that
    /// an answer does not undo a later one.
    pub(crate) async fn options(&self, limit: Duration) -> Result<(PgConnectOptions, Turn), LockError> {
        // The heartbeat must outlive a panic of the program's code.
        let call = async {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            (AssertUnwindSafe(async { (self.provide)().await }).catch_unwind().await, turn)
        };
        let detail = match timeout(limit, call).await {
            Ok((Ok(Ok(options)), turn)) => return Ok((options, turn)),
            Ok((Err(_), _)) => "it panicked".to_owned(),
            Ok((Ok(Err(error)), _)) => {
                let first: &dyn Error = &*error;
                let causes = std::iter::successors(Some(first), |&error| error.source());
                causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
            }
            Err(_) => format!("no answer within {} ms", limit.as_millis()),
        };
        Err(LockError::Provider { detail })
    }
}

impl From<PgConnectOptions> for Provider {
    fn from(options: PgConnectOptions) -> Self {
        Self::new(move || std::future::ready(Ok(options.clone())))
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider(…)")
    }
}
