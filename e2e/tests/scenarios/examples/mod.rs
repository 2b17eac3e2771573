//! The examples of programs that agents run: a scheduler, a consumer, Redis, NATS, and a program that used to elect its
//! leader with client-go. Of each, the active pod is deleted, the program killed, and a switchover requested. What was
//! written before is there after, and no two programs run at the same moment.

mod client_go;
pub(crate) mod node_lost;
mod queue;
mod servers;

use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::{LocalBoxFuture, join_all};
use kube::{Api, ResourceExt as _, api::ListParams};
use leadergroup_e2e::{
    images::{EXAMPLES, Image},
    running::{Watch, gaps},
    scenario::{Active, STARTED, Scenario, Stage, Workload, beside, eventually},
    state::RUN_DIR,
};
use serde_json::{Value, json};
use tokio::time;

use crate::change::Change;

/// Other scenarios keep the machine busy, and a deleted pod has to end its program first.
const REPLACED: Duration = Duration::from_secs(30);
/// How often it is looked for new pods, whose programs are to be watched. It takes a pod longer to start one.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    load(stage).await?;
    let all: [LocalBoxFuture<'_, Result<()>>; 5] = [
        Box::pin(queue::scheduler(stage)),
        Box::pin(queue::consumer(stage)),
        Box::pin(servers::redis(stage, "example-redis", &Change::EXAMPLES)),
        Box::pin(servers::nats(stage)),
        Box::pin(client_go::moved(stage)),
    ];
    let failed: Vec<_> = join_all(all).await.into_iter().filter_map(Result::err).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// Gives the image of the examples to the nodes.
async fn load(stage: &Stage) -> Result<()> {
    let own = stage.own()?;
    own.load_image(&Image::examples(&beside("leadergroup-agent")?, own.programs())?).await
}

/// An example on the cluster. Its objects have its name.
struct Example {
    name: &'static str,
    /// In place of the volume, on every node.
    folder: PathBuf,
    objects: Vec<Value>,
}

impl Example {
    fn new(name: &'static str, text: &str) -> Result<Self> {
        let folder = Path::new(RUN_DIR).join("examples").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Self::on_volume(name, text, folder)
    }

    /// The example as printed, but for its images and its volume: they are the cluster's.
    fn on_volume(name: &'static str, text: &str, folder: PathBuf) -> Result<Self> {
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(text).with_context(|| name.to_owned())?;
        objects.retain(|object| object["kind"] != "PersistentVolumeClaim");
        for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
            let pod = &mut object["spec"]["template"]["spec"];
            for kind in ["initContainers", "containers"] {
                for container in pod[kind].as_array_mut().into_iter().flatten() {
                    container["image"] = EXAMPLES.into();
                    container["imagePullPolicy"] = "Never".into();
                }
            }
            let volumes = pod["volumes"].as_array_mut().into_iter().flatten();
            for volume in volumes.filter(|volume| volume.get("persistentVolumeClaim").is_some()) {
                let path = json!({ "path": folder, "type": "Directory" });
                *volume = json!({ "name": volume["name"], "hostPath": path });
            }
        }
        Ok(Self { name, folder, objects })
    }

    /// Sets a variable of the program's environment.
    fn set(&mut self, variable: &str, value: &str) -> Result<()> {
        let env = |object| Value::pointer_mut(object, "/spec/template/spec/containers/0/env");
        let mut all = self.objects.iter_mut().filter_map(env).filter_map(Value::as_array_mut).flatten();
        let found = all.find(|one| one["name"] == variable);
        found.with_context(|| format!("{variable} is not set"))?["value"] = value.into();
        Ok(())
    }

    /// The objects of these kinds, or all, for `kubectl apply`.
    fn manifests(&self, kinds: &[&str]) -> String {
        let is_wanted =
            |object: &&Value| kinds.is_empty() || kinds.iter().any(|kind| object["kind"] == **kind);
        let items: Vec<&Value> = self.objects.iter().filter(is_wanted).collect();
        json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
    }

    /// The workload of its scenario, of which all objects are applied.
    fn workload(&self) -> Workload {
        Workload {
            name: self.name.to_owned(),
            replicas: 2,
            manifests: Some(self.manifests(&[])),
            ..Workload::default()
        }
    }

    /// Waits for the first active pod, and changes it several times. `works` is called with each active pod. Fails if
    /// programs of two pods ran at the same moment, at any time.
    async fn changes(
        &self,
        s: &mut Scenario,
        changes: &[Change],
        mut works: impl AsyncFnMut(&Scenario, &Active) -> Result<()>,
    ) -> Result<()> {
        let watch = Watch::begin();
        let (stage, namespace) = (Rc::clone(&s.stage), s.namespace.clone());
        let story = async {
            let mut active = s.settled(STARTED).await?;
            works(s, &active).await?;
            let mut all = vec![active.pod.clone()];
            for (number, change) in changes.iter().enumerate() {
                let at = change.begin(s, &active, &number.to_string()).await?;
                let (name, reasons) = (change.to_string(), change.reasons());
                let replaced = s.failover_within(&name, &active, at, None, reasons, Some(REPLACED)).await;
                let works = match &replaced {
                    Ok(after) => works(s, after).await,
                    Err(_) => Ok(()),
                };
                change.undo(s, &active).await?;
                replaced?;
                works?;
                active = s.settled(STARTED).await?;
                all.push(active.pod.clone());
            }
            anyhow::Ok(all)
        };
        let told = tokio::select! {
            told = story => told,
            never = follow(&watch, &stage, &namespace) => never,
        };
        let runs = watch.end()?;
        for pod in told? {
            ensure!(runs.iter().any(|run| run.pod == pod), "the program of {pod} was not seen");
        }
        let gaps = gaps(runs)?;
        let gaps: Vec<_> = gaps.iter().map(|gap| format!("{:.2} s", gap.as_secs_f64())).collect();
        s.note(format!("without a program for {}", gaps.join(", ")));
        Ok(())
    }
}

/// Makes all pods of a namespace known to the watch. Never ends but with an error.
async fn follow<T>(watch: &Watch, stage: &Stage, namespace: &str) -> Result<T> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(stage.kube.clone(), namespace);
    let mut looks = time::interval(LOOK);
    loop {
        looks.tick().await;
        // While the network is disturbed, there are no new pods.
        let Ok(all) = pods.list_metadata(&ListParams::default()).await else { continue };
        for pod in all.items {
            let uid = pod.uid().context("a pod without a UID")?;
            if watch.has(&uid) {
                continue;
            }
            // Later, if it has not started.
            if let Ok(group) = stage.own()?.pod_group(&uid) {
                watch.add(&uid, &pod.name_any(), group);
            }
        }
    }
}

/// Runs a command in a pod.
async fn exec(s: &Scenario, pod: &str, command: &[&str]) -> Result<String> {
    let mut args = vec!["exec", "-n", &s.namespace, pod, "--"];
    args.extend(command);
    s.stage.run_kubectl(&args).await
}

/// Repeats a command in a pod until its output contains a text: the program may still be starting.
async fn answers(s: &Scenario, pod: &str, command: &[&str], text: &str) -> Result<()> {
    eventually("the program's answer", STARTED, async || {
        let said = exec(s, pod, command).await?;
        ensure!(said.contains(text), "{command:?} in {pod} says {said:?}, not {text:?}");
        Ok(())
    })
    .await
}
