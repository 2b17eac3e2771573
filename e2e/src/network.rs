//! The network: a namespace for each machine, connected by a bridge ("the switch") in its own namespace, with one
//! cable from the host. There is no default route, so no traffic of a test leaves this machine.

use std::{path::Path, process::Output, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::command::{run, run_with_input};

/// The namespace of the switch with its bridge.
const SWITCH: &str = "lg-switch";
/// Prefix of all our namespaces.
const PREFIX: &str = "lg-";
/// The host's end of its cable.
const HOST_LINK: &str = "lg-host";
/// The host's name as a machine, for cutting paths, and its port on the switch.
pub const HOST: &str = "host";
/// The host's address in the cluster's network.
pub const HOST_ADDRESS: &str = "198.18.0.1";
/// The machine of etcd and of Kubernetes' control plane.
pub const CONTROL: &str = "control";
/// The machine of the PostgreSQL server.
pub const DATABASE: &str = "database";
/// The address of [`CONTROL`].
pub const CONTROL_ADDRESS: &str = "198.18.0.10";
/// The address of [`DATABASE`].
pub const DATABASE_ADDRESS: &str = "198.18.0.20";
/// All pods of all nodes.
pub const POD_RANGE: &str = "198.18.64.0/18";
/// The `ClusterIP`s.
pub const SERVICE_RANGE: &str = "198.19.0.0/20";
/// How long a node remembers where a connection led that was not answered, or that the other side reset. The kernel's
/// defaults are two minutes and ten seconds. For so long a new connection from the same port leads to the same address,
/// wherever the Service routes by then, which looks like a fault of the operator.
pub const REMEMBERED: Duration = Duration::from_secs(2);
/// Maximum number of nodes, limited by the addresses.
pub const MAX_NODES: u8 = 60;

/// A machine of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name. For a node, also the node's name in Kubernetes.
    pub name: String,
    /// Its address.
    pub address: String,
    /// The address range of its pods, for a node.
    pub pods: Option<String>,
}

impl Machine {
    /// The machine of the control plane.
    pub fn control() -> Self {
        Self { name: CONTROL.to_owned(), address: CONTROL_ADDRESS.to_owned(), pods: None }
    }

    /// The machine of the database.
    pub fn database() -> Self {
        Self { name: DATABASE.to_owned(), address: DATABASE_ADDRESS.to_owned(), pods: None }
    }

    /// The node of that number, from 1.
    pub fn node(number: u8) -> Self {
        Self {
            name: format!("node-{number}"),
            address: format!("198.18.0.{}", 30 + number),
            pods: Some(format!("198.18.{}.0/24", 64 + number)),
        }
    }

    /// The network namespace of this machine.
    pub fn namespace(&self) -> String {
        namespace(&self.name)
    }
}

/// The network namespace of the machine of that name.
pub fn namespace(machine: &str) -> String {
    format!("{PREFIX}{machine}")
}

/// Creates the switch and the host's cable. The host's routes to pods lead to `nodes`.
pub async fn create_switch(nodes: &[Machine]) -> Result<()> {
    run("ip", ["netns", "add", SWITCH])
        .await
        .context("cannot create network namespaces: is this root on Linux?")?;
    batch(SWITCH, "link set lo up\nlink add br0 type bridge forward_delay 0\nlink set br0 up\n").await?;
    run("ip", ["link", "add", HOST_LINK, "type", "veth", "peer", "name", HOST, "netns", SWITCH]).await?;
    batch(SWITCH, &format!("link set {HOST} master br0\nlink set {HOST} up\n")).await?;
    run("ip", ["address", "add", &format!("{HOST_ADDRESS}/24"), "dev", HOST_LINK]).await?;
    run("ip", ["link", "set", HOST_LINK, "up"]).await?;
    for node in nodes {
        if let Some(pods) = &node.pods {
            run("ip", ["route", "add", pods, "via", &node.address]).await?;
        }
    }
    run_with_input(
        "ip",
        ["netns", "exec", SWITCH, "nft", "-f", "-"],
        "table bridge faults {
           set paths { type ifname . ifname; }
           set ports { type ifname . ifname . inet_service; }
           chain forward {
             type filter hook forward priority 0; policy accept;
             iifname . oifname @paths drop
             meta protocol ip iifname . oifname . tcp dport @ports drop
           }
         }",
    )
    .await?;
    Ok(())
}

/// Creates a machine's namespace and connects it to the switch. Its routes to pods lead to `nodes`.
pub async fn create_machine(machine: &Machine, nodes: &[Machine]) -> Result<()> {
    let (namespace, name) = (machine.namespace(), &machine.name);
    run("ip", ["netns", "add", &namespace]).await?;
    run(
        "ip",
        ["link", "add", "eth0", "netns", &namespace, "type", "veth", "peer", "name", name, "netns", SWITCH],
    )
    .await?;
    batch(SWITCH, &format!("link set {name} master br0\nlink set {name} up\n")).await?;
    let mut lines =
        format!("link set lo up\naddress add {}/24 dev eth0\nlink set eth0 up\n", machine.address);
    for node in nodes.iter().filter(|node| *node != machine) {
        if let Some(pods) = &node.pods {
            lines.push_str(&format!("route add {pods} via {}\n", node.address));
        }
    }
    if machine.pods.is_some() {
        // A route must exist, like a default route elsewhere; kube-proxy's rules decide the destination.
        lines.push_str(&format!("route add {SERVICE_RANGE} dev eth0\n"));
    }
    batch(&namespace, &lines).await?;
    if machine.pods.is_some() {
        let remembered: String = ["syn_sent", "fin_wait", "last_ack", "close"]
            .map(|state| format!(" && echo {} >nf_conntrack_tcp_timeout_{state}", REMEMBERED.as_secs()))
            .concat();
        let set = format!("echo 1 >/proc/sys/net/ipv4/ip_forward && cd /proc/sys/net/netfilter{remembered}");
        run("nsenter", [&format!("--net=/run/netns/{namespace}"), "sh", "-c", &set]).await?;
    }
    Ok(())
}

/// Removes a machine's cable and its namespace. Its processes must have ended.
pub async fn remove_machine(machine: &str) -> Result<()> {
    // The cable first: the kernel removes a namespace's devices some time later, and the port's name is needed again.
    if link_exists(machine).await {
        run("ip", ["-n", SWITCH, "link", "delete", machine]).await?;
    }
    let namespace = namespace(machine);
    if Path::new("/run/netns").join(&namespace).exists() {
        run("ip", ["netns", "delete", &namespace]).await?;
    }
    Ok(())
}

/// Unplugs a machine's cable, or plugs it in again.
pub async fn set_cable(machine: &str, plugged: bool) -> Result<()> {
    let state = if plugged { "up" } else { "down" };
    run("ip", ["-n", SWITCH, "link", "set", machine, state]).await?;
    Ok(())
}

/// Whether a machine has a cable in the switch.
pub async fn link_exists(machine: &str) -> bool {
    run("ip", ["-n", SWITCH, "link", "show", "dev", machine]).await.is_ok()
}

/// Drops every frame from one machine to the other (in this direction only), or with a port only TCP to that port.
/// [`HOST`] is a machine here.
pub async fn cut(from: &str, to: &str, port: Option<u16>) -> Result<()> {
    element("add", from, to, port).await
}

/// Undoes a [`cut`] with the same arguments.
pub async fn heal(from: &str, to: &str, port: Option<u16>) -> Result<()> {
    element("delete", from, to, port).await
}

/// Whether a packet comes from one machine to an address, and its answer comes back. With a port it is TCP's first.
pub async fn passes(from: &str, address: &str, port: Option<u16>) -> Result<bool> {
    let connect = port.map(|port| format!("</dev/tcp/{address}/{port}"));
    let call: &[&str] = match &connect {
        None => &["busybox", "ping", "-c", "1", "-W", "1", address],
        Some(connect) => &["bash", "-c", connect],
    };
    let done = on(from, call).await.context("sending a packet")?;
    // A machine on which nothing listens to the port has answered.
    let refused = port.is_some() && String::from_utf8_lossy(&done.stderr).contains("Connection refused");
    Ok(done.status.success() || refused)
}

/// How many echo requests have reached a machine, whether or not its answers reached anyone.
pub async fn echo_requests(machine: &str) -> Result<u64> {
    let done = on(machine, &["cat", "/proc/net/snmp"]).await?;
    ensure!(done.status.success(), "{machine}: {}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    // A line of names, then a line of values.
    let mut icmp = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
    let (names, values) = icmp.next().zip(icmp.next()).context("the kernel counts no ICMP packets")?;
    let found = names.split_whitespace().zip(values.split_whitespace()).find(|(name, _)| *name == "InEchos");
    found.context("the kernel counts no echo requests")?.1.parse().context("the count of echo requests")
}

/// Runs a command for a second at most in a machine's network namespace.
async fn on(machine: &str, command: &[&str]) -> Result<Output> {
    let mut call = Command::new("timeout");
    call.arg("1");
    if machine != HOST {
        call.arg("nsenter").arg(format!("--net=/run/netns/{}", namespace(machine)));
    }
    Ok(call.args(command).kill_on_drop(true).env("LC_ALL", "C").output().await?)
}

/// Undoes all cuts.
pub async fn heal_all() -> Result<()> {
    let text = "flush set bridge faults paths\nflush set bridge faults ports\n";
    run_with_input("nsenter", [&switch_net(), "nft", "-f", "-"], text).await?;
    Ok(())
}

async fn element(verb: &str, from: &str, to: &str, port: Option<u16>) -> Result<()> {
    let text = match port {
        None => format!("{verb} element bridge faults paths {{ \"{from}\" . \"{to}\" }}\n"),
        Some(port) => format!("{verb} element bridge faults ports {{ \"{from}\" . \"{to}\" . {port} }}\n"),
    };
    run_with_input("nsenter", [&switch_net(), "nft", "-f", "-"], &text).await?;
    Ok(())
}

fn switch_net() -> String {
    format!("--net=/run/netns/{SWITCH}")
}

/// Removes all our namespaces and the host's cable, if they exist.
pub async fn remove_all() -> Result<()> {
    if host_link_exists() {
        // It may already have been removed with its namespace.
        let _ = run("ip", ["link", "delete", HOST_LINK]).await;
    }
    for name in namespaces() {
        run("ip", ["netns", "delete", &name]).await?;
    }
    // `ip netns add` turned the directory into a mount point. If it is empty, it is not in use.
    let folder = Path::new("/run/netns");
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_none()) {
        let _ = run("umount", [folder]).await;
        let _ = std::fs::remove_dir(folder);
    }
    Ok(())
}

/// Whether the host has a cable into a cluster's network.
pub fn host_link_exists() -> bool {
    // Not /sys/class/net, which shows the namespace in which it was mounted.
    let devices = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    devices.lines().any(|line| line.trim_start().starts_with(&format!("{HOST_LINK}:")))
}

/// Our existing network namespaces.
pub fn namespaces() -> Vec<String> {
    let Ok(entries) = Path::new("/run/netns").read_dir() else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

async fn batch(namespace: &str, lines: &str) -> Result<()> {
    run_with_input("ip", ["-n", namespace, "-batch", "-"], lines).await?;
    Ok(())
}
