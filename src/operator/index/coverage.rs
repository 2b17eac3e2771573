//! Pods that this operator cannot probe, and what that means for their group.

use std::{fmt, io};

use crate::health::{LEASE_DURATION, PodFacts, ProbeKind, ProbeRefusal, VoidCause};

/// How far the pods of a group can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum ProbeCoverage {
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
    /// The probes of a pod have failed for some time, and the pod is not the cause.
    Hindered(VoidCause),
}

impl ProbeCoverage {
    /// Of these pods of a group, each with what hinders its probes. Those that end are not considered.
    pub(in crate::operator) fn of<'a>(pods: impl Iterator<Item = (&'a PodFacts, Option<VoidCause>)>) -> Self {
        let lasting = pods.filter(|(pod, _)| !pod.deleting && !pod.finished());
        let worst = lasting.map(|(pod, hindrance)| (one(pod, hindrance), &pod.name));
        let worst = worst.max_by(|(one, name), (other, other_name)| {
            // Of several with the same fault, the one with the smallest name, so that the report stays the same.
            one.rank().cmp(&other.rank()).then_with(|| other_name.cmp(name))
        });
        worst.map_or(Self::Full, |(worst, _)| worst)
    }

    pub(in crate::operator) fn is_probed(&self) -> bool {
        matches!(self, Self::Full | Self::TcpOnly)
    }

    /// The larger it is, the worse; of two hindrances, one of them.
    fn rank(&self) -> (u8, Option<VoidCause>) {
        match self {
            Self::Full => (0, None),
            Self::TcpOnly => (1, None),
            Self::NoProbe => (2, None),
            Self::Unusable { .. } => (3, None),
            Self::Hindered(cause) => (4, Some(*cause)),
        }
    }
}

fn one(pod: &PodFacts, hindrance: Option<VoidCause>) -> ProbeCoverage {
    if let Some(cause) = hindrance.filter(|_| pod.target().is_some()) {
        return ProbeCoverage::Hindered(cause);
    }
    if let Some(why) = pod.probe_refusal() {
        return ProbeCoverage::Unusable { pod: pod.name.clone(), why };
    }
    match pod.probe.as_ref().ok().and_then(Option::as_ref).map(|probe| &probe.kind) {
        Some(ProbeKind::TcpSocket) => ProbeCoverage::TcpOnly,
        Some(ProbeKind::HttpGet { .. } | ProbeKind::Grpc { .. } | ProbeKind::Agent) => ProbeCoverage::Full,
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
                 spec.health.probe. Now only the kubelet's report counts; a hang is not detected within health.silenceTimeout, and a \
                 lost node only after {lost}s"
            ),
            Self::Unusable { pod, why } => write!(
                f,
                "{pod} cannot be probed: {why}. Until then only the kubelet's report counts; a hang is not detected \
                 within health.silenceTimeout, and a lost node only after {lost}s"
            ),
            Self::Hindered(cause) => {
                f.write_str("the operator itself cannot probe the pods, which are not the cause: ")?;
                remedy(*cause, f)
            }
        }
    }
}

/// What hinders the probes, and what to do about it.
fn remedy(cause: VoidCause, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match cause {
        VoidCause::Crowded => f.write_str(
            "thousands of pods, probably in other groups, do not answer their probes and take all places for them; \
             delete those groups or repair their pods, or run more replicas of the operator",
        ),
        VoidCause::Descriptors => f.write_str(
            "the operator has no free file descriptor; raise the limit of open files (RLIMIT_NOFILE) of its container",
        ),
        VoidCause::System(Some(number)) => {
            let error = io::Error::from_raw_os_error(number);
            write!(
                f,
                "the operating system refuses to send the probes: {error}; check on the operator's node the address \
                 family of the pods, free ports and memory, and rules for outgoing connections"
            )
        }
        VoidCause::System(None) => {
            f.write_str("the probes fail before they are sent; the operator's log and metrics may say why")
        }
        VoidCause::Stalled | VoidCause::OutOfTurn => f.write_str(
            "the operator's process does not run in time to receive the answers; give it more CPU, or move it to a node \
             with less load",
        ),
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
        let of = |pods: &[&PodFacts]| ProbeCoverage::of(pods.iter().map(|pod| (*pod, None)));
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
    fn what_hinders_the_operator_itself_is_said_first_and_says_that_the_pods_are_not_the_cause() {
        let http = facts("http", &json!({ "httpGet": { "port": 80 } }));
        let nope = facts("nope", &json!({ "httpGet": { "port": "nope" } }));
        let of = |pods: &[(&PodFacts, Option<VoidCause>)]| ProbeCoverage::of(pods.iter().copied());
        let (crowded, stalled) = (VoidCause::Crowded, VoidCause::Stalled);
        let hindered = of(&[(&nope, None), (&http, Some(crowded)), (&http, Some(stalled)), (&http, None)]);
        assert_eq!(hindered, ProbeCoverage::Hindered(crowded), "the graver one, in any order");
        assert!(!hindered.is_probed());
        let causes = [
            (crowded, "take all places"),
            (stalled, "more CPU"),
            (VoidCause::Descriptors, "RLIMIT_NOFILE"),
            (VoidCause::System(Some(97)), "Address family not supported by protocol (os error 97); check"),
        ];
        for (cause, words) in causes {
            let text = ProbeCoverage::Hindered(cause).to_string();
            assert!(text.contains("which are not the cause") && text.contains(words), "{text}");
        }
        let ended = PodFacts { deleting: true, ..http.clone() };
        assert_eq!(of(&[(&ended, Some(crowded)), (&http, None)]), ProbeCoverage::Full);
        assert!(
            matches!(of(&[(&nope, Some(crowded))]), ProbeCoverage::Unusable { .. }),
            "it is never probed"
        );
    }

    #[test]
    fn a_ready_pod_without_an_address_cannot_be_probed() {
        let http = facts("http", &json!({ "httpGet": { "port": 80 } }));
        let nowhere = PodFacts { ip: None, ..http };
        let unusable = ProbeCoverage::of(std::iter::once((&nowhere, None)));
        assert!(!unusable.is_probed());
        let text = unusable.to_string();
        assert!(text.starts_with("http cannot be probed: the pod has no address;"), "{text}");
        let starting = PodFacts { readiness: crate::health::Readiness::Unknown, ..nowhere };
        assert_eq!(
            ProbeCoverage::of(std::iter::once((&starting, None))),
            ProbeCoverage::Full,
            "it comes later"
        );
    }
}
