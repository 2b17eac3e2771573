//! The database: its tables, its clock, its past, and what can happen to it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::failure::Failure;
use super::network::{Call, End, Fate, Network};
use super::random::Random;
use super::signal::{Signal, Subscription};
use super::tables::Tables;
use super::transaction::{Transaction, reads};
use crate::db::statement::{Notification, Row};
use crate::{Clock, protocol::EraId};

/// What the database's clock shows at first: the beginning of 2026, in microseconds since 1970.
const BEGINNING: i64 = 1_767_225_600_000_000;

/// How many of the last commits can be lost.
const KEPT_COMMITS: usize = 256;

/// Most notifications that wait for one listener. A listener that is slower loses its connection.
const UNHEARD: usize = 1_024;

/// A database in memory. Cheap to clone; a clone is the same database.
///
/// It runs the statements of a [`Store`](crate::Store) as PostgreSQL does, one at a time, without SQL. Statements and
/// connections have a [`Fate`] that the test decides, and the database itself can [restart](Self::restart),
/// [fail over](Self::fail_over_losing) and be [forked](Self::fork). Times come from tokio's clock, so a test may pause
/// it: make the database inside the runtime then. All random numbers follow from the seed.
///
/// Applications' transactions under `leadergroup.fence` do not exist here.
#[derive(Clone)]
pub struct MemoryDatabase(Arc<Server>);

struct Server {
    state: Mutex<State>,
    /// Changes when all connections are cut.
    restarts: Signal,
}

struct State {
    tables: Tables,
    timeline: u32,
    random: Random,
    clock: Clock,
    /// By how much the clock has been set.
    shift: SignedDuration,
    down: bool,
    read_only: bool,
    /// The last commits, the latest last.
    commits: VecDeque<Commit>,
    listeners: Vec<Listener>,
    network: Arc<dyn Network>,
}

struct Commit {
    statement: String,
    before: Tables,
}

#[derive(Clone)]
struct Listener {
    client: Arc<str>,
    channels: Vec<String>,
    heard: mpsc::Sender<Notification>,
}

impl fmt::Debug for MemoryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDatabase").finish_non_exhaustive()
    }
}

impl Default for MemoryDatabase {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// What identifies the past: the same for all databases in memory, and the timeline.
    fn history(&self) -> String {
        format!("memory/{:08X}", self.timeline)
    }

    fn now(&self) -> i64 {
        let micros = i64::try_from(self.clock.now().as_micros()).unwrap_or(i64::MAX);
        let shift = i64::try_from(self.shift.as_micros()).unwrap_or(i64::MAX);
        BEGINNING.saturating_add(micros).saturating_add(shift)
    }

    /// Commits what a statement changed.
    fn commit(&mut self, statement: &str, tables: Tables) {
        if tables.are_same(&self.tables) {
            return;
        }
        let before = std::mem::replace(&mut self.tables, tables);
        if self.commits.len() == KEPT_COMMITS {
            self.commits.pop_front();
        }
        self.commits.push_back(Commit { statement: statement.to_owned(), before });
    }

    /// Takes the last commits back. Returns how many there were.
    fn lose(&mut self, commits: usize) -> usize {
        let first = self.commits.len().saturating_sub(commits);
        let lost: Vec<Commit> = self.commits.drain(first..).collect();
        if let Some(earliest) = lost.first() {
            self.tables = earliest.before.clone();
        }
        lost.len()
    }
}

impl MemoryDatabase {
    /// An empty database.
    pub fn new() -> Self {
        Self::with_seed(0)
    }

    /// An empty database with other random numbers.
    pub fn with_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let era_id = random.uuid();
        let mut state = State {
            tables: Tables::new(String::new(), era_id),
            timeline: 1,
            random,
            clock: Clock::simulated(0, Duration::ZERO),
            shift: SignedDuration::ZERO,
            down: false,
            read_only: false,
            commits: VecDeque::new(),
            listeners: Vec::new(),
            network: Arc::new(|_: &Call<'_>| Fate::default()),
        };
        state.tables.meta.history = state.history();
        Self::of(state)
    }

    fn of(state: State) -> Self {
        Self(Arc::new(Server { state: Mutex::new(state), restarts: Signal::default() }))
    }

    /// Decides from now on how calls fare.
    pub fn set_network(&self, network: impl Network) {
        self.0.state.lock().network = Arc::new(network);
    }

    /// Sets the database's clock forward or back. Nothing that the lock decides depends on it.
    pub fn set_clock_by(&self, shift: SignedDuration) {
        self.0.state.lock().shift += shift;
    }

    /// Restarts the server: connections break, and notifications are lost.
    pub fn restart(&self) {
        self.0.state.lock().listeners.clear();
        self.0.restarts.give();
    }

    /// Ends the server. No connection can be made until it is [started](Self::start).
    pub fn stop(&self) {
        self.0.state.lock().down = true;
        self.restart();
    }

    /// Starts a server that was [stopped](Self::stop).
    pub fn start(&self) {
        self.0.state.lock().down = false;
    }

    /// Whether all statements but reading ones are refused, as on a standby.
    pub fn set_read_only(&self, read_only: bool) {
        self.0.state.lock().read_only = read_only;
    }

    /// A failover to a standby that lacks the last `commits`: a new timeline begins, so the next heartbeat or grant
    /// begins an era. Returns how many were lost, which is less if there were not as many: at most the last 256.
    pub fn fail_over_losing(&self, commits: usize) -> usize {
        let lost = {
            let mut state = self.0.state.lock();
            state.timeline += 1;
            state.read_only = false;
            state.lose(commits)
        };
        self.restart();
        lost
    }

    /// Takes back the last `commits` without a new timeline, as when old files are put back: the history shows nothing
    /// of it. Returns how many were lost.
    pub fn rewind(&self, commits: usize) -> usize {
        let lost = self.0.state.lock().lose(commits);
        self.restart();
        lost
    }

    /// A standby that lacks the last `commits` and is promoted while this database runs on: two primaries with one
    /// past. Programs [move](super::MemoryClient::move_to) to it.
    #[must_use]
    pub fn fork(&self, commits: usize) -> Self {
        let mut state = self.0.state.lock();
        let mut standby = State {
            tables: state.tables.clone(),
            timeline: state.timeline + 1,
            random: Random::new(state.random.next()),
            clock: state.clock,
            shift: state.shift,
            down: false,
            read_only: false,
            commits: state.commits.iter().map(Commit::again).collect(),
            listeners: Vec::new(),
            network: Arc::clone(&state.network),
        };
        drop(state);
        standby.lose(commits);
        Self::of(standby)
    }

    /// Begins an era by hand, as `leadergroup.begin_era` does. Returns its number.
    pub fn begin_era(&self, token_floor: i64) -> i64 {
        let mut state = self.0.state.lock();
        let (step, era_id) = (state.random.step(), state.random.uuid());
        let mut tables = state.tables.clone();
        tables.begin_era(step, era_id);
        tables.meta.token_floor = tables.meta.token_floor.max(token_floor);
        let begun = tables.meta.era;
        state.commit("begin era", tables);
        begun
    }

    /// By how much the number of the next era will be larger, and its id.
    pub fn next_era(&self) -> (i64, EraId) {
        let mut random = self.0.state.lock().random.clone();
        (random.step(), random.uuid().into())
    }

    /// The statements of the last commits, the latest last.
    pub fn commits(&self) -> Vec<String> {
        self.0.state.lock().commits.iter().map(|commit| commit.statement.clone()).collect()
    }

    /// All tables, and what identifies the database's past, as JSON. Times are in microseconds since 1970.
    pub fn dump(&self) -> Value {
        let (tables, history) = {
            let state = self.0.state.lock();
            (state.tables.clone(), state.history())
        };
        let mut dump = tables.dump();
        dump["history"] = history.into();
        dump
    }

    /// A stream of random numbers for a client.
    pub(super) fn random(&self) -> Random {
        Random::new(self.0.state.lock().random.next())
    }

    pub(super) fn fate(&self, client: &str, statement: &str) -> Fate {
        let network = Arc::clone(&self.0.state.lock().network);
        network.fate(&Call { client, statement })
    }

    /// What tells a connection that it was cut; none while the server is down.
    pub(super) fn connect(&self) -> Option<Subscription> {
        let state = self.0.state.lock();
        (!state.down).then(|| self.0.restarts.subscribe())
    }

    /// The notifications on these channels; none while the server is down.
    pub(super) fn listen(
        &self,
        client: &Arc<str>,
        channels: &[String],
    ) -> Option<mpsc::Receiver<Notification>> {
        let mut state = self.0.state.lock();
        let (heard, received) = mpsc::channel(UNHEARD);
        let listener = Listener { client: Arc::clone(client), channels: channels.to_vec(), heard };
        (!state.down).then(|| {
            state.listeners.push(listener);
            received
        })
    }

    /// Runs a statement, and commits it.
    pub(super) fn execute(
        &self,
        statement: &str,
        values: Vec<Value>,
        busy: bool,
    ) -> Result<Vec<Row>, Failure> {
        let mut state = self.0.state.lock();
        if state.read_only && !reads(statement) {
            return Err(Failure::new("25006", "cannot execute this in a read-only transaction"));
        }
        let (history, now) = (state.history(), state.now());
        let read_only = state.read_only;
        let mut transaction = Transaction {
            tables: state.tables.clone(),
            history: &history,
            now,
            random: &mut state.random,
            read_only,
            busy,
            notifications: Vec::new(),
        };
        let rows = transaction.run(statement, values)?;
        let Transaction { tables, notifications, .. } = transaction;
        state.commit(statement, tables);
        state.listeners.retain(|listener| !listener.heard.is_closed());
        let listeners = state.listeners.clone();
        drop(state);
        for notification in notifications {
            for listener in listeners.iter().filter(|of| of.channels.contains(&notification.channel)) {
                self.notify(listener, &notification);
            }
        }
        Ok(rows)
    }

    fn notify(&self, listener: &Listener, notification: &Notification) {
        let Fate { request, work, answer, end, .. } = self.fate(&listener.client, "notification");
        if end != End::Answered {
            return;
        }
        let (database, listener, notification) = (self.clone(), listener.clone(), notification.clone());
        let send = move || {
            if listener.heard.try_send(notification).is_err() {
                database.0.state.lock().listeners.retain(|of| !of.heard.same_channel(&listener.heard));
            }
        };
        let delay = request + work + answer;
        if delay.is_zero() {
            return send();
        }
        tokio::spawn(async move {
            sleep(delay).await;
            send();
        });
    }
}

impl Commit {
    fn again(&self) -> Self {
        Self { statement: self.statement.clone(), before: self.before.clone() }
    }
}
