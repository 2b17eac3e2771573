//! How evidence reaches this replica: by probes, and by watches of the API server.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// From a pod on the same node to the longest timeouts in use.
const PROBE_SECONDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The outcomes of probes.
const OUTCOMES: [&str; 5] = ["success", "refused", "unanswered", "hint", "void"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: &'static str,
}

pub(super) struct EvidenceSeries {
    probes: Family<OutcomeLabels, Counter>,
    probe_duration: Histogram,
    probe_targets: Gauge,
    watch_failing: Family<ResourceLabels, Gauge<f64, AtomicU64>>,
}

impl EvidenceSeries {
    pub(super) fn new() -> Self {
        Self {
            probes: Family::default(),
            probe_duration: Histogram::new(PROBE_SECONDS),
            probe_targets: Gauge::default(),
            watch_failing: Family::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("probes", "Probes of pods, by outcome", self.probes.clone());
        // A counter that begins at 1 shows no increase.
        for outcome in OUTCOMES {
            drop(self.probes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register_with_unit(
            "probe_duration",
            "Time from sending a probe to its answer, as far as there was one",
            Unit::Seconds,
            self.probe_duration.clone(),
        );
        registry.register("probe_targets", "Pods that this replica probes", self.probe_targets.clone());
        registry.register_with_unit(
            "watch_failing",
            "How long the watch of a resource has failed, 0 if it does not",
            Unit::Seconds,
            self.watch_failing.clone(),
        );
    }

    pub(super) fn probe(&self, outcome: &'static str, took: Option<Duration>) {
        self.probes.get_or_create(&OutcomeLabels { outcome }).inc();
        if let Some(took) = took {
            self.probe_duration.observe(took.as_secs_f64());
        }
    }

    pub(super) fn set_targets(&self, count: usize) {
        self.probe_targets.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn set_failing(&self, resource: &'static str, time: Duration) {
        self.watch_failing.get_or_create(&ResourceLabels { resource }).set(time.as_secs_f64());
    }
}
