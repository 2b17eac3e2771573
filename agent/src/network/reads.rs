//! Quorum reads of the declaration, and a watch that says when to read at once.

use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, pin_mut};
use http::Request;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, WatchParams},
};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::Shared;
use crate::{contract::Declared, messages::ToSupervisor, moment::Moment};

/// The pause after a watch that ended.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two reads: a group that changes all the time does not make its agents read all the time.
const BREATH: Duration = Duration::from_millis(20);
/// How many reads one lease has.
const READS_IN_LEASE: u32 = 3;

/// A `LeaderGroup`, as far as the agent reads it.
#[derive(Deserialize)]
struct Group {
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Status {
    key: Option<String>,
    declaration: Option<Declared>,
}

/// Reads all the time: a third of a lease after the last read, and when the watch shows a change.
pub(super) async fn read(client: &Client, shared: &Shared) {
    let mut interval = shared.settings.interval;
    let mut failed = false;
    loop {
        let sent_at = Moment::now();
        let answer = timeout(interval, read_once(client, shared)).await;
        match answer.map_err(|_| anyhow!("no answer within {interval:?}")).flatten() {
            Ok((key, shown)) => {
                if std::mem::take(&mut failed) {
                    eprintln!("leadergroup-agent: the LeaderGroup can be read again");
                }
                shared.read_at.send_replace(Some(sent_at));
                let lease = shown.as_ref().and_then(|declared| Some(declared.run.as_ref()?.lease));
                interval = lease.map_or(shared.settings.interval, |lease| lease / READS_IN_LEASE);
                let read = ToSupervisor::Read { sent_at, key, shown };
                if shared.supervisor.send(&read).await.is_err() {
                    return;
                }
            }
            Err(error) if !std::mem::replace(&mut failed, true) => {
                eprintln!("leadergroup-agent: the LeaderGroup cannot be read; trying again: {error:#}");
            }
            Err(_) => {}
        }
        sleep(BREATH).await;
        // Either may end the wait.
        let _ = timeout(interval.saturating_sub(BREATH), shared.changed.notified()).await;
    }
}

/// One quorum read: a GET without a `resourceVersion`. Returns the lock's key and the declared term.
async fn read_once(client: &Client, shared: &Shared) -> Result<(Option<String>, Option<Declared>)> {
    let (namespace, name) = (&shared.settings.namespace, &shared.settings.group);
    let path = format!("/apis/leadergroup.dev/v1alpha1/namespaces/{namespace}/leadergroups/{name}");
    let group: Group = match client.request(Request::get(path).body(Vec::new())?).await {
        Ok(group) => group,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok((None, None)),
        Err(error) => return Err(error.into()),
    };
    let Some(Status { key, declaration }) = group.status else { return Ok((None, None)) };
    // A token of 0 stands for a group without a term.
    Ok((key, declaration.filter(|declared| declared.token > 0)))
}

/// Watches the group, and asks for a read when it changes. Reads do not depend on it.
pub(super) async fn watch(client: &Client, shared: &Shared) {
    let kind = GroupVersionKind::gvk("leadergroup.dev", "v1alpha1", "LeaderGroup");
    let resource = ApiResource::from_gvk_with_plural(&kind, "leadergroups");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &shared.settings.namespace, &resource);
    let parameters = WatchParams::default().fields(&format!("metadata.name={}", shared.settings.group));
    loop {
        if let Ok(events) = api.watch_metadata(&parameters, "0").await {
            pin_mut!(events);
            while let Some(Ok(_)) = events.next().await {
                shared.changed.notify_one();
            }
        }
        sleep(WATCH_PAUSE).await;
    }
}
