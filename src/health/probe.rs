//! Determines the probe for a pod from the group's spec and the pod's own readinessProbe.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use http::{HeaderName, HeaderValue, uri::PathAndQuery};
use k8s_openapi::{
    api::core::v1::{Container, Pod, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::api::{LeaderGroupSpec, OneProbe, ProbePort, ProbeScheme};

/// What the operator calls itself to pods.
pub(crate) const USER_AGENT: &str = concat!("leadergroup/", env!("CARGO_PKG_VERSION"));
/// kubectl's annotation for the default container of a pod.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Kubernetes' default for `readinessProbe.timeoutSeconds`.
const DEFAULT_TIMEOUT_SECS: u64 = 1;

/// A probe with all names resolved. It goes to the pod's own address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedProbe {
    /// What to send.
    pub kind: ProbeKind,
    /// The port, by number.
    pub port: u16,
    /// How long the probe may take, including the connection.
    pub timeout: Duration,
}

/// What a probe sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// A GET request. It succeeds on status 200-399.
    HttpGet {
        /// Plain, or over TLS without verification of the certificate.
        scheme: ProbeScheme,
        /// Path and query.
        path: PathAndQuery,
        /// Further headers, including `Host` if it was given.
        headers: Vec<(HeaderName, HeaderValue)>,
    },
    /// A connection. It succeeds if it is accepted.
    TcpSocket,
    /// A request for an agent's answer. It succeeds if the answer is signed with the key that it names.
    Agent,
    /// A call of the gRPC health checking protocol. It succeeds if the service is serving.
    Grpc {
        /// The service; the empty name stands for the whole server.
        service: String,
    },
}

/// The outcome of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The pod answered, and the probe succeeded.
    Success,
    /// The pod or its address refused the probe.
    Refused(ProbeFailure),
    /// No answer in time, or the address is unroutable: this is what a node without power looks like once routers
    /// have noticed.
    Unanswered,
    /// The probe failed for a reason of our own. It is no evidence about the pod.
    Void(VoidCause),
}

/// Why a probe is no evidence about its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VoidCause {
    /// It was sent out of turn, and what it found can have other reasons than the one that it was sent for.
    OutOfTurn,
    /// This process was stalled while it should have listened.
    Stalled,
    /// Too many pods do not answer, and this one found no place among their probes.
    Crowded,
    /// The operating system refused to send it, with this error number if there is one.
    System(Option<i32>),
    /// This process has no free file descriptor.
    Descriptors,
}

/// An answer that is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFailure {
    /// A status outside 200 to 399.
    HttpStatus(u16),
    /// No process listens on the port.
    ConnectionRefused,
    /// The connection was closed before the answer was complete.
    Reset,
    /// The response was not valid HTTP, TLS or gRPC, or was too large.
    Protocol,
    /// The gRPC health service reports another status than `SERVING`.
    NotServing,
    /// The response is not an answer of an agent, or its signature is wrong.
    NoAgent,
    /// The gRPC call failed with this status, such as `UNIMPLEMENTED`.
    GrpcStatus(u32),
}

/// Why a pod's probe is not run. The pod is then judged only by the kubelet's report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeRefusal {
    /// The probe names another host. That would let any user who may create pods direct the operator's requests
    /// anywhere.
    #[error(
        "the readinessProbe names the host `{0}`; only the pod's own address is probed: leave `host` out"
    )]
    ForeignHost(String),
    /// The named port is not among the ports of the containers.
    #[error("no container has a port named `{0}`; name one under `ports`, or give the number")]
    UnknownPort(String),
    /// The port is not from 1 to 65535.
    #[error("{0} is not a valid port; give one from 1 to 65535")]
    PortOutOfRange(i32),
    /// `health.container` names no container of the pod.
    #[error("the pod has no container `{0}`; correct `health.container`")]
    UnknownContainer(String),
    /// The path is not a valid path of a URL.
    #[error("`{0}` is not a valid URL path; it must start with / and contain no spaces")]
    BadPath(String),
    /// A header is not valid HTTP.
    #[error("`{0}` is not a valid HTTP header")]
    BadHeader(String),
    /// `health.probe` sets none or several of the kinds.
    #[error("set exactly one of httpGet, tcpSocket and grpc under `health.probe`")]
    NoKind,
    /// The pod's address is not one that a pod can have.
    #[error("the pod's address {0} is a loopback, link-local or multicast address, which is never probed")]
    ForbiddenAddress(IpAddr),
    /// The pod's status has no address, although it should have one.
    #[error("the pod has no address; check the network of its node")]
    NoAddress,
}

/// The main container: `health.container`, otherwise kubectl's default container, otherwise the first container that
/// has a readinessProbe, otherwise the first container.
pub(super) fn main_container<'a>(
    pod: &'a Pod,
    spec: &LeaderGroupSpec,
) -> Result<Option<&'a Container>, ProbeRefusal> {
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    let named = |name: &str| containers.iter().find(|container| container.name == name);
    if let Some(name) = &spec.health.container {
        return named(name).map(Some).ok_or_else(|| ProbeRefusal::UnknownContainer(name.clone()));
    }
    let annotated = pod.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    Ok(annotated
        .and_then(|name| named(name))
        .or_else(|| containers.iter().find(|container| container.readiness_probe.is_some()))
        .or_else(|| containers.first()))
}

/// The probe to run: the agent's if the group has agents, otherwise `health.probe`, otherwise the main container's
/// readinessProbe. None if the pod has no probe that can be run from outside (no probe, exec): then the kubelet's
/// report counts.
pub(super) fn resolve(pod: &Pod, spec: &LeaderGroupSpec) -> Result<Option<ResolvedProbe>, ProbeRefusal> {
    let container = main_container(pod, spec)?;
    let limit = |own: Duration| match spec.health.timeout {
        // A timeout longer than the interval is used if the user asks for it, but not one longer than is valid: the
        // group may have been stored under older rules.
        Some(wanted) => wanted.0.min(spec.longest_timeout()),
        None => own.min(spec.health.interval.0),
    };
    if let Some(agent) = &spec.agent {
        let timeout = limit(Duration::from_secs(DEFAULT_TIMEOUT_SECS));
        return Ok(Some(ResolvedProbe { kind: ProbeKind::Agent, port: agent.port, timeout }));
    }
    if let Some(probe) = &spec.health.probe {
        let timeout = limit(Duration::from_secs(DEFAULT_TIMEOUT_SECS));
        let (kind, port_of) = match probe.one().ok_or(ProbeRefusal::NoKind)? {
            OneProbe::HttpGet(get) => {
                (http_kind(get.scheme, get.path.as_deref(), std::iter::empty())?, &get.port)
            }
            OneProbe::TcpSocket(tcp) => (ProbeKind::TcpSocket, &tcp.port),
            OneProbe::Grpc(grpc) => {
                (ProbeKind::Grpc { service: grpc.service.clone().unwrap_or_default() }, &grpc.port)
            }
        };
        return Ok(Some(ResolvedProbe { kind, port: port(port_of, container, pod)?, timeout }));
    }
    let Some((container, probe)) = container.and_then(|c| Some((c, c.readiness_probe.as_ref()?))) else {
        return Ok(None);
    };
    let own = probe.timeout_seconds.and_then(|secs| u64::try_from(secs).ok()).filter(|secs| *secs > 0);
    let timeout = limit(Duration::from_secs(own.unwrap_or(DEFAULT_TIMEOUT_SECS)));
    of_container(probe, container, pod, timeout)
}

/// The pod's address, if it has one yet.
pub(super) fn own_address(pod: &Pod) -> Result<Option<IpAddr>, ProbeRefusal> {
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse().ok());
    match address {
        Some(forbidden) if !may_be_probed(forbidden) => Err(ProbeRefusal::ForbiddenAddress(forbidden)),
        address => Ok(address),
    }
}

/// Rejects addresses that no pod can have. Probing them could reach the operator itself or the machine's metadata
/// service.
fn may_be_probed(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let canonical = ip.to_canonical();
    !(link_local || ip.is_unspecified() || ip.is_multicast() || canonical.is_loopback())
        && (canonical == ip || may_be_probed(canonical))
}

/// Where requests to this port of the pod are sent: always to the pod's own address.
pub(crate) fn address(pod: &Pod, spec: &LeaderGroupSpec, at: &ProbePort) -> Result<SocketAddr, ProbeRefusal> {
    let ip = own_address(pod)?.ok_or(ProbeRefusal::NoAddress)?;
    Ok(SocketAddr::new(ip, port(at, main_container(pod, spec)?, pod)?))
}

fn of_container(
    probe: &Probe,
    container: &Container,
    pod: &Pod,
    timeout: Duration,
) -> Result<Option<ResolvedProbe>, ProbeRefusal> {
    let (kind, port_of, host) = if let Some(get) = &probe.http_get {
        let scheme = match get.scheme.as_deref() {
            Some("HTTPS") => ProbeScheme::Https,
            _ => ProbeScheme::Http,
        };
        let headers = get.http_headers.iter().flatten().map(|h| (h.name.as_str(), h.value.as_str()));
        (http_kind(scheme, get.path.as_deref(), headers)?, &get.port, &get.host)
    } else if let Some(tcp) = &probe.tcp_socket {
        (ProbeKind::TcpSocket, &tcp.port, &tcp.host)
    } else if let Some(grpc) = &probe.grpc {
        let kind = ProbeKind::Grpc { service: grpc.service.clone().unwrap_or_default() };
        let port = port(&IntOrString::Int(grpc.port), Some(container), pod)?;
        return Ok(Some(ResolvedProbe { kind, port, timeout }));
    } else {
        return Ok(None);
    };
    if let Some(host) = host.as_deref().filter(|host| !host.is_empty() && !is_own_address(host, pod)) {
        return Err(ProbeRefusal::ForeignHost(host.to_owned()));
    }
    Ok(Some(ResolvedProbe { kind, port: port(port_of, Some(container), pod)?, timeout }))
}

fn is_own_address(host: &str, pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let listed = status.pod_ips.iter().flatten().map(|entry| entry.ip.as_str());
    status.pod_ip.as_deref().into_iter().chain(listed).any(|ip| ip == host)
}

fn http_kind<'a>(
    scheme: ProbeScheme,
    path: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<ProbeKind, ProbeRefusal> {
    let written = path.filter(|path| !path.is_empty()).unwrap_or("/");
    // The kubelet accepts a path without its slash.
    let full = if written.starts_with('/') { written.to_owned() } else { format!("/{written}") };
    let path = PathAndQuery::try_from(full).map_err(|_| ProbeRefusal::BadPath(written.to_owned()))?;
    let header = |(name, value): (&str, &str)| {
        let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
        parsed.ok_or_else(|| ProbeRefusal::BadHeader(name.to_owned()))
    };
    Ok(ProbeKind::HttpGet { scheme, path, headers: headers.map(header).collect::<Result<_, _>>()? })
}

/// The number of a port that is given by number or by name. A name is looked up in the main container first, then in
/// the others.
fn port(port: &IntOrString, container: Option<&Container>, pod: &Pod) -> Result<u16, ProbeRefusal> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => match text.parse() {
            Ok(number) => number,
            Err(_) => container
                .into_iter()
                .chain(pod.spec.iter().flat_map(|spec| &spec.containers))
                .flat_map(|container| container.ports.iter().flatten())
                .find(|port| port.name.as_deref() == Some(text))
                .map(|port| port.container_port)
                .ok_or_else(|| ProbeRefusal::UnknownPort(text.clone()))?,
        },
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(ProbeRefusal::PortOutOfRange(number))
}
