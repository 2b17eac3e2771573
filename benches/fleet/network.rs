//! The pods' addresses, and faults of chosen addresses: packets that are lost or refused.

use std::{
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// The addresses of all pods. A route makes all of them local, so that none is configured by itself.
const POD_RANGE: &str = "198.19.0.0/16";
/// The port of all pods.
pub(crate) const PORT: u16 = 8080;

/// What happens to packets for a pod.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// They are dropped, as when the machine has no power.
    Silent,
    /// They are refused, as when nothing listens on the port.
    Refusing,
}

/// The address of the pod with this number.
pub(crate) fn address(pod: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(198, 19, 0, 1));
    Ipv4Addr::from(first + u32::try_from(pod).expect("the plan allows at most 60,000 pods"))
}

pub(crate) fn set_up() -> Result<()> {
    run("ip", &["-batch", "-"], &format!("link set lo up\nroute add local {POD_RANGE} dev lo\n"))?;
    nft(&format!(
        "table ip fleet {{
           set silent {{ type ipv4_addr; }}
           set refusing {{ type ipv4_addr; }}
           chain input {{
             type filter hook input priority 0; policy accept;
             tcp dport {PORT} ip daddr @silent drop
             tcp dport {PORT} ip daddr @refusing reject with tcp reset
           }}
         }}"
    ))
}

/// Starts the fault for these addresses, for all at the same moment.
pub(crate) fn start_fault(fault: Fault, addresses: &[Ipv4Addr]) -> Result<()> {
    let elements: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    nft(&format!("add element ip fleet {} {{ {} }}", fault.set(), elements.join(", ")))
}

/// Ends the fault everywhere.
pub(crate) fn heal(fault: Fault) -> Result<()> {
    nft(&format!("flush set ip fleet {}", fault.set()))
}

impl Fault {
    fn set(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Refusing => "refusing",
        }
    }
}

fn nft(script: &str) -> Result<()> {
    run("nft", &["-f", "-"], script)
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}, of the package iproute2 or nftables"))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(input.as_bytes()).with_context(|| format!("writing to {program}"))?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
