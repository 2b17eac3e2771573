//! Why the agent is not put into a pod, and what to do about it.

/// Why a pod stays as it is. The chart's policies refuse the same pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it has no container{}", .0.as_deref().map(|name| format!(" named {name}")).unwrap_or_default())]
    NoContainer(Option<String>),
    #[error(
        "container {0} has no command, and the entrypoint of its image is not known here: write it as `command` \
         (`skopeo inspect --config docker://IMAGE` shows Entrypoint and Cmd)"
    )]
    NoCommand(String),
    #[error(
        "{0}: true: the agent is process 1 of its container, so that it can kill what the program leaves \
         behind; remove {0}"
    )]
    SharedProcesses(&'static str),
    #[error("the agent already runs the program for the LeaderGroup {0}")]
    OtherGroup(String),
    #[error("{what} is taken, and the agent needs it: rename the other one")]
    Taken { what: String },
    #[error("port 9470 is taken, and the agent needs it: use another port in container {0}")]
    PortTaken(String),
    #[error("container {0} sets LEADERGROUP_POD: remove it; the agent needs the name of the pod there")]
    PodNamed(String),
    #[error(
        "the agent cannot ask as the readinessProbe of container {0} does ({1}): say how with --ready \
         http://:PORT/PATH or --ready tcp://:PORT (in a cluster: the annotation leadergroup.dev/agent-ready)"
    )]
    Readiness(String, &'static str),
    #[error("--ready {0}: write http://:PORT/PATH or tcp://:PORT; the program is asked on localhost")]
    Ready(String),
    #[error("stop timeout {0}: write a number of seconds")]
    StopTimeout(String),
    #[error(
        "terminationGracePeriodSeconds is {grace_period}, and the program has {stop_timeout} s to end: the kubelet would \
         kill the agent first. Set it to {} or more, or shorten --stop-timeout",
        stop_timeout + 5
    )]
    GracePeriod { grace_period: i64, stop_timeout: i64 },
    #[error(
        "the {1} of container {0} asks the program, which runs in the active pod only, so every standby would be \
         restarted: remove it, or make it an exec probe that succeeds while the program does not run"
    )]
    AsksStandbys(String, &'static str),
    #[error("its field {0} is not what Kubernetes accepts there")]
    Malformed(&'static str),
}
