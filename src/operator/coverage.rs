//! Pods that this operator cannot probe, and what that means for their group.

use std::fmt;

use crate::health::{LEASE_DURATION, PodFacts, ProbeKind, ProbeRefusal};

/// How far the pods of a group can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProbeCoverage {
    /// All of them, by a probe that a program has to answer.
    Full,
    /// By TCP connections, which the kernel accepts for a program that hangs.
    TcpOnly,
    /// A pod has no probe that can be run from outside.
    NoProbe,
    /// A probe was asked for, and cannot be carried out.
    Unusable {
        /// The first of the pods, by name.
        pod: String,
        why: ProbeRefusal,
    },
}

impl ProbeCoverage {
    /// Of these pods of a group. Those that end are not considered.
    pub(super) fn of<'a>(pods: impl Iterator<Item = &'a PodFacts>) -> Self {
        let worst = pods.filter(|pod| !pod.deleting && !pod.finished()).map(|pod| (one(pod), &pod.name));
        let worst = worst.max_by(|(one, name), (other, other_name)| {
            // Of several with the same fault, the one with the smallest name, so that the report stays the same.
            one.rank().cmp(&other.rank()).then_with(|| other_name.cmp(name))
        });
        worst.map_or(Self::Full, |(worst, _)| worst)
    }

    pub(super) fn is_probed(&self) -> bool {
        matches!(self, Self::Full | Self::TcpOnly)
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Full => 0,
            Self::TcpOnly => 1,
            Self::NoProbe => 2,
            Self::Unusable { .. } => 3,
        }
    }
}

fn one(pod: &PodFacts) -> ProbeCoverage {
    if let Some(why) = pod.probe_refusal() {
        return ProbeCoverage::Unusable { pod: pod.name.clone(), why };
    }
    match pod.probe.as_ref().ok().and_then(Option::as_ref).map(|probe| &probe.kind) {
        Some(ProbeKind::TcpSocket) => ProbeCoverage::TcpOnly,
        Some(_) => ProbeCoverage::Full,
        None => ProbeCoverage::NoProbe,
    }
}

impl fmt::Display for ProbeCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = LEASE_DURATION.as_secs();
        match self {
            Self::Full => f.write_str("the operator can probe the pods"),
            Self::TcpOnly => f.write_str(
                "the pods are probed by TCP connections, which detect a program that ended but not one that hangs: write \
                 a readinessProbe with httpGet or grpc if the program can answer one",
            ),
            Self::NoProbe => write!(
                f,
                "the pods have no probe that can be run from outside: write a readinessProbe with httpGet or grpc, or \
                 spec.health.probe. Now only the kubelet's report counts; a hang is not detected within lock.ttl, and a \
                 lost node only after {lost}s"
            ),
            Self::Unusable { pod, why } => write!(
                f,
                "{pod} cannot be probed: {why}. Until then only the kubelet's report counts; a hang is not detected \
                 within lock.ttl, and a lost node only after {lost}s"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(name: &str, readiness_probe: &Value) -> PodFacts {
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
        let pod = json!({
            "metadata": { "name": name, "uid": name },
            "spec": { "containers": [{ "name": "main", "readinessProbe": readiness_probe }] },
            "status": { "phase": "Running", "podIP": "198.18.0.9",
                "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        PodFacts::from_pod(
            &serde_json::from_value(pod).expect("a pod"),
            &serde_json::from_value(spec).expect("a spec"),
        )
    }

    #[test]
    fn the_worst_pod_decides_and_of_equal_ones_the_first_by_name() {
        let http = facts("http", &json!({ "httpGet": { "port": 80 } }));
        let tcp = facts("tcp", &json!({ "tcpSocket": { "port": 80 } }));
        let none = facts("none", &Value::Null);
        let [b, a] = ["b", "a"].map(|name| facts(name, &json!({ "httpGet": { "port": "nope" } })));
        let of = |pods: &[&PodFacts]| ProbeCoverage::of(pods.iter().copied());
        let why = ProbeRefusal::UnknownPort("nope".to_owned());
        assert_eq!(of(&[]), ProbeCoverage::Full);
        assert_eq!(of(&[&http]), ProbeCoverage::Full);
        assert_eq!(of(&[&tcp, &http]), ProbeCoverage::TcpOnly);
        assert_eq!(of(&[&tcp, &none, &http]), ProbeCoverage::NoProbe);
        assert_eq!(of(&[&b, &none, &a]), ProbeCoverage::Unusable { pod: "a".to_owned(), why });
        let ended = PodFacts { deleting: true, ..a };
        assert_eq!(of(&[&ended, &http]), ProbeCoverage::Full);
    }

    #[test]
    fn a_ready_pod_without_an_address_cannot_be_probed() {
        let http = facts("http", &json!({ "httpGet": { "port": 80 } }));
        let nowhere = PodFacts { ip: None, ..http };
        let unusable = ProbeCoverage::of(std::iter::once(&nowhere));
        assert!(!unusable.is_probed());
        let text = unusable.to_string();
        assert!(text.starts_with("http cannot be probed: the pod is ready but has no address;"), "{text}");
        let starting = PodFacts { readiness: crate::health::Readiness::Unknown, ..nowhere };
        assert_eq!(ProbeCoverage::of(std::iter::once(&starting)), ProbeCoverage::Full, "it comes later");
    }
}
