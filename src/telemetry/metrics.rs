//! The metrics, with one typed method per event.
//!
//! Label values come from closed sets. The exception are the series of the groups that this replica owns.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use super::{
    evidence::EvidenceSeries,
    groups::{ChangeKind, GroupReading, GroupSeries, ShownCondition},
    process::ProcessCollector,
};

/// Every metric of the process.
pub struct Metrics {
    registry: Registry,
    groups: Family<StateLabels, Gauge>,
    each_group: GroupSeries,
    failovers: Family<ReasonLabels, Counter>,
    failover_duration: Histogram,
    evidence: EvidenceSeries,
    lock_store_up: Gauge,
    lock_operations: Family<LockLabels, Counter>,
    sessions_lost: Counter,
    adoptions: Counter,
    api_writes: Family<WriteLabels, Counter>,
    events_dropped: Counter,
    hook_requests: Family<HookLabels, Counter>,
}

/// The state of an owned group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// A pod is active and confirmed.
    Active,
    /// A change of holder is under way.
    Changing,
    /// A change of holder waits for the end of a program that an agent runs.
    AwaitingProgram,
    /// No pod is active.
    Vacant,
    /// A user has paused it.
    Paused,
    /// A user must change something first.
    Stalled,
    /// It is being deleted.
    Deleting,
}

/// An operation on the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockOperation {
    /// Make a pod the holder.
    Grant,
    /// End a term.
    Vacate,
    /// Confirm a term.
    Confirm,
    /// Keep the token of a group that is gone.
    Tombstone,
}

/// The outcome of an operation on the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockOutcome {
    /// It was done.
    Done,
    /// The row did not meet the precondition.
    Refused,
    /// It failed or timed out, and may have taken effect.
    Failed,
}

/// The outcome of a write to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiOutcome {
    /// It was done.
    Done,
    /// The object had changed in the meantime, or is gone.
    Conflict,
    /// It was refused: missing rights, admission, validation.
    Refused,
    /// It failed or timed out, and may have taken effect.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LockLabels {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    hook: &'static str,
    outcome: &'static str,
}

/// From a label edit on the same machine to a lost node with the longest silence timeout, an hour.
const FAILOVER_SECONDS: [f64; 19] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
    1800.0, 3600.0,
];
/// The hooks whose requests are counted.
const HOOKS: [&str; 2] = ["promote", "demote"];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            groups: Family::default(),
            each_group: GroupSeries::default(),
            failovers: Family::default(),
            failover_duration: Histogram::new(FAILOVER_SECONDS),
            evidence: EvidenceSeries::new(),
            lock_store_up: Gauge::default(),
            lock_operations: Family::default(),
            sessions_lost: Counter::default(),
            adoptions: Counter::default(),
            api_writes: Family::default(),
            events_dropped: Counter::default(),
            hook_requests: Family::default(),
        };
        metrics.register();
        // A counter that begins at 1 shows no increase, and a sum with a counter that is missing shows nothing.
        for operation in LockOperation::ALL {
            for outcome in LockOutcome::ALL {
                drop(metrics.lock_operations.get_or_create(&LockLabels::new(operation, outcome)));
            }
        }
        for hook in HOOKS {
            for succeeded in [true, false] {
                drop(metrics.hook_requests.get_or_create(&HookLabels::new(hook, succeeded)));
            }
        }
        metrics
    }

    /// With counters at zero for failovers of these reasons, and for each outcome of these writes to the API server.
    #[must_use]
    pub fn counting(
        self,
        reasons: impl IntoIterator<Item = impl fmt::Display>,
        writes: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        for reason in reasons {
            drop(self.failovers.get_or_create(&ReasonLabels { reason: reason.to_string() }));
        }
        for kind in writes {
            for outcome in ApiOutcome::ALL {
                drop(self.api_writes.get_or_create(&WriteLabels { kind, outcome: outcome.word() }));
            }
        }
        self
    }

    /// With metrics that another part of the process counts itself.
    #[must_use]
    pub fn with(mut self, register: impl FnOnce(&mut Registry)) -> Self {
        register(&mut self.registry);
        self
    }

    fn register(&mut self) {
        // The process metrics have their standard names, without a prefix, so that common dashboards find them.
        self.registry.register_collector(Box::new(ProcessCollector::new()));
        let registry = self.registry.sub_registry_with_prefix("leadergroup");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The running build", build);
        registry.register("groups", "Groups that this replica owns, by state", self.groups.clone());
        self.each_group.register(registry);
        registry.register(
            "failovers",
            "Changes from one active pod to another, by reason",
            self.failovers.clone(),
        );
        registry.register_with_unit(
            "failover_duration",
            "Time from the last answer of a silent active pod, or from the first evidence against another one, to the \
             confirmation of the new term",
            Unit::Seconds,
            self.failover_duration.clone(),
        );
        self.evidence.register(registry);
        registry.register(
            "lock_store_up",
            "1 if this replica could use the lock's database at the last attempt, otherwise 0",
            self.lock_store_up.clone(),
        );
        registry.register(
            "lock_operations",
            "Requested changes of lock rows, by operation and outcome",
            self.lock_operations.clone(),
        );
        registry.register(
            "lock_sessions_lost",
            "Sessions of this replica that expired or were ended by others",
            self.sessions_lost.clone(),
        );
        registry.register("adoptions", "Groups adopted from another replica", self.adoptions.clone());
        registry.register(
            "api_writes",
            "Writes to the API server, by kind and outcome",
            self.api_writes.clone(),
        );
        registry.register(
            "events_dropped",
            "Kubernetes Events not sent because too many were waiting",
            self.events_dropped.clone(),
        );
        registry.register(
            "hook_requests",
            "Requests that tell pods their role, by hook and outcome",
            self.hook_requests.clone(),
        );
    }

    /// Sets the number of owned groups in a state.
    pub fn set_groups(&self, state: GroupState, count: usize) {
        self.groups
            .get_or_create(&StateLabels { state: state.word() })
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the series of an owned group. `outage` is the time since the last call for which no active pod worked.
    pub fn set_group(&self, namespace: &str, name: &str, reading: GroupReading, outage: Duration) {
        self.each_group.set(namespace, name, reading, outage);
    }

    /// Sets the conditions of a group that no replica can own. Several replicas may show them.
    pub fn set_unowned_group(&self, namespace: &str, name: &str, conditions: &[ShownCondition]) {
        self.each_group.set_unowned(namespace, name, conditions);
    }

    /// The holder of an owned group has changed.
    pub fn holder_changed(&self, namespace: &str, name: &str, kind: ChangeKind) {
        self.each_group.changed(namespace, name, kind);
    }

    /// Removes the gauges of a group that is owned by another replica.
    pub fn disown_group(&self, namespace: &str, name: &str) {
        self.each_group.disown(namespace, name);
    }

    /// Removes all series of a group that is gone.
    pub fn forget_group(&self, namespace: &str, name: &str) {
        self.each_group.forget(namespace, name);
    }

    /// A failover was completed, `duration` after the former pod was last known to work. `reason` must come from a
    /// closed set.
    pub fn failover(&self, reason: impl fmt::Display, duration: Duration) {
        self.failovers.get_or_create(&ReasonLabels { reason: reason.to_string() }).inc();
        self.failover_duration.observe(duration.as_secs_f64());
    }

    /// A probe ended. `outcome` is `success`, `refused`, `unanswered`, `hint` or `void`. `took` is the time until the
    /// answer, if there was one.
    pub fn probe(&self, outcome: &'static str, took: Option<Duration>) {
        self.evidence.probe(outcome, took);
    }

    /// Sets the number of probed pods.
    pub fn set_probe_targets(&self, count: usize) {
        self.evidence.set_targets(count);
    }

    /// Sets for how long the watch of a resource has failed.
    pub fn set_watch_failing(&self, resource: &'static str, time: Duration) {
        self.evidence.set_failing(resource, time);
    }

    /// The lock's database could be used at the last attempt, or not. Not, before the first attempt.
    pub fn set_lock_store_up(&self, up: bool) {
        self.lock_store_up.set(i64::from(up));
    }

    /// A pod was sent the request of a hook, `promote` or `demote`, and has accepted it or not.
    pub fn hook_request(&self, hook: &'static str, succeeded: bool) {
        self.hook_requests.get_or_create(&HookLabels::new(hook, succeeded)).inc();
    }

    /// A change of a lock row ended.
    pub fn lock_operation(&self, operation: LockOperation, outcome: LockOutcome) {
        self.lock_operations.get_or_create(&LockLabels::new(operation, outcome)).inc();
    }

    /// The lock's session expired, or another replica ended it.
    pub fn session_lost(&self) {
        self.sessions_lost.inc();
    }

    /// A group was adopted from another replica.
    pub fn adoption(&self) {
        self.adoptions.inc();
    }

    /// A write to the API server ended. `kind` is what was written, such as `active` or `status`.
    pub fn api_write(&self, kind: &'static str, outcome: ApiOutcome) {
        self.api_writes.get_or_create(&WriteLabels { kind, outcome: outcome.word() }).inc();
    }

    /// A Kubernetes Event was dropped.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// All metrics in the text format of `OpenMetrics`.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl GroupState {
    fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Changing => "changing",
            Self::AwaitingProgram => "awaiting_program",
            Self::Vacant => "vacant",
            Self::Paused => "paused",
            Self::Stalled => "stalled",
            Self::Deleting => "deleting",
        }
    }
}

impl LockLabels {
    fn new(operation: LockOperation, outcome: LockOutcome) -> Self {
        Self { operation: operation.word(), outcome: outcome.word() }
    }
}

impl HookLabels {
    fn new(hook: &'static str, succeeded: bool) -> Self {
        Self { hook, outcome: if succeeded { "succeeded" } else { "failed" } }
    }
}

impl LockOperation {
    const ALL: [Self; 4] = [Self::Grant, Self::Vacate, Self::Confirm, Self::Tombstone];

    fn word(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Vacate => "vacate",
            Self::Confirm => "confirm",
            Self::Tombstone => "tombstone",
        }
    }
}

impl LockOutcome {
    const ALL: [Self; 3] = [Self::Done, Self::Refused, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl ApiOutcome {
    const ALL: [Self; 4] = [Self::Done, Self::Conflict, Self::Refused, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
