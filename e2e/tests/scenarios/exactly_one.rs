//! Agents run a program in the pods of a group. Each program writes the time to a journal that no network fault cuts
//! off, and has no fence. Whatever happens to its pod, no two programs run at the same moment.

use std::{collections::BTreeMap, fs, path::PathBuf, rc::Rc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{apps::v1::Deployment, rbac::v1::RoleBinding};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use leadergroup_e2e::{
    images,
    moment::Moment,
    scenario::{Active, CRASHED, DELETED, STARTED, Scenario, Stage, TOLD, Workload, eventually},
    state::RUN_DIR,
};
use serde_json::json;

const NAME: &str = "worker";
const LEASE: &str = "4s";
/// The deadline of a failover, after the evidence: another two seconds, and the start of the program.
const REPLACED: Duration = Duration::from_secs(9);

/// Writes the machine's time to a file of its own, about a hundred times a second. It ignores SIGTERM for a while, and
/// leaves a process behind that goes on.
const WRITER: &str = r#"
journal() {
  read -r begin rest </proc/uptime
  while read -r up rest </proc/uptime; do echo "$up"; sleep 0.01; done >>"/journal/$LEADERGROUP_TOKEN.$LEADERGROUP_POD.$begin.$1"
}
read -r pid rest </proc/self/stat; echo "$pid" >/tmp/program
(trap '' TERM; journal child) &
trap 'sleep 0.2; exit 0' TERM
journal own
"#;

/// The time in which one process has run, in seconds since the start of the machine.
#[derive(Clone)]
struct Run {
    token: i64,
    name: String,
    first: f64,
    last: f64,
}

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let journal = PathBuf::from(RUN_DIR).join("journal");
    if journal.exists() {
        fs::remove_dir_all(&journal)?;
    }
    fs::create_dir_all(&journal)?;
    let workload = Workload {
        name: NAME.into(),
        agent_lease: Some(LEASE),
        deployment: Some(Box::new(deployment(&journal)?)),
        ..Workload::default()
    };
    let told = Scenario::play(stage, "exactly-one", workload, async |s| {
        allow_reads(s).await?;
        let group = s.workload.group(NAME)?;
        s.groups().create(&PostParams::default(), &group).await.context("creating the LeaderGroup")?;
        s.pods_ready().await?;
        let mut active = s.settled(STARTED).await?;
        works(&journal, &active).await?;

        for request in ["one", "two", "three"] {
            let at = Moment::now();
            s.request_switchover(NAME, request, None).await?;
            let after =
                s.failover_within(request, &active, at, None, &["Switchover"], Some(REPLACED)).await?;
            works(&journal, &after).await?;
            active = s.settled(STARTED).await?;
        }

        let at = Moment::now();
        crash(s, &active).await?;
        let after = s.failover_within("crashed", &active, at, None, &CRASHED, Some(REPLACED)).await?;
        works(&journal, &after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default()).await?;
        let after = s.failover_within("deleted", &active, at, None, &DELETED, Some(REPLACED)).await?;
        works(&journal, &after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::now();
        s.pods().delete(&active.pod, &DeleteParams::default().grace_period(0)).await?;
        let after =
            s.failover_within("deleted by force", &active, at, None, &DELETED, Some(REPLACED)).await?;
        works(&journal, &after).await?;
        active = s.settled(STARTED).await?;

        let at = Moment::from(s.stage.own()?.cut_off(&active.node).await?);
        let within = s.workload.group(NAME)?.spec.lock.ttl.0 + REPLACED;
        let after = s.failover_within("cut off", &active, at, None, &["Silent"], Some(within)).await;
        let after = match after {
            Ok(after) => works(&journal, &after).await.map(|()| after),
            failed => failed,
        };
        s.stage.own()?.reconnect(&active.node).await?;
        after?;
        s.settled(STARTED).await?;
        s.stage.operator.ready(STARTED).await?;

        let runs = runs(&journal)?;
        let gaps = do_not_overlap(&runs)?;
        s.note(format!("{} terms, without a program for {gaps}", gaps.split(',').count() + 1));
        Ok(())
    })
    .await;
    let removed = fs::remove_dir_all(&journal).context("removing the journal");
    told.and(removed)
}

fn deployment(journal: &std::path::Path) -> Result<Deployment> {
    let labels = json!({ "app": NAME });
    let tolerations: Vec<_> = ["not-ready", "unreachable"]
        .map(|taint| {
            json!({ "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute" })
        })
        .into();
    Ok(serde_json::from_value(json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 3,
                    "enableServiceLinks": false,
                    "tolerations": tolerations,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": { "matchLabels": labels },
                    }],
                    "volumes": [{ "name": "journal", "hostPath": { "path": journal, "type": "Directory" } }],
                    "containers": [{
                        "name": "worker",
                        "image": images::SUPERVISED,
                        "imagePullPolicy": "Never",
                        "args": ["run", "--group", NAME, "--stop-timeout", "2", "--interval", "1", "--", "/bin/sh", "-c", WRITER],
                        "ports": [{ "name": "http", "containerPort": 9470 }],
                        "readinessProbe": {
                            "httpGet": { "path": "/ready", "port": "http" }, "periodSeconds": 2, "timeoutSeconds": 1,
                        },
                        "volumeMounts": [{ "name": "journal", "mountPath": "/journal" }],
                        "resources": {
                            "requests": { "cpu": "20m", "memory": "32Mi" }, "limits": { "memory": "128Mi" },
                        },
                    }],
                },
            },
        },
    }))?)
}

/// The right that an agent needs.
async fn allow_reads(s: &Scenario) -> Result<()> {
    let bindings: Api<RoleBinding> = Api::namespaced(s.stage.kube.clone(), &s.namespace);
    let binding = serde_json::from_value(json!({
        "metadata": { "name": "agents" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "leadergroup-agent" },
        "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": s.namespace }],
    }))?;
    bindings.create(&PostParams::default(), &binding).await.context("the right to read the LeaderGroup")?;
    Ok(())
}

/// Ends the program, as if it had crashed.
async fn crash(s: &Scenario, active: &Active) -> Result<()> {
    let script = "kill -9 $(cat /tmp/program)";
    let args = ["exec", "-n", &s.namespace, &active.pod, "--", "/bin/sh", "-c", script];
    match s.stage.run_kubectl(&args).await {
        Err(killed) if killed.to_string().contains("exit code 137") => Ok(()),
        answer => answer.map(drop),
    }
}

/// Waits until the program of this term writes.
async fn works(journal: &std::path::Path, active: &Active) -> Result<()> {
    eventually("the program of the active pod to write", TOLD, async || {
        let written = runs(journal)?.iter().any(|run| run.token == active.token && run.last > run.first);
        ensure!(written, "no program of term {} has written", active.token);
        Ok(())
    })
    .await
}

/// What each process has written.
fn runs(journal: &std::path::Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(journal)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a file name")?.to_owned();
        let token = name.split('.').next().and_then(|token| token.parse().ok()).context("no token")?;
        let text = fs::read_to_string(&path)?;
        // The last line may be cut off.
        let mut times = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let time = |line: &str| line.trim().parse::<f64>().context("no time");
        let Some(first) = times.next() else { continue };
        let last = times.next_back().unwrap_or(first);
        runs.push(Run { token, name, first: time(first)?, last: time(last)? });
    }
    Ok(runs)
}

/// Fails if processes of two pods or terms have run at the same moment, or a term after a later one. Returns the times
/// between two terms.
fn do_not_overlap(runs: &[Run]) -> Result<String> {
    let mut terms: BTreeMap<(i64, &str), Run> = BTreeMap::new();
    for run in runs {
        let pod = run.name.split('.').nth(1).context("no pod")?;
        let term = terms.entry((run.token, pod)).or_insert_with(|| run.clone());
        (term.first, term.last) = (term.first.min(run.first), term.last.max(run.last));
    }
    let terms: Vec<_> = terms.into_values().collect();
    ensure!(terms.len() > 1, "the programs have written nothing");
    let mut gaps = Vec::new();
    for pair in terms.windows(2) {
        let [before, after] = pair else { continue };
        if after.first <= before.last {
            bail!(
                "{} ran until {} s, and {} from {} s on",
                before.name,
                before.last,
                after.name,
                after.first
            );
        }
        gaps.push(format!("{:.2} s", after.first - before.last));
    }
    Ok(gaps.join(", "))
}
