//! The controller: one loop that takes messages in, looks at the groups that changed, and starts the calls that follow.
//!
//! The controller owns the channels, the prober and the tasks. What it sees goes into the [`Index`]; each group's
//! election decides. The loop never waits for a call: each runs as a task of its own that ends within a bound, and
//! sends its result as a message. So a group whose calls hang does not delay the others.

mod answers;
mod endpoints;
mod gauges;
mod look;
mod ownership;
mod requests;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use leadergroup_lock::Store;

use super::{
    executor::{Context, Executor},
    group::Group,
    index::{self, Index, timers::Timers},
    lock::resync::Schedule,
    message::Message,
    object::GroupName,
    status::{WallClock, causes::Causes, events::Events},
};
use crate::{
    health::{ProbeEvent, Prober},
    ownership::{Batches, Unclaimed, Untold},
    telemetry::{Check, Liveness},
};

/// How long a normal exit waits for changes of holder under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the loop turns at least.
const IDLE: Duration = Duration::from_secs(1);
/// The most messages that are taken in before the groups are looked at.
const BURST: usize = 256;

/// What the controller works with.
pub(super) struct Parts {
    pub(super) cluster: String,
    /// The name of the replicas that share groups among them.
    pub(super) peers: String,
    /// The namespaces that are watched, each by itself; if there are none, all together.
    pub(super) namespaces: Vec<String>,
    /// The node of this replica, if it is known.
    pub(super) node: Option<String>,
    /// After how long without a heartbeat this replica no longer counts on owning anything.
    pub(super) session_ttl: Duration,
    pub(super) wall_clock: WallClock,
    pub(super) context: Context,
    pub(super) prober: Prober,
    pub(super) events: Events,
    pub(super) health: Health,
}

/// Where the controller reports its own health.
pub(super) struct Health {
    pub(super) liveness: Liveness,
    pub(super) lock: Check,
    pub(super) watches: Check,
}

/// The state of the loop.
pub(super) struct Controller {
    cluster: String,
    /// The name of the replicas that share groups among them.
    peers: String,
    namespaces: Vec<String>,
    session_ttl: Duration,
    /// For the times that users read.
    wall_clock: WallClock,
    /// For its clock, and for ids. Its calls are the executor's.
    store: Store,
    executor: Executor,
    prober: Prober,
    events: Events,
    /// What was logged lately.
    causes: Causes,
    health: Health,
    index: Index,
    /// The groups of the index, as far as they were looked at. In an order, so that a simulation can repeat a run.
    /// Boxed, because a map reserves about twice the room that its values need, and a group takes kilobytes.
    groups: BTreeMap<GroupName, Box<Group>>,
    /// When each group has to be looked at although nothing happens.
    timers: Timers,
    /// Groups whose status waits for its turn to be written.
    unreported: VecDeque<GroupName>,
    /// Groups to claim, if they still have no owner.
    unclaimed: Unclaimed<GroupName>,
    /// A claim is on its way. Those that are being resolved do not count.
    claiming: bool,
    batches: Batches,
    /// What the other replicas are to be told.
    untold: Untold,
    resync: Schedule,
    /// The replica is stopping: no change of holder is begun any more.
    draining: bool,
}

impl Controller {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            index: Index::new(parts.cluster.clone(), &parts.namespaces, parts.session_ttl)
                .on_node(parts.node),
            cluster: parts.cluster,
            peers: parts.peers,
            namespaces: parts.namespaces,
            session_ttl: parts.session_ttl,
            wall_clock: parts.wall_clock,
            store: parts.context.store.clone(),
            executor: Executor::new(parts.context),
            prober: parts.prober,
            events: parts.events,
            causes: Causes::default(),
            health: parts.health,
            groups: BTreeMap::new(),
            timers: Timers::default(),
            unreported: VecDeque::new(),
            unclaimed: Unclaimed::default(),
            claiming: false,
            batches: Batches::default(),
            untold: Untold::default(),
            resync: Schedule::default(),
            draining: false,
        }
    }

    /// Runs until `shutdown`, and then until no change of holder is under way, within a bound.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Message>,
        mut probed: mpsc::Receiver<ProbeEvent>,
        shutdown: CancellationToken,
    ) {
        let mut drained_by: Option<Duration> = None;
        let clock = self.store.clock();
        let mut gauged = clock.now();
        loop {
            let now = clock.now();
            let unfinished = || self.groups.values().any(|group| group.is_unfinished());
            if drained_by.is_some_and(|by| now >= by || !unfinished()) {
                break;
            }
            let next = self.next_turn(now);
            tokio::select! {
                // In this order, so that a simulation can repeat a run.
                biased;
                () = shutdown.cancelled(), if drained_by.is_none() => {
                    tracing::info!("stopping: changes under way are finished, then the groups are released");
                    self.draining = true;
                    drained_by = Some(now + DRAIN_TIMEOUT);
                }
                Some(message) = inbox.recv() => self.take(message, clock.now()),
                Some(event) = probed.recv() => self.seen(index::Event::Probe(event), clock.now()),
                () = self.executor.task_ended() => {}
                () = sleep_until(Instant::now() + next) => {}
            }
            // Whichever came first: many messages do not keep the loop from what the probes show.
            for _ in 0..BURST {
                let Ok(message) = inbox.try_recv() else { break };
                self.take(message, clock.now());
            }
            for _ in 0..BURST {
                let Ok(event) = probed.try_recv() else { break };
                self.seen(index::Event::Probe(event), clock.now());
            }
            self.executor.clear();
            self.turn(clock.now());
            self.health.liveness.touch();
            let since_gauged = clock.now().saturating_sub(gauged);
            if since_gauged >= IDLE {
                gauged = clock.now();
                self.set_gauges(since_gauged, now);
            }
        }
    }

    /// How long the loop may wait for a message.
    fn next_turn(&self, now: Duration) -> Duration {
        if self.index.is_dirty() {
            return Duration::ZERO;
        }
        let deadlines = self.timers.first().into_iter().chain(self.index.next_deadline());
        let deadlines = deadlines.chain(self.untold.due());
        deadlines.min().map_or(IDLE, |at| at.saturating_sub(now).min(IDLE))
    }

    /// Takes a message in.
    pub(super) fn take(&mut self, message: Message, now: Duration) {
        match message {
            Message::Seen(event) => self.seen(event, now),
            Message::Told(message) => self.told(&message, now),
            Message::Done(done) => self.done(*done, now),
            Message::Claimed { session, answers } => {
                self.claiming = false;
                for answer in answers {
                    self.claimed(session, answer, now);
                }
            }
            Message::Resolved { session, answer } => self.claimed(session, *answer, now),
            Message::NotGiven(groups) => self.not_given(&groups, now),
            Message::Rows(rows) => self.compare(rows, now),
            Message::Published { group, uid, slice, result, step } => {
                self.published(&group, &uid, &slice, result, step);
            }
            Message::Reported { group, uid, reported } => self.reported(&group, &uid, reported, now),
        }
    }

    /// Shows an event to the index, and carries out what it asks for.
    fn apply(&mut self, event: index::Event, now: Duration) {
        for request in self.index.apply(event, now) {
            self.carry_out(request, now);
        }
    }

    /// Looks at every group that changed, or whose time has come.
    pub(super) fn turn(&mut self, now: Duration) {
        self.index.advance(now);
        while let Some(name) = self.timers.pop(now) {
            self.index.touch(&name);
        }
        for name in self.index.take_dirty() {
            self.look(&name, now);
        }
        self.report_waiting(now);
        self.claim(now);
        self.tell(now);
        self.start_resync(now);
    }
}
