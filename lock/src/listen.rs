//! LISTEN on a connection of its own. A hint makes a program check earlier than its next poll, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::{sleep, timeout};

use crate::pool::{Lane, Pool};
use crate::pooler;
use crate::process::Process;
use crate::route::{Place, endpoint};
use crate::store::YIELDED;
use crate::url::Wanted;
use crate::{GrantId, LockError, SessionId, Store};

/// The channel that all sessions listen on.
const CHANNEL: &str = "leadergroup";

/// After this long without a notification, the connection is tested: a network that drops packets would otherwise look
/// like silence.
const QUIET: Duration = Duration::from_secs(30);

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// How long a process keeps listening after its last wait: the next one may come soon.
const LINGER: Duration = Duration::from_secs(10);

/// A hint that something changed. Hints may be lost or late, so correctness rests on polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// A session ended, or a key was released by force: something may be free.
    Freed,
    /// A living session gave up claims.
    Yielded,
    /// Hints may have been missed (the connection was made, or made again).
    Missed,
}

/// A notification for a program's own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Notifications may have been missed, or a session ended: check all requests.
    All,
    /// It is this request's turn.
    About(GrantId),
}

struct Listening {
    pool: Pool,
    channels: Vec<String>,
    listener: Option<PgListener>,
    /// The place that the listener is connected to.
    place: Option<Arc<Place>>,
    pause: Duration,
}

impl Store {
    /// An endless stream of hints that something changed. After a failure, the connection is made again, with growing
    /// pauses of up to half a minute. Uses one connection while it is polled. Begins with [`Hint::Missed`] once it
    /// listens.
    pub fn listen(&self) -> impl Stream<Item = Hint> + Send + 'static {
        self.listen_on(vec![CHANNEL.to_owned()]).map(|heard| match heard.as_deref() {
            None => Hint::Missed,
            Some(YIELDED) => Hint::Yielded,
            Some(_) => Hint::Freed,
        })
    }

    /// The notifications for the requests of this session.
    fn listen_for(&self, session: SessionId) -> impl Stream<Item = Word> + Send + 'static {
        let own = format!("leadergroup_{}", session.as_uuid().simple());
        self.listen_on(vec![CHANNEL.to_owned(), own]).map(|heard| {
            let grant = heard.and_then(|payload| payload.parse::<uuid::Uuid>().ok());
            grant.map_or(Word::All, |grant| Word::About(grant.into()))
        })
    }

    /// The payloads; `None` when some may have been missed.
    fn listen_on(&self, channels: Vec<String>) -> impl Stream<Item = Option<String>> + Send + 'static {
        let start = Listening {
            pool: self.pool.clone(),
            channels,
            listener: None,
            place: None,
            pause: SHORTEST_PAUSE,
        };
        futures::stream::unfold(start, |mut state| async move {
            let heard = state.next().await;
            Some((heard, state))
        })
    }
}

/// Wakes waiters. Listens only while there are any, because every listener makes each NOTIFY of the server slower. Runs
/// until it is dropped.
pub(crate) async fn listen(process: Arc<Process>) {
    let mut lease = process.lease.subscribe();
    loop {
        process.turns.somebody_waits().await;
        let session = lease.borrow_and_update().session;
        let mut words = std::pin::pin!(process.store.listen_for(session));
        let heard = async {
            while let Some(word) = words.next().await {
                match word {
                    Word::About(grant) => process.turns.wake(grant),
                    Word::All => process.turns.wake_all(),
                }
            }
        };
        tokio::select! {
            // The stream is endless, and the lease's sender lives as long as this task.
            () = heard => {}
            _ = lease.wait_for(|now| now.session != session) => {}
            () = process.turns.nobody_waits_for(LINGER) => {}
        }
    }
}

impl Listening {
    async fn next(&mut self) -> Option<String> {
        loop {
            let Some(listener) = &mut self.listener else {
                match self.connect().await {
                    Ok(Some(listener)) => {
                        self.listener = Some(listener);
                        self.pause = SHORTEST_PAUSE;
                        return None;
                    }
                    // The URL may point elsewhere later.
                    Ok(None) => sleep(LONGEST_PAUSE).await,
                    Err(error) => {
                        tracing::debug!(%error, "no notifications for now; polling continues");
                        sleep(self.pause).await;
                        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    }
                }
                continue;
            };
            let heard = timeout(QUIET, listener.try_recv()).await;
            if !self.place.as_ref().is_some_and(|place| self.pool.still_leads_to(place)) {
                self.listener = None;
                continue;
            }
            match heard {
                Ok(Ok(Some(heard))) => return Some(heard.payload().to_owned()),
                Ok(Ok(None) | Err(_)) => self.listener = None,
                Err(_) => {
                    let alive =
                        timeout(self.pool.limit(), sqlx::query("select 1").execute(&mut *listener)).await;
                    if !matches!(alive, Ok(Ok(_))) {
                        self.listener = None;
                    }
                }
            }
        }
    }

    /// `None` behind a pooler, where a listener receives no notifications.
    async fn connect(&mut self) -> Result<Option<PgListener>, LockError> {
        let route = self.pool.route().await?;
        self.place = Some(Arc::clone(&route.place));
        if route.place.is_pooled() {
            return Ok(None);
        }
        let mut attempts = route.attempts(self.pool.limit() * 2);
        while let Some((host, limit)) = attempts.next() {
            match timeout(limit, self.listen_to(host, route.place.wanted())).await {
                Ok(Ok(listener)) => {
                    attempts.worked();
                    if listener.is_none() {
                        route.place.pooler_found();
                    }
                    return Ok(listener);
                }
                Ok(Err(failure)) => attempts.failed(host, failure.told(&endpoint(host))),
                Err(_) => attempts.failed(host, LockError::Timeout { statement: "listen", after: limit }),
            }
        }
        Err(attempts.error())
    }

    /// Listens to one server. `None` if it is reached through a pooler.
    async fn listen_to(
        &self,
        host: &PgConnectOptions,
        wanted: Wanted,
    ) -> Result<Option<PgListener>, pooler::Failure> {
        // The driver's listener needs a pool of the driver: one connection, which is replaced here, never by the
        // driver.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(self.pool.limit())
            .connect_lazy_with(self.pool.settings(Lane::Work).startup(host.clone()));
        let mut listener = match PgListener::connect_with(&pool).await {
            Ok(listener) => listener,
            Err(error) if pooler::is_refusal(&error) => return Ok(None),
            Err(error) => return Err(pooler::Failure::Connecting(error)),
        };
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        let seen = pooler::look(&mut listener).await.map_err(pooler::Failure::Asking)?;
        if !seen.is(wanted) {
            return Err(pooler::Failure::Unfit);
        }
        if !seen.direct {
            return Ok(None);
        }
        let channels = self.channels.iter().map(String::as_str);
        listener.listen_all(channels).await.map_err(pooler::Failure::Asking)?;
        Ok(Some(listener))
    }
}
