//! The end of a scenario: a group that is Ready comes to rest.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time;

use super::{STARTED, Scenario, eventually};
use crate::history::{not_at_rest, operator_writes};

/// How long nothing must be written. Longer than the intervals at which standbys are stamped and pods are probed.
const QUIET: Duration = Duration::from_secs(2);

impl Scenario {
    /// I6, I7, I8: if the group is Ready, all its pods get their labels, and then nothing is written any more.
    pub(super) async fn rests(&self) -> Result<()> {
        let Some(group) = self.groups().get_opt(&self.workload.name).await? else { return Ok(()) };
        let conditions = group.status.unwrap_or_default().conditions;
        if !conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True") {
            return Ok(());
        }
        eventually("every pod to have its labels", STARTED, async || {
            let wrong = not_at_rest(&self.objects().await?);
            ensure!(wrong.is_empty(), "{wrong:?}");
            Ok(())
        })
        .await?;
        if self.stage.recorder.is_none() {
            // A watch of the API server shows only from time to time up to which revision it has seen everything.
            return Ok(());
        }
        eventually("the operator to write nothing (I8)", STARTED, async || {
            let revision = self.revision().await?;
            time::sleep(QUIET).await;
            let writes = operator_writes(&self.objects().await?, revision);
            ensure!(writes.is_empty(), "within {} s it wrote {writes:?}", QUIET.as_secs());
            Ok(())
        })
        .await
    }
}
