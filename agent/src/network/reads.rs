//! Quorum reads of the declaration, and a watch that says when to read at once.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde::{Deserialize, de::IgnoredAny};
use tokio::time::{sleep, timeout};

use super::{
    api_server::Connection,
    metrics::ReadResult,
    readiness::LastRead,
    schedule::{BREATH, Schedule},
    shared::{NetworkSettings, Shared},
};
use crate::{contract::Declared, log::say, moment::Moment};

/// The kind, where the API server serves it.
const API: &str = "/apis/leadergroup.dev/v1alpha1";
/// Only the metadata of what has changed.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The pause after a watch that ended.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for the beginning of a watch.
const WATCH_BEGIN: Duration = Duration::from_secs(10);
/// A watch without an event for so long is begun again: its connection may be dead. The API server itself ends it
/// sooner.
const LONGEST_WATCH: Duration = Duration::from_mins(6);

/// A `LeaderGroup`, as far as the agent reads it.
#[derive(Deserialize)]
pub struct Group {
    #[serde(default)]
    spec: Spec,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
struct Spec {
    agent: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Status {
    key: Option<String>,
    declaration: Option<Declared>,
}

/// How the API server says that something is wrong.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    reason: String,
    message: String,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
}

/// Reads continuously, by the schedule and when the watch shows a change.
pub(super) async fn read(shared: &Shared) {
    let mut connection = Connection::new(&shared.settings.api_server);
    let mut schedule = Schedule::new(shared.settings.interval);
    let mut told = false;
    loop {
        let sent_at = Moment::now();
        let limit = schedule.limit();
        let answer = timeout(limit, read_once(&mut connection, shared)).await;
        shared.reads.add(match &answer {
            Ok(Ok(Read { declared: Some(_), .. })) => ReadResult::Declared,
            Ok(Ok(Read { declared: None, .. })) => ReadResult::Undeclared,
            Ok(Err(_)) => ReadResult::Failed,
            Err(_) => ReadResult::TimedOut,
        });
        let wait = match answer.map_err(|_| anyhow!("no answer within {limit:?}")).flatten() {
            Ok(Read { key, declared: shown, problem }) => {
                if schedule.is_failing() {
                    say("the LeaderGroup can be read again");
                }
                if let Some(problem) = problem.filter(|_| !told) {
                    let NetworkSettings { namespace, group, .. } = &shared.settings;
                    say(&format!(
                        "LeaderGroup {namespace}/{group} {problem}: it gives no authority to run a program"
                    ));
                }
                told = problem.is_some();
                // Before the supervisor knows: the pod is not ready any more when the program may start.
                shared.last_read.send_replace(Some(LastRead { sent_at, shown: shown.clone(), problem }));
                let wait = schedule.answered(shown.as_ref());
                if shared.decider.read(sent_at, key, shown).await.is_err() {
                    return;
                }
                wait
            }
            Err(error) => {
                if !schedule.is_failing() {
                    say(&format!("the LeaderGroup cannot be read; trying again: {error:#}"));
                }
                schedule.failed()
            }
        };
        sleep(BREATH).await;
        // Either may end the wait.
        let _ = timeout(wait.saturating_sub(BREATH), shared.changed.notified()).await;
    }
}

/// What a read has shown.
#[derive(Default)]
pub struct Read {
    /// The lock's key.
    pub key: Option<String>,
    /// The declared term.
    pub declared: Option<Declared>,
    /// Why the group starts no programs, if that does not end by itself.
    pub problem: Option<&'static str>,
}

impl Read {
    /// There is no such group.
    pub fn of_no_group() -> Self {
        Self { problem: Some("does not exist"), ..Self::default() }
    }
}

impl From<Group> for Read {
    fn from(group: Group) -> Self {
        let problem = group.spec.agent.is_none().then_some("has no spec.agent");
        let Some(Status { key, declaration }) = group.status else {
            return Self { problem, ..Self::default() };
        };
        // A token of 0 stands for a group without a term.
        Self { key, declared: declaration.filter(|declared| declared.token > 0), problem }
    }
}

/// One quorum read: a GET without a `resourceVersion`.
async fn read_once(connection: &mut Connection<'_>, shared: &Shared) -> Result<Read> {
    let (namespace, name) = (&shared.settings.namespace, &shared.settings.group);
    let (status, body) = connection.get(&format!("{API}/namespaces/{namespace}/leadergroups/{name}")).await?;
    if status != StatusCode::OK {
        let failure: Failure = serde_json::from_slice(&body).unwrap_or_default();
        // Not any 404: a proxy, or an API server that does not serve the kind yet, says nothing about the group.
        if status == StatusCode::NOT_FOUND && failure.reason == "NotFound" && failure.details.name == *name {
            return Ok(Read::of_no_group());
        }
        bail!("the API server answers with status {status}: {}", failure.message);
    }
    Ok(serde_json::from_slice::<Group>(&body)?.into())
}

/// Watches the group, and asks for a read when it changes. Reads do not depend on it.
pub(super) async fn watch(shared: &Shared) {
    let (namespace, name) = (&shared.settings.namespace, &shared.settings.group);
    let selected = format!("fieldSelector=metadata.name%3D{name}&resourceVersion=0&timeoutSeconds=300");
    let path = format!("{API}/namespaces/{namespace}/leadergroups?watch=true&{selected}");
    let mut failed = false;
    loop {
        let mut connection = Connection::new(&shared.settings.api_server);
        let begun = timeout(WATCH_BEGIN, connection.watch(&path, METADATA)).await;
        match begun.map_err(|_| anyhow!("no answer within {WATCH_BEGIN:?}")).flatten() {
            Ok(mut events) => {
                failed = false;
                // Whatever arrives belongs to an event.
                while let Ok(Some(Ok(_))) = timeout(LONGEST_WATCH, events.frame()).await {
                    shared.changed.notify_one();
                }
            }
            Err(error) if !std::mem::replace(&mut failed, true) => {
                say(&format!("the LeaderGroup cannot be watched, so changes are seen late: {error:#}"));
            }
            Err(_) => {}
        }
        sleep(WATCH_PAUSE).await;
    }
}
