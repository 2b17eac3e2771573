//! Validation of a spec by the operator itself.
//!
//! The API server's rules refuse all of these errors. But a group may have been stored under older rules or with an
//! edited CRD, and the operator must not act on a spec that would break its promises.

use std::time::Duration;

use super::{
    AgentSpec, LONGEST_LEASE,
    agent::SHORTEST_LEASE,
    duration::LONGEST_TIMEOUT,
    hooks::{HookSpec, HooksSpec, LONGEST_HOOK},
    labels::{ACTIVE_VALUE, NO_ROLE, STANDBY_VALUE},
    selector::PodSelector,
    spec::{
        ElectionSpec, Failback, HealthSpec, LeaderGroupSpec, LockSpec, OneProbe, Priority, ProbePort,
        ProbeSpec, RoutingSpec,
    },
    syntax::{CONTROLLERS_LABELS, is_dns_label, is_label_key, is_label_name},
};

/// Why a spec is not valid; each text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// Every pod of the namespace would belong to the group.
    #[error(
        "spec.selector is empty: write labels that the group's pods carry, such as matchLabels: {{app: my-app}}"
    )]
    EmptySelector,
    /// A key or a value of the selector is not valid in a label.
    #[error(
        "spec.selector: `{0}` can be neither the key nor the value of a label: write it as it is on the pods"
    )]
    SelectorNotLabels(String),
    /// `In` and `NotIn` need values; the other operators must have none.
    #[error(
        "spec.selector: the expression on `{0}` needs values for In and NotIn, and none for Exists and DoesNotExist"
    )]
    SelectorValues(String),
    /// The operator changes the role label, so pods would leave the group.
    #[error(
        "spec.selector contains the role label `{0}`, which the operator changes: select by labels that all pods share"
    )]
    SelectorContainsRole(String),
    /// A duration is out of its range.
    #[error("spec.{field} must be {range}: write another duration, such as 5s")]
    OutOfRange {
        /// The field below `spec`.
        field: &'static str,
        /// The range, as text.
        range: &'static str,
    },
    /// The port is not from 1 to 65535.
    #[error("spec.agent.port must be from 1 to 65535: write another port, such as 9470")]
    AgentPort,
    /// Counting the refusals could take longer than `silenceTimeout`, and silence would be detected first.
    #[error(
        "spec.health.failureThreshold must be from 1 to 10, and times interval at most silenceTimeout: write a smaller one"
    )]
    FailureThreshold,
    /// A priority that matches every pod, or whose weight is out of range, or too many of them.
    #[error(
        "spec.election.priorities must be at most 16, each with a weight from 1 to 100 and with nodeLabels or podLabels: \
         write them like {{weight: 10, nodeLabels: {{topology.kubernetes.io/zone: a}}}}"
    )]
    Priority,
    /// Without priorities there is no pod to go back to.
    #[error(
        "spec.election.failback WhenReady needs spec.election.priorities, without which no pod is preferred to another: \
         write priorities, or leave failback out"
    )]
    Failback,
    /// The operator probes the agents.
    #[error(
        "spec.health.probe cannot be set together with spec.agent, because the operator probes the agents: leave it out, \
         and use a livenessProbe for the program"
    )]
    ProbeBesideAgent,
    /// The agent starts and stops the program itself.
    #[error(
        "spec.hooks cannot be set together with spec.agent, which starts and stops the program itself: leave one of them out"
    )]
    HooksBesideAgent,
    /// A hook is missing, or has no valid path or port.
    #[error(
        "spec.hooks must have promote, demote or both, each with the path of a URL, which starts with a /, and a port: \
         write them like {{path: /promote, port: 8080}}"
    )]
    Hook,
    /// No kind of probe, or more than one.
    #[error("spec.health.probe must be of exactly one kind: write one of httpGet, tcpSocket and grpc")]
    ProbeKind,
    /// The path is not valid in a request.
    #[error(
        "spec.health.probe.httpGet.path must start with a / and contain no spaces: write it like /readyz"
    )]
    ProbePath,
    /// Not a valid port number or port name.
    #[error(
        "spec.health.probe: the port must be a number from 1 to 65535, or the name of a port of the container: write \
         it like 8080 or http"
    )]
    ProbePort,
    /// Not a valid container name.
    #[error(
        "spec.health.container must be the name of a container: write it as in the pod's spec.containers"
    )]
    Container,
    /// A label key or value of `routing` is invalid, or the label is used by others.
    #[error(
        "spec.routing: `{0}` cannot mark roles: write a valid label of your own domain, such as example.com/role"
    )]
    RoleLabel(String),
    /// The value by which Services select no pod.
    #[error(
        "spec.routing: activeValue and standbyValue must not be {NO_ROLE}, by which Services select no pod: write another value"
    )]
    NoRole,
    /// The values for active and standby are equal.
    #[error(
        "spec.routing: activeValue and standbyValue are the same: write two, such as {ACTIVE_VALUE} and {STANDBY_VALUE}"
    )]
    SameValues,
    /// The key is not valid.
    #[error(
        "spec.lock.key must be 1 to 255 printable ASCII characters: write a shorter or plainer name, or leave it out"
    )]
    LockKey,
}

/// The maximum of every duration in a spec.
const LONGEST: Duration = Duration::from_hours(1);

impl LeaderGroupSpec {
    /// Returns the first error in the spec, for the condition `Accepted`.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        self.selector.validate()?;
        self.routing.validate()?;
        if self.selector.mentions(&self.routing.role_label) {
            return Err(InvalidSpec::SelectorContainsRole(self.routing.role_label.clone()));
        }
        self.lock.validate()?;
        self.election.validate()?;
        self.agent.as_ref().map_or(Ok(()), AgentSpec::validate)?;
        if self.agent.is_some() && self.health.probe.is_some() {
            return Err(InvalidSpec::ProbeBesideAgent);
        }
        if self.agent.is_some() && self.hooks.is_some() {
            return Err(InvalidSpec::HooksBesideAgent);
        }
        self.hooks.as_ref().map_or(Ok(()), HooksSpec::validate)?;
        self.health.validate()
    }

    /// What is carried out in another way than it is written. A group that was stored under older rules may ask for
    /// longer probes than are allowed now, and is not to lose its elections for that.
    pub fn advice(&self) -> Option<String> {
        let is_long = self.health.timeout.is_some_and(|timeout| timeout.0 > self.longest_timeout());
        is_long.then(|| {
            format!(
                "spec.health.timeout is longer than {LONGEST_TIMEOUT} times health.interval, and probes end after that \
                 time: write a shorter timeout, or a longer interval"
            )
        })
    }

    /// The longest timeout that a probe may have: as long as the pod may be silent, and not many times the interval.
    pub fn longest_timeout(&self) -> Duration {
        self.health.silence_timeout.0.min(self.health.interval.0.saturating_mul(LONGEST_TIMEOUT))
    }
}

impl HealthSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let out_of_range = |field, range| Err(InvalidSpec::OutOfRange { field, range });
        let (silence_timeout, interval) = (self.silence_timeout.0, self.interval.0);
        if silence_timeout < Duration::from_secs(1) || silence_timeout > LONGEST {
            return out_of_range("health.silenceTimeout", "from 1s to 1h");
        }
        if interval < Duration::from_millis(100) || interval * 3 > silence_timeout {
            return out_of_range("health.interval", "from 100ms to a third of silenceTimeout");
        }
        if self.timeout.is_some_and(|timeout| timeout.0.is_zero() || timeout.0 > silence_timeout) {
            return out_of_range("health.timeout", "from 1ms to silenceTimeout");
        }
        let threshold = self.failure_threshold;
        if !(1..=10).contains(&threshold) || interval * threshold > silence_timeout {
            return Err(InvalidSpec::FailureThreshold);
        }
        if self.container.as_ref().is_some_and(|name| name.len() > 63 || !is_dns_label(name)) {
            return Err(InvalidSpec::Container);
        }
        self.probe.as_ref().map_or(Ok(()), ProbeSpec::validate)
    }
}

impl ElectionSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        if self.delay.0 > LONGEST {
            return Err(InvalidSpec::OutOfRange { field: "election.delay", range: "from 0s to 1h" });
        }
        if self.failback_delay.0 > LONGEST {
            return Err(InvalidSpec::OutOfRange { field: "election.failbackDelay", range: "from 0s to 1h" });
        }
        let is_wrong = |it: &Priority| {
            !(1..=100).contains(&it.weight) || (it.node_labels.is_empty() && it.pod_labels.is_empty())
        };
        if self.priorities.len() > 16 || self.priorities.iter().any(is_wrong) {
            return Err(InvalidSpec::Priority);
        }
        if self.failback == Failback::WhenReady && self.priorities.is_empty() {
            return Err(InvalidSpec::Failback);
        }
        Ok(())
    }
}

impl AgentSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let out_of_range = |field, range| Err(InvalidSpec::OutOfRange { field, range });
        if self.port == 0 {
            return Err(InvalidSpec::AgentPort);
        }
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&self.lease_duration.0) {
            return out_of_range("agent.leaseDuration", "from 2s to 1m");
        }
        if !(Duration::from_secs(1)..=LONGEST).contains(&self.stop_timeout.0) {
            return out_of_range("agent.stopTimeout", "from 1s to 1h");
        }
        Ok(())
    }
}

impl HooksSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let (promote, demote) = (self.promote.as_ref(), self.demote.as_ref());
        promote.or(demote).ok_or(InvalidSpec::Hook)?;
        promote.map_or(Ok(()), |hook| hook.validate("hooks.promote.timeout"))?;
        demote.map_or(Ok(()), |hook| hook.validate("hooks.demote.timeout"))
    }
}

impl HookSpec {
    fn validate(&self, timeout: &'static str) -> Result<(), InvalidSpec> {
        if !(is_port(&self.port) && is_hook_path(&self.path)) {
            return Err(InvalidSpec::Hook);
        }
        if !(Duration::from_millis(100)..=LONGEST_HOOK).contains(&self.timeout.0) {
            return Err(InvalidSpec::OutOfRange { field: timeout, range: "from 100ms to 30s" });
        }
        Ok(())
    }
}

impl PodSelector {
    fn validate(&self) -> Result<(), InvalidSpec> {
        if self.is_empty() {
            return Err(InvalidSpec::EmptySelector);
        }
        let keys = self.match_labels.keys().chain(self.match_expressions.iter().map(|e| &e.key));
        let values = self.match_labels.values().chain(self.match_expressions.iter().flat_map(|e| &e.values));
        let wrong = keys.filter(|key| !is_label_key(key));
        if let Some(wrong) =
            wrong.chain(values.filter(|value| !(value.is_empty() || is_label_name(value)))).next()
        {
            return Err(InvalidSpec::SelectorNotLabels(wrong.clone()));
        }
        let needs_values =
            self.match_expressions.iter().find(|e| e.operator.takes_values() == e.values.is_empty());
        needs_values.map_or(Ok(()), |e| Err(InvalidSpec::SelectorValues(e.key.clone())))
    }
}

impl RoutingSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let domain = self.role_label.split_once('/').map_or("", |(domain, _)| domain);
        let others = ["kubernetes.io", "k8s.io"].iter().any(|other| {
            domain.strip_suffix(other).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        if others || CONTROLLERS_LABELS.contains(&self.role_label.as_str()) || !is_label_key(&self.role_label)
        {
            return Err(InvalidSpec::RoleLabel(self.role_label.clone()));
        }
        let values = [&self.active_value, &self.standby_value];
        if let Some(wrong) = values.into_iter().find(|value| !is_label_name(value)) {
            return Err(InvalidSpec::RoleLabel(wrong.clone()));
        }
        if values.into_iter().any(|value| value == NO_ROLE) {
            return Err(InvalidSpec::NoRole);
        }
        if self.active_value == self.standby_value { Err(InvalidSpec::SameValues) } else { Ok(()) }
    }
}

impl LockSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let usable = |key: &String| {
            (1..=255).contains(&key.len())
                && key.bytes().all(|byte| matches!(byte, b' '..=b'~'))
                && !key.starts_with(' ')
                && !key.ends_with(' ')
        };
        if self.key.as_ref().is_none_or(usable) { Ok(()) } else { Err(InvalidSpec::LockKey) }
    }
}

impl ProbeSpec {
    fn validate(&self) -> Result<(), InvalidSpec> {
        let (port, path) = match self.one().ok_or(InvalidSpec::ProbeKind)? {
            OneProbe::HttpGet(http) => (&http.port, http.path.as_deref()),
            OneProbe::TcpSocket(tcp) => (&tcp.port, None),
            OneProbe::Grpc(grpc) => (&grpc.port, None),
        };
        if !is_port(port) {
            return Err(InvalidSpec::ProbePort);
        }
        if path.is_none_or(is_path) { Ok(()) } else { Err(InvalidSpec::ProbePath) }
    }
}

fn is_port(port: &ProbePort) -> bool {
    match port {
        ProbePort::Int(number) => (1..=65_535).contains(number),
        ProbePort::String(name) => {
            name.len() <= 15
                && is_dns_label(name)
                && name.bytes().any(|byte| byte.is_ascii_lowercase())
                && !name.contains("--")
        }
    }
}

/// The characters of a path and a query, as RFC 3986 has them, except the quote, which the CRD's rule cannot contain.
fn is_hook_path(path: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/?:@-._~!$&()*+,;=%".contains(&byte);
    path.starts_with('/') && path.bytes().all(allowed)
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| matches!(byte, b'!'..=b'~'))
}
