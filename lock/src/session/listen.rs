//! LISTEN on a connection of its own. A hint makes a program check earlier than its next poll, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::{sleep, timeout};

use crate::db::database::{ENDED, YIELDED};
use crate::db::pool::{Lane, Pool};
use crate::db::pooler;
use crate::db::route::{Place, endpoint};
use crate::db::statement::{Bind, Notification, Statement};
use crate::db::url::Wanted;
#[cfg(feature = "memory")]
use crate::memory::Heard;
use crate::session::process::Process;
use crate::types::check_text;
use crate::{GrantId, Key, LockError, SessionId, Store};

/// The channel that all sessions listen on.
const CHANNEL: &str = "leadergroup";

/// The channel for what sessions tell their peers. The payload begins with the peers' name and a line feed.
const PEERS: &str = "leadergroup_peers";

const TELL: Statement = Statement {
    name: "message to peers",
    sql: "select set_config('synchronous_commit', 'off', true), pg_notify('leadergroup_peers', $1 || e'\\n' || word) \
          from unnest($2::text[]) as word",
};

/// The longest message to peers, in bytes. PostgreSQL allows 7,999 for a payload, with the peers' name.
pub const LONGEST_MESSAGE: usize = 6_000;

/// After this long without a notification, the connection is tested: a network that drops packets would otherwise look
/// like silence.
const QUIET: Duration = Duration::from_secs(30);

/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// How long a process keeps listening after its last wait: the next one may come soon.
const LINGER: Duration = Duration::from_secs(10);

/// A hint that something changed. Hints may be lost or late, so correctness rests on polling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// A session ended, or a key was released by force: something may be free. While no request waits in a queue, the
    /// end of a session [without peers](crate::controller::SessionConfig::peers) is not reported.
    Freed,
    /// A session that lives gave up its claim to this key.
    Yielded(Key),
    /// Hints may have been missed (the connection was made, or made again).
    Missed,
    /// A message of a peer, or of this session, to a controller.
    Told(String),
}

/// A notification for a program's own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Notifications may have been missed, or something may be free: check all requests.
    All,
    /// This session has ended: check the requests that it was in the way of.
    Ended(SessionId),
    /// It is this request's turn.
    About(GrantId),
}

/// A connection that listens.
enum Listener {
    Server(Box<PgListener>),
    #[cfg(feature = "memory")]
    Memory(Heard),
}

impl Listener {
    /// The next notification; none if the connection has broken.
    async fn next(&mut self) -> Option<Notification> {
        match self {
            Self::Server(listener) => {
                let heard = listener.try_recv().await.ok()??;
                let (channel, payload) = (heard.channel().to_owned(), heard.payload().to_owned());
                Some(Notification { channel, payload })
            }
            #[cfg(feature = "memory")]
            Self::Memory(heard) => heard.next().await,
        }
    }

    /// Whether the server answers.
    async fn answers(&mut self) -> bool {
        match self {
            Self::Server(listener) => sqlx::query("select 1").execute(&mut **listener).await.is_ok(),
            #[cfg(feature = "memory")]
            Self::Memory(heard) => heard.answers().await,
        }
    }
}

struct Listening {
    pool: Pool,
    channels: Vec<String>,
    listener: Option<Listener>,
    /// The place that the listener is connected to.
    place: Option<Arc<Place>>,
    pause: Duration,
}

impl Store {
    /// An endless stream of hints that something changed. After a failure, the connection is made again, with growing
    /// pauses of up to half a minute. Uses one connection while it is polled. Begins with [`Hint::Missed`] once it
    /// listens.
    #[cfg_attr(feature = "controller", visibility::make(pub))]
    pub(crate) fn listen(&self) -> impl Stream<Item = Hint> + Send + 'static {
        self.listen_on(vec![CHANNEL.to_owned()]).map(|heard| hint(heard.as_ref()))
    }

    /// Like [`listen`](Self::listen), and what the sessions with these peers tell each other as well.
    #[cfg(feature = "controller")]
    pub fn listen_among(&self, peers: &str) -> impl Stream<Item = Hint> + Send + 'static {
        let peers = peers.to_owned();
        self.listen_on(vec![CHANNEL.to_owned(), PEERS.to_owned()]).filter_map(move |heard| {
            let hint = match heard {
                Some(heard) if heard.channel == PEERS => {
                    let word = heard.payload.split_once('\n').filter(|(to, _)| *to == peers);
                    word.map(|(_, word)| Hint::Told(word.to_owned()))
                }
                heard => Some(hint(heard.as_ref())),
            };
            std::future::ready(hint)
        })
    }

    /// Sends messages to all sessions with these peers that [listen](Self::listen_among) at this moment, the sender
    /// included, in one statement. A message has at most [`LONGEST_MESSAGE`] bytes. It may be lost, and behind a pooler
    /// it is: nothing but speed, or a choice between two safe ways, may depend on it.
    #[cfg(feature = "controller")]
    pub async fn tell(&self, peers: &str, messages: &[String]) -> Result<(), LockError> {
        check_text("session's peers", peers)?;
        if messages.iter().any(|message| message.len() > LONGEST_MESSAGE) {
            let problem = format!("is longer than {LONGEST_MESSAGE} bytes");
            return Err(LockError::Invalid { what: "message", problem });
        }
        self.database.rows(TELL, Bind::new().with(peers)?.with(messages)?).await.map(drop)
    }

    /// The notifications for the requests of this session.
    fn listen_for(&self, session: SessionId) -> impl Stream<Item = Word> + Send + 'static {
        let own = format!("leadergroup_{}", session.as_uuid().simple());
        self.listen_on(vec![CHANNEL.to_owned(), own]).filter_map(|heard| {
            let word = match heard.as_ref().map(|heard| heard.payload.as_str()) {
                // Programs do not claim keys.
                Some(word) if word.starts_with(YIELDED) => None,
                Some(word) => {
                    let id = |text: &str| text.parse::<uuid::Uuid>().ok();
                    let ended = word.strip_prefix(ENDED).and_then(id).map(|ended| Word::Ended(ended.into()));
                    let about = || id(word).map(|grant| Word::About(grant.into()));
                    Some(ended.or_else(about).unwrap_or(Word::All))
                }
                None => Some(Word::All),
            };
            std::future::ready(word)
        })
    }

    /// The notifications; `None` when some may have been missed.
    fn listen_on(&self, channels: Vec<String>) -> impl Stream<Item = Option<Notification>> + Send + 'static {
        let start = Listening {
            pool: self.database.pool.clone(),
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

fn hint(heard: Option<&Notification>) -> Hint {
    match heard.map(|heard| heard.payload.as_str()) {
        None => Hint::Missed,
        Some(word) => {
            let key = word.strip_prefix(YIELDED).and_then(|key| Key::new(key).ok());
            key.map_or(Hint::Freed, Hint::Yielded)
        }
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
                    Word::Ended(session) => process.turns.wake_those_behind(session),
                    Word::All => process.turns.wake_all(),
                }
            }
        };
        tokio::select! {
            // In this order, so that a simulation can repeat a run.
            biased;
            // The stream is endless, and the lease's sender lives as long as this task.
            () = heard => {}
            _ = lease.wait_for(|now| now.session != session) => {}
            () = process.turns.nobody_waits_for(LINGER) => {}
        }
    }
}

impl Listening {
    async fn next(&mut self) -> Option<Notification> {
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
            let heard = timeout(QUIET, listener.next()).await;
            if !self.place.as_ref().is_some_and(|place| self.pool.still_leads_to(place)) {
                self.listener = None;
                continue;
            }
            match heard {
                Ok(Some(heard)) => return Some(heard),
                Ok(None) => self.listener = None,
                Err(_) => {
                    if timeout(self.pool.limit(), listener.answers()).await != Ok(true) {
                        self.listener = None;
                    }
                }
            }
        }
    }

    /// `None` behind a pooler, where a listener receives no notifications.
    async fn connect(&mut self) -> Result<Option<Listener>, LockError> {
        let route = self.pool.route().await?;
        self.place = Some(Arc::clone(&route.place));
        #[cfg(feature = "memory")]
        if let Some(client) = self.pool.memory() {
            let heard = client.listen(&self.channels, self.pool.limit() * 2).await?;
            return Ok(Some(Listener::Memory(heard)));
        }
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
                    return Ok(listener.map(|listener| Listener::Server(Box::new(listener))));
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
