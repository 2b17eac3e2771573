//! The group is deleted: its labels are removed, and the lock keeps a tombstone. A new group of the same name
//! continues with a larger token.

use std::rc::Rc;

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, ListParams};
use leadergroup::api::STAMP_ANNOTATION;
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage, Workload, eventually};

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "group-deleted", Workload::default(), async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        let name = s.workload.name.clone();
        s.groups().delete(&name, &DeleteParams::default()).await?;
        eventually("the group to be gone", STARTED, async || {
            ensure!(s.groups().get_opt(&name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
        // The labels are removed before the group is gone.
        for pod in s.pods().list(&ListParams::default()).await?.items {
            let label = pod.metadata.labels.unwrap_or_default().remove(s.workload.role_label);
            let stamp = pod.metadata.annotations.unwrap_or_default().remove(STAMP_ANNOTATION);
            ensure!(label.is_none(), "{:?} is still {label:?}, stamp {stamp:?}", pod.metadata.name);
        }
        if let Some(cluster) = s.stage.provider.faults() {
            let query = format!(
                "select tombstone, token from leadergroup.lock where key like '%/{}/{name}'",
                s.namespace
            );
            let row = cluster.database().sql("leadergroup", &query).await?;
            ensure!(row.trim() == format!("t|{}", before.token), "the lock's row is {row:?}");
        }
        let after = s.elect().await?;
        ensure!(after.token > before.token, "token {} follows {}", after.token, before.token);
        s.other_promotions = 2..=2;
        s.hang_up(client).await?;
        Ok(())
    })
    .await
}
