//! One round: what happens to the pod whose program writes, and for how long no program writes then.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::join_all;
use kube::api::DeleteParams;
use leadergroup_e2e::{
    journal::Process,
    scenario::{STARTED, eventually},
};
use serde::Serialize;
use tokio::time;

use crate::candidate::{Candidate, Kind, Writing};

/// How long the next program writes before a pod that was stopped goes on.
const BESIDE: Duration = Duration::from_secs(2);
/// client-go gives up after this time at the latest, with the longest renew deadline here.
const GIVES_UP: Duration = Duration::from_secs(12);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A switchover is requested.
    Planned,
    /// The pod is deleted.
    Deletion,
    /// The program is killed.
    Crash,
    /// The node loses power.
    PowerOff,
    /// The pod's processes are stopped until the next program writes, and then go on.
    Stop,
}

impl Change {
    pub(crate) const ALL: [Self; 5] =
        [Self::Planned, Self::Deletion, Self::Crash, Self::PowerOff, Self::Stop];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Planned => "switchover requested",
            Self::Deletion => "pod deleted",
            Self::Crash => "program killed",
            Self::PowerOff => "node without power",
            Self::Stop => "pod stopped, goes on later",
        }
    }

    /// Whether a candidate has this change.
    pub(crate) fn is_of(self, candidate: &Candidate) -> bool {
        self != Self::Planned || matches!(candidate.kind, Kind::Agent(_))
    }
}

/// The figures of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Figures {
    /// Milliseconds without a program: from the former one's last write before the next one's first to that one.
    pub(crate) without: u64,
    /// Milliseconds from that write to the last one of the former program; 0 if that came before.
    pub(crate) overlap: u64,
}

/// Causes a change of one pod, and measures it.
pub(crate) async fn measure(candidate: &Candidate, change: Change, round: usize) -> Result<Figures> {
    let writing = candidate.settled().await?;
    let (scenario, cluster) = (&candidate.scenario, candidate.scenario.stage.own()?);
    match change {
        Change::Planned => {
            scenario.request_switchover(&scenario.workload.name, &round.to_string(), None).await?;
        }
        Change::Deletion => drop(scenario.pods().delete(&writing.pod, &DeleteParams::default()).await?),
        Change::Crash => drop(cluster.kill_program(&writing.uid)?),
        Change::Stop => {
            cluster.pause(&writing.uid)?;
            let next = since(candidate, &writing).await;
            time::sleep(BESIDE).await;
            cluster.resume(&writing.uid)?;
            next?;
            time::sleep(GIVES_UP).await;
        }
        Change::PowerOff => bail!("a node loses power for all candidates together"),
    }
    since(candidate, &writing).await
}

/// Takes the power of a node on which all candidates write.
pub(crate) async fn power_off(candidates: &[Candidate]) -> Result<Vec<Figures>> {
    let first = candidates.first().context("there is a candidate")?;
    let writing = all_on_one_node(candidates).await?;
    let node = writing.first().context("there is a candidate")?.node.clone();
    ensure!(writing.iter().all(|one| one.node == node), "not all write on {node}: {writing:?}");
    let cluster = first.scenario.stage.own()?;
    cluster.power_off(&node).await?;
    let next = candidates.iter().zip(&writing).map(|(candidate, writing)| since(candidate, writing));
    let next = join_all(next).await;
    cluster.power_on(&node).await?;
    cluster.heal(STARTED).await?;
    first.scenario.stage.operator.ready(STARTED).await?;
    next.into_iter().collect()
}

/// Moves the programs to the node of the first one. A new pod would be faster than the candidate on that node, so it
/// must wait until that one is the leader.
async fn all_on_one_node(candidates: &[Candidate]) -> Result<Vec<Writing>> {
    let mut writing = Vec::new();
    for candidate in candidates {
        writing.push(candidate.settled().await?);
    }
    let first = candidates.first().context("there is a candidate")?;
    let node = writing.first().context("there is a candidate")?.node.clone();
    let others = first.scenario.stage.own()?.nodes().iter().filter(|other| other.name != node);
    let others: Vec<String> = others.map(|other| other.name.clone()).collect();
    for other in &others {
        first.scenario.cordon(other, true).await?;
    }
    let moves = candidates.iter().zip(&writing).map(|(candidate, writing)| candidate.move_to(&node, writing));
    let done = join_all(moves).await;
    for other in &others {
        first.scenario.cordon(other, false).await?;
    }
    done.into_iter().collect::<Result<Vec<()>>>()?;
    let mut writing = Vec::new();
    for candidate in candidates {
        writing.push(candidate.settled().await?);
    }
    Ok(writing)
}

/// Waits until the next program writes.
async fn since(candidate: &Candidate, former: &Writing) -> Result<Figures> {
    eventually("another program to write", STARTED, async || {
        figures(&candidate.journal.processes()?, former.begun).context("none has begun")
    })
    .await
    .with_context(|| candidate.name.to_owned())
}

/// The figures of the process that began at `begun`, and of the first one after that.
fn figures(processes: &[Process], begun: Duration) -> Option<Figures> {
    let first = |it: &Process| it.times.first().copied();
    let former = processes.iter().find(|it| first(it) == Some(begun))?;
    let next = processes.iter().filter_map(first).filter(|first| *first > begun).min()?;
    let before = former.times.iter().rfind(|time| **time <= next)?;
    let last = former.times.last()?;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Some(Figures {
        without: milliseconds(next.saturating_sub(*before)),
        overlap: milliseconds(last.saturating_sub(next)),
    })
}
