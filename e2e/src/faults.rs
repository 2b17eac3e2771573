//! Faults of a running cluster, and how to undo them. Each checks that it took effect, and fails otherwise: a test that
//! goes on without its fault would pass for nothing.

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::process::Command;

use crate::cgroup;
use crate::cluster::Cluster;
use crate::control_plane::{API_SERVER_DAEMON, ETCD_DAEMON};
use crate::machine::{Machines, wait_until};
use crate::network;
use crate::process::{has_ended, is_stopped, of_programs, took_effect};

/// How long it may take until a path that is not cut, or no longer, carries packets.
const OPEN: Duration = Duration::from_secs(30);

/// The API server and its faults.
#[derive(Debug)]
pub struct ApiServer<'a> {
    cluster: &'a Cluster,
}

impl ApiServer<'_> {
    /// Stops it cleanly. It first waits for its requests, for up to a minute if their clients are cut off. If that
    /// takes too long, it is killed, as by a service manager.
    pub async fn stop(&self) -> Result<()> {
        let pid = self.machines().running(API_SERVER_DAEMON).await?;
        if self.machines().end(API_SERVER_DAEMON, Signal::TERM).await.is_err() {
            // It may have ended at this moment: then there is nothing left to kill.
            self.machines().end(API_SERVER_DAEMON, Signal::KILL).await?;
        }
        took_effect(|| (!has_ended(pid)).then(|| "the API server still runs".to_owned()))
    }

    /// Kills it.
    pub async fn kill(&self) -> Result<()> {
        self.machines().end_running(API_SERVER_DAEMON, Signal::KILL).await
    }

    /// Starts it again, and waits until it is ready.
    pub async fn start(&self) -> Result<()> {
        self.machines().start_again(API_SERVER_DAEMON).await?;
        self.cluster.api_server_ready().await
    }

    /// Freezes it, with its connections open, until [`ApiServer::resume`].
    pub async fn pause(&self) -> Result<()> {
        let pid = self.machines().running(API_SERVER_DAEMON).await?;
        self.machines().signal(API_SERVER_DAEMON, Signal::STOP, false).await?;
        took_effect(|| (!is_stopped(pid)).then(|| "the API server is not stopped".to_owned()))
    }

    /// Resumes it.
    pub async fn resume(&self) -> Result<()> {
        self.machines().signal(API_SERVER_DAEMON, Signal::CONT, false).await
    }

    /// Kills etcd, so that the API server cannot answer, until [`ApiServer::start_etcd`].
    pub async fn kill_etcd(&self) -> Result<()> {
        self.machines().end_running(ETCD_DAEMON, Signal::KILL).await
    }

    /// Starts etcd again, and waits until the API server is ready.
    pub async fn start_etcd(&self) -> Result<()> {
        self.machines().start_again(ETCD_DAEMON).await?;
        self.cluster.api_server_ready().await
    }

    fn machines(&self) -> &Machines {
        &self.cluster.machines
    }
}

impl Cluster {
    /// The API server.
    pub fn api_server(&self) -> ApiServer<'_> {
        ApiServer { cluster: self }
    }

    /// Powers a node off: at once nothing on it runs or answers any more, without notice to anyone. Returns the time
    /// at which it was off.
    pub async fn power_off(&self, node: &str) -> Result<Instant> {
        self.node(node)?;
        if !self.has_power(node) {
            bail!("{node} is powered off already");
        }
        self.machines.disown(node).await?;
        let group = self.machines.cgroups.machine(node);
        ensure!(!cgroup::processes(&group).is_empty(), "the fault cannot take place: nothing runs on {node}");
        // The cable first, so that ending processes cannot send anything.
        network::set_cable(node, false).await?;
        let moment = Instant::now();
        self.machines.cgroups.kill(&group).await.with_context(|| format!("powering {node} off"))?;
        network::remove_machine(node).await?;
        self.machines.cgroups.remove(Some(node)).await?;
        fs::write(off_mark(node), "").with_context(|| format!("cannot note that {node} is off"))?;
        Ok(moment)
    }

    /// Powers a node on: it boots with its old disk, and its kubelet starts its pods again. Returns when its daemons
    /// run; it is Ready a little later ([`Cluster::nodes_ready`]).
    pub async fn power_on(&self, node: &str) -> Result<()> {
        let machine = self.node(node)?;
        if self.has_power(node) {
            bail!("{node} has power already");
        }
        network::create_machine(machine, self.nodes()).await?;
        let node = self.as_node(machine);
        node.start_containerd().await?;
        node.start_kubelet(&Self::credentials()).await?;
        fs::remove_file(off_mark(&machine.name)).context("cannot note that the node is on")
    }

    /// Whether a node is powered on.
    pub fn has_power(&self, node: &str) -> bool {
        !off_mark(node).exists()
    }

    /// Unplugs a node's cable: its pods keep running, but cannot communicate with other machines.
    pub async fn cut_off(&self, node: &str) -> Result<Instant> {
        self.is_open(network::HOST, node, None).await?;
        network::set_cable(node, false).await?;
        let moment = Instant::now();
        self.is_cut(network::HOST, node, None).await?;
        Ok(moment)
    }

    /// Plugs in a node's cable again.
    pub async fn reconnect(&self, node: &str) -> Result<()> {
        self.node(node)?;
        network::set_cable(node, true).await
    }

    /// Drops all traffic between two machines, in both directions. A machine is a node, [`network::CONTROL`],
    /// [`network::DATABASE`] or [`network::HOST`].
    pub async fn cut_path(&self, one: &str, other: &str) -> Result<()> {
        self.is_open(one, other, None).await?;
        network::cut(one, other, None).await?;
        network::cut(other, one, None).await?;
        self.is_cut(one, other, None).await
    }

    /// Undoes [`Cluster::cut_path`].
    pub async fn heal_path(&self, one: &str, other: &str) -> Result<()> {
        network::heal(one, other, None).await?;
        network::heal(other, one, None).await?;
        self.is_open(one, other, None).await
    }

    /// Drops traffic from one machine to the other, in this direction only; with a port, only TCP to that port.
    pub async fn cut_one_way(&self, from: &str, to: &str, port: Option<u16>) -> Result<()> {
        self.is_open(from, to, port).await?;
        network::cut(from, to, port).await?;
        self.is_cut(from, to, port).await?;
        self.is_open_the_other_way(from, to, port).await
    }

    fn address(&self, machine: &str) -> Result<String> {
        Ok(match machine {
            network::HOST => network::HOST_ADDRESS.to_owned(),
            network::CONTROL => network::CONTROL_ADDRESS.to_owned(),
            network::DATABASE => network::DATABASE_ADDRESS.to_owned(),
            node => self.node(node)?.address.clone(),
        })
    }

    /// Waits until a packet comes from one machine to the other and is answered. Without that, one that does not pass
    /// would not show that a path is cut.
    async fn is_open(&self, from: &str, to: &str, port: Option<u16>) -> Result<()> {
        let address = self.address(to)?;
        let what = format!("packets from {from} to {to}");
        wait_until(&what, OPEN, async || network::passes(from, &address, port).await).await
    }

    /// Fails if a packet still comes from one machine to the other and is answered.
    async fn is_cut(&self, from: &str, to: &str, port: Option<u16>) -> Result<()> {
        let passes = network::passes(from, &self.address(to)?, port).await?;
        ensure!(!passes, "the fault did not take place: packets pass from {from} to {to}");
        Ok(())
    }

    /// Fails if packets in the other direction do not arrive. With a port, their answers must arrive, too.
    async fn is_open_the_other_way(&self, from: &str, to: &str, port: Option<u16>) -> Result<()> {
        let before = network::echo_requests(from).await?;
        let is_answered = network::passes(to, &self.address(from)?, None).await?;
        let arrived = network::echo_requests(from).await? > before;
        ensure!(
            arrived && is_answered == port.is_some(),
            "the fault is not what it should be: of packets from {to} to {from}, arrived: {arrived}, answered: \
             {is_answered}"
        );
        Ok(())
    }

    /// Undoes [`Cluster::cut_one_way`].
    pub async fn heal_one_way(&self, from: &str, to: &str, port: Option<u16>) -> Result<()> {
        network::heal(from, to, port).await
    }

    /// Freezes every process of a node, but not its kernel and network (a machine that hangs).
    pub async fn freeze_node(&self, node: &str) -> Result<Instant> {
        self.node(node)?;
        self.machines.cgroups.freeze_some(&self.machines.cgroups.machine(node)).await?;
        Ok(Instant::now())
    }

    /// Thaws a frozen node.
    pub fn thaw_node(&self, node: &str) -> Result<()> {
        self.node(node)?;
        self.machines.cgroups.thaw(&self.machines.cgroups.machine(node))
    }

    /// Freezes every process of a pod, with its connections open. Returns the time at which all were frozen.
    pub async fn freeze_pod(&self, uid: &str) -> Result<Instant> {
        let pod = self.machines.cgroups.pod(uid)?;
        ensure!(
            !self.machines.cgroups.containers(uid)?.is_empty(),
            "the fault cannot take place: the pod {uid} has no running container"
        );
        self.machines.cgroups.freeze_some(&pod).await?;
        Ok(Instant::now())
    }

    /// Thaws a frozen pod.
    pub fn thaw_pod(&self, uid: &str) -> Result<()> {
        self.machines.cgroups.thaw(&self.machines.cgroups.pod(uid)?)
    }

    /// Stops a node's kube-proxy, so that clients there are routed by outdated rules, until
    /// [`Cluster::resume_proxy`].
    pub async fn pause_proxy(&self, node: &str) -> Result<()> {
        self.as_node(self.node(node)?).pause_proxy().await
    }

    /// Resumes it.
    pub async fn resume_proxy(&self, node: &str) -> Result<()> {
        self.as_node(self.node(node)?).resume_proxy().await
    }

    /// The command lines of the processes that run in a pod.
    pub fn commands(&self, uid: &str) -> Result<Vec<String>> {
        Ok(cgroup::commands(&self.machines.cgroups.pod(uid)?))
    }

    /// Stops the processes of a pod's containers with SIGSTOP. Returns their number.
    pub fn pause(&self, pod_uid: &str) -> Result<usize> {
        let count = self.signal_containers(pod_uid, Signal::STOP)?;
        took_effect(|| {
            let containers = self.machines.cgroups.containers(pod_uid).unwrap_or_default();
            let all = containers.iter().flat_map(|group| cgroup::processes(group));
            let running: Vec<Pid> = all.filter(|pid| !is_stopped(*pid) && !has_ended(*pid)).collect();
            // One that was started in the meantime. It may also have ended.
            for pid in &running {
                let _ = kill_process(*pid, Signal::STOP);
            }
            (!running.is_empty()).then(|| format!("of the pod {pod_uid} these processes run: {running:?}"))
        })?;
        Ok(count)
    }

    /// Resumes them.
    pub fn resume(&self, pod_uid: &str) -> Result<usize> {
        self.signal_containers(pod_uid, Signal::CONT)
    }

    /// Kills the processes of a pod's containers with SIGKILL, as a crash would; the kubelet starts them again.
    pub fn kill_pod(&self, uid: &str) -> Result<usize> {
        let containers = self.machines.cgroups.containers(uid)?;
        let before: Vec<Pid> = containers.iter().flat_map(|group| cgroup::processes(group)).collect();
        let count = self.signal_containers(uid, Signal::KILL)?;
        took_effect(|| {
            let left: Vec<&Pid> = before.iter().filter(|pid| !has_ended(**pid)).collect();
            (!left.is_empty()).then(|| format!("of the pod {uid} these processes live: {left:?}"))
        })?;
        Ok(count)
    }

    /// Kills the program that a pod runs with SIGKILL: the process that its agent has started, or without an agent all
    /// processes. Returns when it was killed; by the end of this call it has ended.
    pub fn kill_program(&self, uid: &str) -> Result<Instant> {
        let containers = self.machines.cgroups.containers(uid)?;
        let all: Vec<Pid> = containers.iter().flat_map(|group| cgroup::processes(group)).collect();
        let started = of_programs(all.iter().copied()).into_iter().filter(|one| one.is_first);
        let mut program: Vec<Pid> = started.map(|one| one.pid).collect();
        if program.is_empty() {
            program = all;
        }
        ensure!(!program.is_empty(), "the fault cannot take place: the pod {uid} has no running container");
        // What follows from it may be there before this process goes on.
        let moment = Instant::now();
        for pid in &program {
            kill_process(*pid, Signal::KILL).with_context(|| format!("killing {pid:?} of the pod {uid}"))?;
        }
        took_effect(|| {
            let left: Vec<&Pid> = program.iter().filter(|pid| !has_ended(**pid)).collect();
            (!left.is_empty()).then(|| format!("of the pod {uid} these processes live: {left:?}"))
        })?;
        Ok(moment)
    }

    /// The control group of a pod.
    pub fn pod_group(&self, uid: &str) -> Result<PathBuf> {
        self.machines.cgroups.pod(uid)
    }

    fn signal_containers(&self, pod_uid: &str, signal: Signal) -> Result<usize> {
        let containers = self.machines.cgroups.containers(pod_uid)?;
        let count = containers.iter().map(|group| cgroup::signal(group, signal)).sum();
        if count == 0 {
            bail!("the pod {pod_uid} has no running container");
        }
        Ok(count)
    }

    /// Makes a machine's kernel forget its connections to a Service. A connection to a pod that hung stays known for
    /// minutes, and a new one from the same port would follow it to that pod.
    pub async fn forget_connections(&self, machine: &str, service: IpAddr) -> Result<()> {
        for _ in 0..100 {
            let mut command = self.command_on(machine, "conntrack");
            command.args(["--delete", "--orig-dst", &service.to_string()]);
            let done = command.output().await.context("running conntrack")?;
            let said = String::from_utf8_lossy(&done.stderr);
            // It stops if the kernel has forgotten one in the meantime. There is one less each time.
            if said.contains("such conntrack doesn't exist") {
                continue;
            }
            // It fails if there is none.
            ensure!(done.status.success() || said.contains("0 flow entries"), "conntrack failed: {said}");
            return Ok(());
        }
        bail!("conntrack did not come to the end of its list in 100 attempts")
    }

    /// A command that runs in a machine's network namespace but not in its mounts, for example a client that calls a
    /// Service from a node. Add arguments to it.
    pub fn command_on(&self, machine: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", network::namespace(machine)))
            .arg("--")
            .arg(program)
            .kill_on_drop(true);
        command
    }

    /// Undoes every remaining fault: cut paths, unplugged cables, powered-off nodes, stopped servers, frozen pods.
    /// Waits until all nodes are Ready.
    pub async fn heal(&self, limit: Duration) -> Result<()> {
        network::heal_all().await?;
        let cgroups = &self.machines.cgroups;
        for name in [network::CONTROL, network::DATABASE] {
            network::set_cable(name, true).await?;
            if cgroups.machine(name).exists() {
                cgroups.thaw_all(&cgroups.machine(name))?;
            }
        }
        let running: Vec<String> = self
            .daemons()
            .await?
            .into_iter()
            .filter(|daemon| daemon.pid.is_some())
            .map(|daemon| daemon.name)
            .collect();
        for name in [ETCD_DAEMON, API_SERVER_DAEMON] {
            if !running.iter().any(|one| one == name) {
                self.machines.start_again(name).await?;
            }
        }
        if !running.iter().any(|one| one == "postgres") {
            self.database().start().await?;
        }
        self.database().ready().await?;
        self.api_server_ready().await?;
        let mut booted = Vec::new();
        for node in self.nodes() {
            if self.has_power(&node.name) {
                network::set_cable(&node.name, true).await?;
                cgroups.thaw_all(&cgroups.machine(&node.name))?;
                self.resume_proxy(&node.name).await?;
            } else {
                self.power_on(&node.name).await?;
                booted.push(self.sign_of_life(&node.name, limit));
            }
        }
        futures::future::try_join_all(booted).await?;
        self.nodes_ready(limit).await
    }
}

/// The file that marks a node as powered off.
fn off_mark(node: &str) -> PathBuf {
    Path::new(crate::state::RUN_DIR).join(format!("{node}.off"))
}
