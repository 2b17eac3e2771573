//! Other users try to set roles, and the operator's account tries to change more than roles: the chart's admission
//! policies refuse both. Removing a label by hand stays possible.

use std::{io::Write as _, rc::Rc};

use anyhow::{Context, Result, bail, ensure};
use leadergroup::api::{FENCING_ANNOTATION, ROLE_LABEL, STAMP_ANNOTATION};
use leadergroup_e2e::scenario::{
    Active, IMAGE, OPERATOR_NAMESPACE, RELEASE, STARTED, Scenario, Stage, Workload,
};
use serde_json::json;

const OTHERS: &str = "may be set only by the LeaderGroup operator";

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    Scenario::play(stage, "foreign-labels", Workload::default(), async |s| {
        let before = s.elect().await?;
        let client = s.call_from(&before.node).await?;
        let revision = s.revision().await?;
        let standby = &standby(s, &before).await?;

        let (role, stamp) =
            (format!("{ROLE_LABEL}=active"), format!("{STAMP_ANNOTATION}=x/{}", before.token));
        refused(s, &["label", "pod", standby, "--overwrite", &role], OTHERS).await?;
        let fencing = format!("{FENCING_ANNOTATION}=x/{}", before.token);
        for annotation in [&stamp, &fencing] {
            refused(s, &["annotate", "pod", standby, "--overwrite", annotation], OTHERS).await?;
        }
        let labels = json!({ "metadata": { "labels": { ROLE_LABEL: "active" } } }).to_string();
        refused(s, &["patch", "pod", standby, "--subresource=status", "--type=merge", "-p", &labels], OTHERS)
            .await?;
        refused(s, &["run", "intruder", "--image", IMAGE, "--labels", &role], OTHERS).await?;
        for annotation in [&stamp, &fencing] {
            refused(s, &["run", "intruder", "--image", IMAGE, "--annotations", annotation], OTHERS).await?;
        }
        // A binding's labels would be copied to the pod.
        let mut binding = tempfile::NamedTempFile::new()?;
        let object = json!({
            "apiVersion": "v1", "kind": "Binding", "target": { "kind": "Node", "name": before.node },
            "metadata": { "name": standby, "labels": { ROLE_LABEL: "active" } },
        });
        binding.write_all(object.to_string().as_bytes())?;
        let file = binding.path().to_str().context("the file's path is no text")?;
        for path in [format!("pods/{standby}/binding"), "bindings".to_owned()] {
            let path = format!("/api/v1/namespaces/{}/{path}", s.namespace);
            refused(s, &["create", "--raw", &path, "-f", file], OTHERS).await?;
        }

        let account = format!("--as=system:serviceaccount:{OPERATOR_NAMESPACE}:{RELEASE}");
        let image = json!({ "spec": { "containers": [{ "name": "web", "image": "example.com/other" }] } })
            .to_string();
        let finalizer = json!({ "metadata": { "finalizers": ["example.com/stuck"] } }).to_string();
        for (args, why) in [
            (&["label", "pod", standby, "--overwrite", "app=other"][..], "may change only the labels"),
            (&["label", "pod", standby, "app-"], "may change only the labels"),
            (&["annotate", "pod", standby, "example.com/a=b"], "may change only its own annotations"),
            (&["patch", "pod", standby, "-p", &image], "may not change what runs in a pod"),
            (&["patch", "pod", standby, "-p", &finalizer], "may change neither owners nor finalizers"),
        ] {
            refused(s, &[&[account.as_str()], args].concat(), why).await?;
        }

        ensure!(s.settled(STARTED).await? == before, "the active pod changed");
        s.no_role_changed(revision).await?;

        restores_a_label(s, &before).await?;
        let calls = s.hang_up(client).await?;
        ensure!(calls.pods() == [before.pod.as_str()], "answered by {:?}", calls.pods());
        Ok(())
    })
    .await
}

async fn standby(s: &Scenario, active: &Active) -> Result<String> {
    let members = s.members().await?;
    let standby = members.iter().find(|pod| pod.metadata.uid.as_deref() != Some(active.uid.as_str()));
    standby.and_then(|pod| pod.metadata.name.clone()).context("there is no standby")
}

/// Removes a standby's label by hand. The operator restores it, which also shows that the group's owner sees the pods.
pub(crate) async fn restores_a_label(s: &Scenario, active: &Active) -> Result<()> {
    let (standby, removed) = (standby(s, active).await?, format!("{ROLE_LABEL}-"));
    s.stage.run_kubectl(&["--namespace", &s.namespace, "label", "pod", &standby, &removed]).await?;
    ensure!(s.settled(STARTED).await? == *active, "the active pod changed after a standby lost its label");
    Ok(())
}

/// Runs kubectl in the scenario's namespace: the API server must refuse, and say why.
pub(crate) async fn refused(s: &Scenario, args: &[&str], why: &str) -> Result<()> {
    let command = args.join(" ");
    match s.stage.run_kubectl(&[&["--namespace", s.namespace.as_str()], args].concat()).await {
        Ok(_) => bail!("kubectl {command} was not refused"),
        Err(error) => {
            let error = format!("{error:#}");
            ensure!(error.contains(why), "kubectl {command} failed, but not because it {why}: {error}");
            Ok(())
        }
    }
}
