//! `leadergroup-agent`: runs a program in a pod only while the pod is the declared holder of its `LeaderGroup`.

use std::{env, ffi::OsString, fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use leadergroup_agent::{
    contract::STOP_TIMEOUT_SECONDS,
    install,
    machine::Settings,
    network::{self, ApiAddress, ApiServer, NetworkSettings, ReadyCheck, SidecarSettings},
    supervisor::{self, Supervised},
};

/// The exit status if the agent itself fails, as that of timeout(1) and others. That of the program is passed on.
const EXIT_FAILED: u8 = 125;

/// Runs a program in a pod only while the pod is the declared holder of its LeaderGroup
#[derive(Debug, Parser)]
#[command(name = "leadergroup-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, as the entrypoint of a container: leadergroup-agent run --group NAME -- COMMAND
    Run(RunArgs),
    /// Tell programs of the pod that run all the time whether it is active, as a sidecar. Nothing is started or killed:
    /// a program that does not ask works on
    Watch(WatchArgs),
    /// Copy this program to DIR/leadergroup-agent, as an init container that fills an emptyDir
    Install {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Talk to the network; used only by `run`
    #[command(name = "__network", hide = true)]
    Network(NetworkArgs),
}

#[derive(Clone, Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    network: NetworkArgs,
    /// The name of the pod, which the program finds in `LEADERGROUP_POD`; default: the host name. With hostNetwork that
    /// is the name of the node: set `LEADERGROUP_POD` from metadata.name (valueFrom.fieldRef)
    #[arg(long, value_name = "NAME", env = "LEADERGROUP_POD")]
    pod: Option<String>,
    /// How long after SIGTERM the program is killed. Let terminationGracePeriodSeconds of the pod be longer
    #[arg(long, value_name = "SECONDS", default_value_t = STOP_TIMEOUT_SECONDS.into())]
    stop_timeout: u64,
    /// How long before the end of its lease the program gets SIGTERM, if the API server cannot be reached. It is killed
    /// at the end of its lease
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    lapse_timeout: u64,
    /// The container's terminationMessagePath
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Debug, Args)]
struct NetworkArgs {
    #[command(flatten)]
    group: GroupArgs,
    /// How /ready asks the program while it runs: http://:PORT/PATH or tcp://:PORT, on localhost; default: a program
    /// that runs is ready
    #[arg(long, value_name = "URL")]
    ready: Option<ReadyCheck>,
}

#[derive(Clone, Debug, Args)]
struct WatchArgs {
    #[command(flatten)]
    group: GroupArgs,
    /// The port of localhost for GET /active and GET /watch
    #[arg(long, value_name = "NUMBER", default_value_t = 9471)]
    local_port: u16,
    /// A file that is there only while the pod is active, and says until when on `CLOCK_BOOTTIME`
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// How long before the end of its lease the pod is not active any more, if the API server cannot be reached
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    lapse_timeout: u64,
}

#[derive(Clone, Debug, Args)]
struct GroupArgs {
    /// The LeaderGroup of the pod
    #[arg(long, value_name = "NAME", env = "LEADERGROUP_NAME")]
    group: String,
    /// The namespace of the pod; default: that of its service account
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// The port on which the operator asks the agent
    #[arg(long, value_name = "NUMBER", default_value_t = 9470)]
    port: u16,
    /// How often the LeaderGroup is read while no term of this pod is declared
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    interval: u64,
    /// The API server; default: the one that Kubernetes tells the pod
    #[arg(long, value_name = "URL")]
    api_server: Option<ApiAddress>,
    /// The directory of the service account: ca.crt, token, namespace
    #[arg(long, value_name = "DIR", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    service_account: PathBuf,
}

impl RunArgs {
    /// The name of the pod, if this is the host's name.
    fn pod(&self, host: Option<OsString>) -> Result<String> {
        let host = host.and_then(|name| name.into_string().ok());
        let named = self.pod.clone().or(host).filter(|name| !name.is_empty());
        named.context(
            "the name of the pod is not known; set LEADERGROUP_POD from metadata.name (valueFrom.fieldRef)",
        )
    }
}

impl GroupArgs {
    fn settings(&self, ready: Option<ReadyCheck>) -> Result<NetworkSettings> {
        let interval = Duration::from_secs(self.interval.max(1));
        let (namespace, group) = (self.namespace()?, self.group.clone());
        let api_server =
            ApiServer { address: self.api_server()?, service_account: self.service_account.clone() };
        Ok(NetworkSettings { api_server, namespace, group, port: self.port, interval, ready })
    }

    fn api_server(&self) -> Result<ApiAddress> {
        if let Some(address) = self.api_server {
            return Ok(address);
        }
        let variable = |name| env::var(name).with_context(|| format!("{name} is not set; name --api-server"));
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        ApiAddress::of_pod(&host, &port).with_context(|| format!("KUBERNETES_SERVICE_HOST is {host}"))
    }

    fn namespace(&self) -> Result<String> {
        let mounted = || {
            let path = self.service_account.join("namespace");
            let text = fs::read_to_string(&path);
            text.with_context(|| {
                format!(
                    "reading the namespace from {}: the pod needs a service account whose token is mounted \
                     (automountServiceAccountToken); or name it with --namespace",
                    path.display()
                )
            })
        };
        Ok(self.namespace.clone().map_or_else(mounted, Ok)?.trim().to_owned())
    }
}

impl NetworkArgs {
    /// The same for the network process.
    fn arguments(&self, namespace: &str) -> Vec<OsString> {
        let GroupArgs { group, port, interval, api_server, service_account, .. } = &self.group;
        let mut all: Vec<OsString> = ["--group", group, "--namespace", namespace].map(OsString::from).into();
        let mut add = |flag: &str, value: OsString| all.extend([OsString::from(flag), value]);
        add("--port", port.to_string().into());
        add("--interval", interval.to_string().into());
        add("--service-account", service_account.into());
        if let Some(address) = api_server {
            add("--api-server", address.to_string().into());
        }
        if let Some(check) = &self.ready {
            add("--ready", check.to_string().into());
        }
        all
    }
}

fn main() -> ExitCode {
    match perform(Cli::parse().command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("leadergroup-agent: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn perform(command: Command) -> Result<u8> {
    match command {
        Command::Run(args) => {
            let namespace = args.network.group.namespace()?;
            let supervised = Supervised {
                network: args.network.arguments(&namespace),
                group: format!("{namespace}/{}", args.network.group.group),
                pod: args.pod(env::var_os("HOSTNAME"))?,
                command: args.command,
                settings: Settings {
                    stop_timeout: Duration::from_secs(args.stop_timeout),
                    lapse_timeout: Duration::from_secs(args.lapse_timeout),
                },
                termination_log: args.termination_log,
            };
            Ok(supervisor::run(supervised)?)
        }
        Command::Install { directory } => {
            install::install(&directory).with_context(|| {
                format!(
                    "copying the agent to {}; is a volume mounted there that may be written?",
                    directory.display()
                )
            })?;
            Ok(0)
        }
        Command::Watch(args) => {
            network::run_sidecar(SidecarSettings {
                network: args.group.settings(None)?,
                local_port: args.local_port,
                file: args.file,
                lapse_timeout: Duration::from_secs(args.lapse_timeout),
            })?;
            Ok(0)
        }
        Command::Network(args) => {
            network::run(args.group.settings(args.ready)?)?;
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_is_named_by_the_flag_or_the_downward_api_before_the_host() {
        let pod = |arguments: &[&str], host: Option<&str>| {
            let arguments = [&["agent", "run", "--group", "web"], arguments, &["--", "true"]].concat();
            let Command::Run(args) = Cli::try_parse_from(arguments).expect("arguments").command else {
                panic!("another command");
            };
            args.pod(host.map(OsString::from)).map_err(|error| error.to_string())
        };
        assert_eq!(pod(&["--pod", "web-0"], Some("node-1")), Ok("web-0".to_owned()));
        assert_eq!(pod(&[], Some("web-0")), Ok("web-0".to_owned()));
        for none in [None, Some("")] {
            let error = pod(&[], none).expect_err("no name");
            assert!(error.contains("LEADERGROUP_POD from metadata.name"), "{error}");
        }
    }
}
