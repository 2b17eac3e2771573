//! The path between the owner's node and the active pod's node is cut; everything else works. The active pod stays, and
//! the group goes to the other replica, which hears it.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};

use crate::ownership::{node_of, owner, owner_elsewhere};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "path-cut", Workload::default(), async |s| {
        let before = s.elect().await?;
        let database = s.stage.own()?.database();
        let beats = async || -> Result<u64> {
            let beats = "select min(beat) from leadergroup.session where not dead";
            Ok(database.sql("leadergroup", beats).await?.trim().parse()?)
        };
        // Otherwise the group might move because it falls to another replica.
        eventually("old sessions", STARTED, async || {
            ensure!(beats().await? > 12, "a replica has just joined");
            Ok(())
        })
        .await?;
        let (name, node) = owner_elsewhere(s, &before.node).await?;
        let replicas = s.stage.operator.replicas().await?;
        let elsewhere = replicas.iter().filter_map(node_of).any(|other| other != node);
        ensure!(elsewhere, "all replicas are on {node}");
        let cluster = s.stage.own()?;
        cluster.cut_path(&node, &before.node).await?;
        let moved = eventually("the other replica to own the group", STARTED, async || {
            let (_, now) = owner(s).await?;
            ensure!(now != name, "{name} still owns the group");
            Ok(())
        })
        .await;
        // The new owner may be on the active pod's node. Then it does not hear the standby on the other end of the
        // path.
        let active = s.active().await;
        cluster.heal_path(&node, &before.node).await?;
        moved?;
        let active = active?;
        ensure!(active == before, "the cut path moved the active role from {before:?} to {active:?}");
        let settled = s.settled(STARTED).await?;
        ensure!(settled == before, "the mended path moved the active role from {before:?} to {settled:?}");
        s.stage.operator.ready(STARTED).await?;
        Ok(())
    })
    .await
}
