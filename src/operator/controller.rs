//! The loop: one message at a time, and the effects it leads to.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    claim::{self, LARGEST_CLAIM, falls_to},
    connectivity::{Lag, OwnNetwork},
    events::Voice,
    executor::Performer,
    group::{Charge, Entry, Probing},
    message::{GroupName, Message, Watched},
    resync::Schedule,
    selection::Roster,
    status::{self, Hindrance},
    watch_health::Watches,
};
use crate::{
    api::{HistoryEntry, HumanDuration},
    election::{Effect, Event, Finished, Phase},
    health::{Monotonic, NodeLeases, ProbeEvent, Prober},
    routing::{GroupRef, Router},
};
use leadergroup_lock::{SessionId, Store};

/// How long a normal exit lets changes of holder under way come to their end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// After how long without the database a deletion no longer waits for it, and the outage is reported.
pub(super) const OUTAGE_PATIENCE: Duration = Duration::from_secs(10);
/// How often the words for an outage may change.
const REWORDING: Duration = Duration::from_mins(1);
/// How often the loop turns at least.
const IDLE: Duration = Duration::from_secs(1);
/// The most messages handled before timers get their turn.
const BURST: usize = 256;
/// Changes of holder kept in the status.
const KEPT_HISTORY: usize = 10;
/// How long a change of holder may go on before it is reported: a report on each of its steps would only compete with
/// the next one for the API server.
const QUICK_CHANGE: Duration = Duration::from_millis(500);
/// After a failed report.
pub(super) const REPORT_PAUSE: Duration = Duration::from_secs(1);

/// What the loop works with.
pub(super) struct Parts {
    pub(super) cluster: String,
    pub(super) router: Router,
    pub(super) store: Store,
    pub(super) prober: Prober,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) voice: Voice,
    /// The namespaces that are watched, each for itself; empty: all, together.
    pub(super) namespaces: Vec<String>,
    /// After how long without a heartbeat this replica no longer believes to be in charge of anything.
    pub(super) session_ttl: Duration,
    /// What may be on its way to the API server besides changes of holder: they must not wait behind thousands of reports.
    pub(super) background: Arc<Semaphore>,
}

/// The lock as last heard of.
#[derive(Default)]
pub(super) struct LockView {
    pub(super) own: Option<SessionId>,
    pub(super) living: Vec<SessionId>,
    /// Those of them that seem to have stopped beating.
    pub(super) suspects: Vec<SessionId>,
    /// When the last heartbeat that succeeded was sent.
    pub(super) beaten_at: Duration,
    pub(super) outage: Option<Outage>,
}

/// Something that keeps this replica from working for all groups alike.
#[derive(Clone)]
pub(super) struct Outage {
    pub(super) since: Duration,
    pub(super) problem: String,
    /// When the problem was last put into words: what varies from attempt to attempt is not reported anew each time.
    pub(super) worded_at: Duration,
}

impl Outage {
    /// The outage goes on, with this problem.
    pub(super) fn goes_on(before: Option<Self>, problem: &str, now: Duration) -> Self {
        let new = Self { since: now, problem: problem.to_owned(), worded_at: now };
        match before {
            None => new,
            Some(before) if now.saturating_sub(before.since) < OUTAGE_PATIENCE => {
                Self { since: before.since, ..new }
            }
            Some(before) if now.saturating_sub(before.worded_at) >= REWORDING => {
                Self { since: before.since, ..new }
            }
            Some(before) => before,
        }
    }

    pub(super) fn lasts(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= OUTAGE_PATIENCE
    }
}

/// The loop's state.
pub(super) struct Driver {
    pub(super) parts: Parts,
    pub(super) entries: HashMap<GroupName, Entry>,
    pub(super) roster: Roster,
    pub(super) owners: HashMap<Arc<str>, GroupName>,
    pub(super) leases: NodeLeases,
    pub(super) lock: LockView,
    pub(super) network: OwnNetwork,
    pub(super) lag: Lag,
    /// Groups that cannot be read, by UID and generation: what was told about them.
    pub(super) unreadable: HashMap<GroupName, (String, Option<i64>)>,
    /// Objects of a list that is being read, by watch and scope.
    pub(super) listing: HashMap<(Watched, Option<Arc<str>>), BTreeSet<String>>,
    pub(super) watches: Watches,
    /// Groups to look at again in this turn.
    pub(super) touched: BTreeSet<GroupName>,
    timers: BTreeSet<(Duration, GroupName)>,
    deadlines: HashMap<GroupName, Duration>,
    pub(super) claiming: bool,
    pub(super) audits: Schedule,
    draining: bool,
    pub(super) tasks: JoinSet<()>,
}

impl Driver {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            watches: Watches::new(&parts.namespaces),
            parts,
            entries: HashMap::new(),
            roster: Roster::default(),
            owners: HashMap::new(),
            leases: NodeLeases::default(),
            lock: LockView::default(),
            network: OwnNetwork::default(),
            lag: Lag::default(),
            unreadable: HashMap::new(),
            listing: HashMap::new(),
            touched: BTreeSet::new(),
            timers: BTreeSet::new(),
            deadlines: HashMap::new(),
            claiming: false,
            audits: Schedule::default(),
            draining: false,
            tasks: JoinSet::new(),
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
        let mut gauged = Duration::ZERO;
        loop {
            let now = Monotonic::now();
            if drained_by.is_some_and(|by| now >= by || !self.is_unfinished()) {
                break;
            }
            let next = self.timers.first().map_or(IDLE, |(at, _)| at.saturating_sub(now).min(IDLE));
            tokio::select! {
                () = shutdown.cancelled(), if drained_by.is_none() => {
                    tracing::info!("stopping: changes under way are finished, then the groups are handed over");
                    self.draining = true;
                    drained_by = Some(now + DRAIN_TIMEOUT);
                }
                Some(message) = inbox.recv() => {
                    self.take(message);
                    for _ in 0..BURST {
                        let Ok(message) = inbox.try_recv() else { break };
                        self.take(message);
                    }
                }
                Some(event) = probed.recv() => {
                    self.probed(&event);
                    for _ in 0..BURST {
                        let Ok(event) = probed.try_recv() else { break };
                        self.probed(&event);
                    }
                }
                () = sleep_until(Instant::now() + next) => {}
            }
            while self.tasks.try_join_next().is_some() {}
            self.turn();
            self.parts.voice.liveness.touch();
            if Monotonic::now() >= gauged + IDLE {
                gauged = Monotonic::now();
                self.parts.voice.gauges(self.entries.values());
                self.parts.voice.metrics.set_probe_targets(self.parts.prober.len());
            }
        }
    }

    /// Whether something was begun in a group of ours that should not be left half done, or is still to be told: nobody
    /// else knows of a change that this replica has just finished.
    fn is_unfinished(&self) -> bool {
        let at_rest = |phase: &Phase| {
            matches!(
                phase,
                Phase::Stable | Phase::Observing | Phase::Reading | Phase::BackingOff { .. } | Phase::Retired
            )
        };
        self.entries
            .values()
            .any(|entry| entry.reporting || (entry.charge == Charge::Ours && !at_rest(entry.machine.phase())))
    }

    /// Looks at every group that something happened to, or whose time has come.
    pub(super) fn turn(&mut self) {
        let now = Monotonic::now();
        while let Some((at, name)) = self.timers.first().cloned()
            && at <= now
        {
            self.timers.remove(&(at, name.clone()));
            self.deadlines.remove(&name);
            self.touched.insert(name);
        }
        for name in std::mem::take(&mut self.touched) {
            self.look(&name, now);
        }
        self.claim(now);
        self.audit(now);
    }

    /// Whether the database has been away for so long that nothing waits for it any more.
    pub(super) fn lock_away(&self, now: Duration) -> bool {
        self.lock.outage.as_ref().is_some_and(|outage| outage.lasts(now))
    }

    /// Shows one group the world, and does what it says.
    fn look(&mut self, name: &GroupName, now: Duration) {
        let lock_away = self.lock_away(now);
        let Some(entry) = self.entries.get_mut(name) else {
            if let Some(at) = self.deadlines.remove(name) {
                self.timers.remove(&(at, name.clone()));
            }
            return;
        };
        let probing = probing(entry, &self.lock);
        entry.aim(probing, &mut self.parts.prober);
        let lock_away = lock_away && entry.deleting_for(now) >= OUTAGE_PATIENCE;
        let world = entry.world(&self.leases, now, lock_away);
        if self.draining && matches!(entry.machine.phase(), Phase::Stable) {
            // Nothing new is begun; what was done may not have been told yet.
            return self.report(name, now);
        }
        let event = if *entry.machine.world() == world { Event::Tick } else { Event::World(world) };
        self.step(name, event, now);
    }

    /// One step of a group's election, its effects, its report and its timer.
    pub(super) fn step(&mut self, name: &GroupName, event: Event, now: Duration) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        for (ticket, effect) in entry.machine.step(event, now) {
            if let Effect::Finished(finished) = effect {
                finish(entry, &finished);
                self.parts.voice.finished(&entry.object, &finished);
                continue;
            }
            let performer = Performer {
                router: self.parts.router.clone(),
                store: self.parts.store.clone(),
                session: self.lock.own,
                name: entry.name.clone(),
                group: entry.group.clone(),
                object: entry.object.clone(),
                key: entry.key.clone(),
                tag: entry.tag.clone(),
                metrics: self.parts.voice.metrics.clone(),
            };
            let messages = self.parts.messages.clone();
            // A stamp that fences a term off is a step of a change, and waits for nothing.
            let waits = matches!(effect, Effect::Read) || entry.machine.is_stamping(ticket);
            let queue = waits.then(|| self.parts.background.clone());
            self.tasks.spawn(async move {
                let _turn = in_turn(queue).await;
                let done = performer.perform(ticket, effect).await;
                // The loop is gone only when the process ends.
                let _ = messages.send(Message::Done(Box::new(done))).await;
            });
        }
        if matches!(entry.machine.phase(), Phase::Stable) && !entry.machine.busy() {
            entry.trouble = None;
        }
        if entry.charge == Charge::Ours && !entry.machine.is_owned() {
            entry.charge = Charge::Open;
        }
        if matches!(entry.machine.phase(), Phase::Retired) {
            entry.charge = Charge::Open;
        }
        entry.quiet_until =
            entry.machine.is_changing().then(|| entry.quiet_until.unwrap_or(now + QUICK_CHANGE));
        let later = entry.quiet_until.into_iter().chain([entry.report_after]).filter(|at| *at > now);
        let deadline = entry.deadline(&self.leases, now).into_iter().chain(later).min();
        self.set_timer(name, deadline);
        self.report(name, now);
    }

    fn set_timer(&mut self, name: &GroupName, at: Option<Duration>) {
        let before = match at {
            Some(at) => self.deadlines.insert(name.clone(), at),
            None => self.deadlines.remove(name),
        };
        if before != at {
            if let Some(before) = before {
                self.timers.remove(&(before, name.clone()));
            }
            if let Some(at) = at {
                self.timers.insert((at, name.clone()));
            }
        }
    }

    /// Writes the group's status if it should read otherwise and this replica is the one to say so.
    pub(super) fn report(&mut self, name: &GroupName, now: Duration) {
        let Some(entry) = self.entries.get(name) else { return };
        let never_seen = entry.status().is_none_or(|status| status.observed_generation < 0);
        let hindrance = self.hindrance(&name.namespace, never_seen, now);
        let ours = match &entry.charge {
            Charge::Ours => true,
            Charge::Foreign(_) => {
                self.lock.own.is_some() && falls_to(&entry.key, self.lock.living.iter()) == self.lock.own
            }
            // Nobody is in charge, and the user should still learn why nothing happens: once, so that a replica which
            // alone lost its way to the database does not quarrel with the one in charge.
            _ => hindrance.is_some() && !entry.hindrance_reported,
        };
        let Some(entry) = self.entries.get_mut(name) else { return };
        let quiet = entry.quiet_until.is_some_and(|until| now < until);
        if !ours || quiet || entry.unreadable.is_some() || entry.reporting || now < entry.report_after {
            return;
        }
        if matches!(entry.machine.phase(), Phase::Reading) && !never_seen && entry.trouble.is_none() {
            return;
        }
        let wanted = status::status(entry, hindrance.as_ref(), entry.settles(now));
        entry.hindrance_reported = hindrance.is_some();
        let Some(patch) = status::patch(entry, &wanted) else { return };
        if let Some(news) = status::news(entry.status(), &wanted) {
            tracing::warn!(group = %name, reason = news.reason, problem = news.message, "the group is not ready");
        }
        entry.reporting = true;
        let (router, messages) = (self.parts.router.clone(), self.parts.messages.clone());
        let (group, uid, reference) = (name.clone(), entry.uid.clone(), entry.group.clone());
        let queue = self.parts.background.clone();
        self.tasks.spawn(async move {
            let _turn = in_turn(Some(queue)).await;
            let object = router.report(&reference, &patch).await;
            let object = object.map(Box::new).map_err(|error| super::message::Trouble::from(&error));
            let _ = messages.send(Message::Reported { group, uid, object }).await;
        });
    }

    /// What keeps this replica from working for any group of a namespace, once it is worth telling: a group that was never reported on
    /// hears of it at once.
    fn hindrance(&self, namespace: &Arc<str>, never_seen: bool, now: Duration) -> Option<Hindrance> {
        let worth_telling = |outage: &&Outage| never_seen || outage.lasts(now);
        let lock = self.lock.outage.as_ref().filter(worth_telling);
        let watch = self.watches.blindness(namespace).filter(worth_telling);
        lock.map(|outage| Hindrance::Lock(outage.problem.clone()))
            .or_else(|| watch.map(|outage| Hindrance::Pods(outage.problem.clone())))
    }

    /// Claims the groups that nobody is in charge of and that fall to this replica.
    fn claim(&mut self, now: Duration) {
        let Some(own) = self.lock.own else { return };
        if self.claiming || self.draining || self.lock.outage.is_some() {
            return;
        }
        let living = &self.lock.living;
        let due = self.entries.values_mut().filter(|entry| entry.claim_due);
        let mut keys = BTreeSet::new();
        let wishes: Vec<_> = due
            .filter_map(|entry| {
                if keys.contains(&entry.key) {
                    // Another group has the same key. One claim cannot ask for it twice; the next one asks for this.
                    return None;
                }
                let deleting = entry.object.metadata.deletion_timestamp.is_some();
                if !self.watches.allow_claim(&entry.name.namespace, deleting, now) {
                    return None;
                }
                entry.claim_due = false;
                entry.wants_claim(own, living, now).then(|| {
                    keys.insert(entry.key.clone());
                    // A doubt that comes up while the answer is on its way is about what comes after it.
                    entry.doubted = None;
                    if !matches!(entry.charge, Charge::Other(_)) {
                        entry.charge = Charge::Claiming;
                    }
                    entry.wish()
                })
            })
            .take(LARGEST_CLAIM)
            .collect();
        if wishes.is_empty() {
            return;
        }
        self.claiming = true;
        let (store, router) = (self.parts.store.clone(), self.parts.router.clone());
        let messages = self.parts.messages.clone();
        self.tasks.spawn(async move {
            let answers = claim::claim(store, router, own, wishes).await;
            let _ = messages.send(Message::Claimed { session: own, answers }).await;
        });
    }

    /// Reads whether an owner selects its pods by the role label.
    pub(super) fn ask_for_owner(
        &mut self,
        group: GroupName,
        uid: Arc<str>,
        reference: GroupRef,
        owner: OwnerReference,
    ) {
        let (router, messages) = (self.parts.router.clone(), self.parts.messages.clone());
        let queue = self.parts.background.clone();
        self.tasks.spawn(async move {
            let _turn = in_turn(Some(queue)).await;
            let selects = router.selects_by_role(&reference, &owner).await;
            let selects = selects.map_err(|error| super::message::Trouble::from(&error));
            let _ = messages.send(Message::Owner { group, uid, owner, selects }).await;
        });
    }

    /// Puts this replica in charge of a group.
    pub(super) fn charged(&mut self, name: &GroupName, now: Duration) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.charged_at = now;
        }
        self.step(name, Event::Owned { seed: Uuid::new_v4() }, now);
        self.touched.insert(name.clone());
    }
}

/// Waits for one of the places in the background, if it has to.
async fn in_turn(queue: Option<Arc<Semaphore>>) -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed.
    queue?.acquire_owned().await.ok()
}

/// Which pods of the group this replica is to probe.
fn probing(entry: &Entry, lock: &LockView) -> Probing {
    if entry.object.metadata.deletion_timestamp.is_some() {
        return Probing::None;
    }
    match entry.charge {
        Charge::Ours | Charge::Claiming | Charge::Open => Probing::All,
        Charge::Foreign(_) => Probing::None,
        Charge::Other(session) => {
            let others = lock.living.iter().filter(|id| **id != session && !lock.suspects.contains(id));
            if lock.own.is_some() && falls_to(&entry.key, others) == lock.own {
                // Should it fall to this replica, there must be fresh evidence of every pod by then.
                if lock.suspects.contains(&session) { Probing::All } else { Probing::Holder }
            } else {
                Probing::None
            }
        }
    }
}

/// Writes a change of holder down, and tells about it.
fn finish(entry: &mut Entry, finished: &Finished) {
    let name = |pod: &Option<crate::api::PodRef>| pod.as_ref().map(|pod| pod.name.clone());
    tracing::info!(
        group = %entry.name,
        token = finished.token,
        from = name(&finished.from),
        to = name(&finished.to),
        reason = %finished.reason,
        took_ms = u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
        "the holder changed"
    );
    let at = jiff::Timestamp::now().as_second();
    entry.history.insert(
        0,
        HistoryEntry {
            token: finished.token,
            from: name(&finished.from),
            to: name(&finished.to),
            reason: finished.reason.to_string(),
            // Whole seconds and milliseconds: what the API server gives back must compare equal to what was written.
            at: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                jiff::Timestamp::from_second(at).unwrap_or_default(),
            ),
            duration: HumanDuration(Duration::from_millis(
                u64::try_from(finished.took.as_millis()).unwrap_or(u64::MAX),
            )),
        },
    );
    entry.history.truncate(KEPT_HISTORY);
}
