//! The other provider: this cluster is accessed only through its kubeconfig file. The history is recorded by watching
//! the API, and the client is a pod.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use leadergroup_e2e::{
    provider::{Kubeconfig, Provider},
    scenario::{Scenario, Stage, Workload, beside},
};

use crate::active_pod_deleted;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let own = stage.own()?;
    let existing = Kubeconfig { path: own.kubeconfig(), database_url: Some(own.database_url()) };
    let elsewhere = Stage::start(Provider::Kubeconfig(existing), &stage.program, &beside("leadergroup")?)
        .await
        .context("as on an existing cluster")?;
    ensure!(elsewhere.values.is_none(), "the installed operator is not used");
    ensure!(elsewhere.recorder.is_none() && elsewhere.own().is_err(), "it has access to the machines");
    let told =
        Scenario::play(&elsewhere, "existing-cluster", Workload::default(), active_pod_deleted::story).await;
    stage.together.add_all(&elsewhere.together);
    told
}
