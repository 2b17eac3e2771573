//! Clients on every node call and write while the role changes for one reason after the other: no two pods serve at
//! the same moment for longer than kube-proxy takes, and what is written with the fence is right. The same without the
//! fence is the control, in which an old holder must be seen.
//!
//! `LEADERGROUP_CLIENTS_CHANGES` is the number of changes, half of them with managed endpoints. A cycle of changes is
//! repeated then.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::{
    command::progress,
    scenario::{Active, STARTED, Scenario, Stage, Workload, clients_changes},
    view::{Fleet, deployment},
};

#[allow(clippy::enum_glob_use, reason = "each is used by its name below")]
use crate::change::Change::*;
use crate::{change::Change, ownership::owner_elsewhere};

/// Each of the short runs has a freeze, after which the control must show an old holder.
const BY_SELECTOR: [Change; 4] = [Switchover, Freeze, Deletion, Crash];
const MANAGED: [Change; 3] = [Switchover, Freeze, CutOff];
const LONG: [Change; 6] = [Switchover, Freeze, Deletion, Switchover, Crash, CutOff];

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let half = clients_changes()?.map(|changes| usize::try_from(changes / 2)).transpose()?;
    for (name, managed, short) in
        [("clients-view", false, BY_SELECTOR.as_slice()), ("clients-view-managed", true, &MANAGED)]
    {
        let kinds: Vec<Change> = match half {
            Some(half) => LONG.iter().copied().cycle().take(half).collect(),
            None => short.to_vec(),
        };
        let mut workload = Workload { managed, ..Workload::default() };
        let namespace = format!("e2e-{name}");
        Fleet::prepare(stage, &namespace, &workload.name).await?;
        let pods = deployment(&namespace, &workload.name, workload.replicas)?;
        workload.deployment = Some(Box::new(pods));
        Scenario::play(stage, name, workload, async |s| story(s, &kinds).await).await?;
    }
    Ok(())
}

async fn story(s: &mut Scenario, kinds: &[Change]) -> Result<()> {
    let mut active = s.elect().await?;
    let mut fleet = Fleet::start(s, &s.workload.name).await?;
    for (number, kind) in kinds.iter().enumerate() {
        fleet.reaches(&active).await?;
        let after = change(s, &mut fleet, *kind, number, &active).await?;
        active = s.settled(STARTED).await?;
        ensure!(active == after, "{} followed {}", active.pod, after.pod);
    }
    fleet.reaches(&active).await?;
    let verdict = fleet.verdict(&s.history().await?).await?;
    for change in &verdict.served.changes {
        s.two_served(change.token, change.opened, change.kept);
    }
    progress(&format!("  {}: {verdict}", s.name));
    s.note(verdict.to_string());
    verdict.ensure()?;
    // A pod was frozen between the read of its token and its write, and resumed after its successor had written. If the
    // plain book does not show that, the writers do not work as this scenario assumes.
    ensure!(verdict.is_proof(), "{verdict}");
    Ok(())
}

/// Changes the holder, and undoes the fault.
async fn change(
    s: &mut Scenario,
    fleet: &mut Fleet,
    kind: Change,
    number: usize,
    before: &Active,
) -> Result<Active> {
    if kind.hangs() {
        fleet.pod_hangs(&before.uid);
    }
    if kind == CutOff {
        owner_elsewhere(s, &before.node).await?;
        fleet.node_is_away(&before.node);
    }
    let at = kind.begin(s, before, &number.to_string()).await?;
    let replaced = async {
        let after = s.failover(&kind.to_string(), before, at, None, kind.reasons()).await?;
        if kind.hangs() {
            fleet.reaches(&after).await?;
        }
        anyhow::Ok(after)
    };
    let after = replaced.await;
    kind.undo(s, before).await?;
    if kind.hangs() {
        fleet.mended().await?;
    }
    match kind {
        // Else the next change could make it active before the kubelet reports that it hung.
        Freeze => s.kubelet_hears(before).await?,
        CutOff => drop(s.stage.operator.ready(STARTED).await?),
        _ => {}
    }
    after
}
