//! Hints: LISTEN on a connection of its own. They only make a program look earlier than its next poll would.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::{sleep, timeout};

use super::hold::turn_channel;
use super::pool::{Lane, Pool};
use super::pooler;
use super::store::{CHANNEL, YIELDED};
use super::{Hint, LockError, SessionId, Store};

/// Without a word for this long the connection is tried: a path that swallows packets would otherwise look like silence.
const QUIET: Duration = Duration::from_secs(30);

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// A word for those who wait for keys, or hold them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Words may have been missed: about anything.
    Missed,
    /// A session ended, and what it held is free.
    Freed,
    /// It is this request's turn, or its term was ended by somebody else.
    About(uuid::Uuid),
}

struct Listening {
    pool: Pool,
    channels: Vec<String>,
    listener: Option<PgListener>,
    /// Which place the listener is connected to.
    generation: u64,
    pause: Duration,
}

impl Store {
    /// Hints that something changed, for ever: after a failure the connection is made anew, with growing pauses up to half
    /// a minute. Uses one connection while it is polled. Begins with [`Hint::Missed`] once it listens.
    pub fn listen(&self) -> impl Stream<Item = Hint> + Send + 'static {
        self.listen_on(vec![CHANNEL.to_owned()]).map(|heard| match heard.as_deref() {
            None => Hint::Missed,
            Some(YIELDED) => Hint::Yielded,
            Some(_) => Hint::ChargeFree,
        })
    }

    /// As [`listen`](Self::listen), for those who wait for keys or hold them by this session.
    pub(super) fn listen_for_turns(&self, session: SessionId) -> impl Stream<Item = Word> + Send + 'static {
        self.listen_on(vec![CHANNEL.to_owned(), turn_channel(session)]).map(|heard| match heard {
            None => Word::Missed,
            Some(payload) => payload.parse().map_or(Word::Freed, Word::About),
        })
    }

    /// The payloads; `None` when some may have been missed.
    fn listen_on(&self, channels: Vec<String>) -> impl Stream<Item = Option<String>> + Send + 'static {
        let start = Listening {
            pool: self.pool.clone(),
            channels,
            listener: None,
            generation: 0,
            pause: SHORTEST_PAUSE,
        };
        futures::stream::unfold(start, |mut state| async move {
            let heard = state.next().await;
            Some((heard, state))
        })
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
                    // Until the URL leads elsewhere.
                    Ok(None) => sleep(LONGEST_PAUSE).await,
                    Err(error) => {
                        tracing::debug!(%error, "no hints for now; polling goes on");
                        sleep(self.pause).await;
                        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    }
                }
                continue;
            };
            let heard = timeout(QUIET, listener.try_recv()).await;
            if self.generation != self.pool.generation() {
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

    /// `None` if no word ever comes this way: through a pooler, whoever listens hears nothing.
    async fn connect(&mut self) -> Result<Option<PgListener>, LockError> {
        let route = self.pool.route().await?;
        self.generation = route.generation;
        if self.pool.is_pooled(route.generation) {
            return Ok(None);
        }
        // The driver's listener wants a pool of the driver's; one connection, made anew by us, never by it.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(self.pool.limit())
            .connect_lazy_with(self.pool.settings(Lane::Work).startup(route.options.clone()));
        let listening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.ignore_pool_close_event(true);
            listener.eager_reconnect(false);
            if !pooler::is_direct(&mut listener).await? {
                return Ok(None);
            }
            listener.listen_all(self.channels.iter().map(String::as_str)).await?;
            Ok(Some(listener))
        };
        match timeout(self.pool.limit() * 2, listening).await {
            Ok(Ok(Some(listener))) => Ok(Some(listener)),
            Ok(Err(error)) if !pooler::is_refusal(&error) => Err(route.error(&error)),
            Ok(_) => {
                self.pool.pooler_found(route.generation);
                Ok(None)
            }
            Err(_) => Err(LockError::Timeout { statement: "listen", after: self.pool.limit() * 2 }),
        }
    }
}
