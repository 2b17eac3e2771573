//! The client for existing clusters: a pod that calls with busybox `wget` and writes each answer to its log.
//!
//! It is less precise than a process in a node's network: the calls follow each other (10 to 20 a second), an
//! unanswered call takes a second, and the time of a call is when its log line arrives here.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow};
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client as Kube,
    api::{LogParams, PostParams},
    runtime::{conditions, wait::await_condition},
};
use serde_json::json;
use tokio::time;

use super::{Call, Client};
use crate::moment::Moment;

const STARTS_WITHIN: Duration = Duration::from_mins(2);

impl Client {
    /// Starts a pod in `namespace` that calls `target`. It is deleted with its namespace.
    pub async fn in_pod(
        kube: Kube,
        namespace: &str,
        name: &str,
        image: &str,
        target: SocketAddr,
    ) -> Result<Self> {
        // Not `wget -T`, which crashes some static builds of busybox.
        let script = format!(
            "while :; do if answer=$(timeout 1 wget -q -O - http://{target}/ 2>/dev/null); then echo \"answer $answer\"; \
             else echo lost; fi; usleep 50000; done"
        );
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "app": name } },
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "containers": [{ "name": "client", "image": image, "command": ["/bin/sh", "-c", script] }],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(kube, namespace);
        pods.create(&PostParams::default(), &pod).await.context("creating the client's pod")?;
        let running =
            time::timeout(STARTS_WITHIN, await_condition(pods.clone(), name, conditions::is_pod_running()));
        running
            .await
            .with_context(|| format!("the client's pod does not start within {STARTS_WITHIN:?}"))??;
        let log = pods.log_stream(name, &LogParams { follow: true, ..LogParams::default() }).await?;
        Ok(Self::reading(name, Box::pin(log.lines().map_err(Into::into)), |line| read(line, Moment::now())))
    }
}

fn read(line: &str, at: Moment) -> Result<Call> {
    let answer = match line.split_once(' ') {
        Some(("answer", pod)) => Ok(pod.trim().to_owned()),
        None if line == "lost" => Err("no answer".to_owned()),
        _ => return Err(anyhow!("the client's pod said {line}")),
    };
    Ok(Call::through_any(at, at, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_a_call() {
        let at = Moment::now();
        let answer = |line| read(line, at).map(|call| call.answer).ok();
        assert_eq!(answer("answer web-1 "), Some(Ok("web-1".into())));
        assert_eq!(answer("lost"), Some(Err("no answer".into())));
        assert_eq!(answer("sh: wget: not found"), None);
    }
}
