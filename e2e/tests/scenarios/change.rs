//! Ways to change the holder of a group whose pods all work: what happens to the active pod, and how to undo it.

use std::fmt;

use anyhow::Result;
use kube::api::DeleteParams;
use leadergroup_e2e::{
    moment::Moment,
    scenario::{Active, CRASHED, DELETED, Scenario},
};

/// A way to change the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Switchover,
    Deletion,
    DeletionByForce,
    /// All processes of the pod are killed.
    Crash,
    /// The process that the agent has started is killed, but not the agent.
    CrashOfProgram,
    /// All processes of the pod stand still.
    Freeze,
    /// The pod's node loses its network.
    CutOff,
}

impl Change {
    /// What happens to each example of a program with an agent.
    pub(crate) const EXAMPLES: [Self; 3] = [Self::Deletion, Self::CrashOfProgram, Self::Switchover];

    /// The reasons that the operator may give for it.
    pub(crate) fn reasons(self) -> &'static [&'static str] {
        match self {
            Self::Switchover => &["Switchover"],
            Self::Deletion | Self::DeletionByForce => &DELETED,
            Self::Crash | Self::CrashOfProgram => &CRASHED,
            Self::Freeze => &["Silent", "PodNotReady"],
            Self::CutOff => &["Silent"],
        }
    }

    /// Whether the pod hangs until [`Change::undo`].
    pub(crate) fn hangs(self) -> bool {
        matches!(self, Self::Freeze | Self::CutOff)
    }

    /// Does it to the active pod. A switchover's request has this name. Returns when it took place.
    pub(crate) async fn begin(self, s: &Scenario, before: &Active, request: &str) -> Result<Moment> {
        let at = Moment::now();
        let delete = DeleteParams::default();
        match self {
            Self::Switchover => s.request_switchover(&s.workload.name, request, None).await?,
            Self::Deletion => drop(s.pods().delete(&before.pod, &delete).await?),
            Self::DeletionByForce => drop(s.pods().delete(&before.pod, &delete.grace_period(0)).await?),
            Self::Crash => drop(s.stage.own()?.kill_pod(&before.uid)?),
            Self::CrashOfProgram => return Ok(s.stage.own()?.kill_program(&before.uid)?.into()),
            Self::Freeze => return Ok(s.stage.own()?.freeze_pod(&before.uid).await?.into()),
            Self::CutOff => return Ok(s.stage.own()?.cut_off(&before.node).await?.into()),
        }
        Ok(at)
    }

    /// Ends what lasts.
    pub(crate) async fn undo(self, s: &Scenario, before: &Active) -> Result<()> {
        match self {
            Self::Freeze => s.stage.own()?.thaw_pod(&before.uid),
            Self::CutOff => s.stage.own()?.reconnect(&before.node).await,
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switchover => "requested",
            Self::Deletion => "deleted",
            Self::DeletionByForce => "deleted by force",
            Self::Crash => "killed",
            Self::CrashOfProgram => "program killed",
            Self::Freeze => "frozen",
            Self::CutOff => "cut-off",
        })
    }
}
