//! Checks that problems are reported in the group's conditions and in the operator's log.

use anyhow::{Result, ensure};
use kube::api::LogParams;
use leadergroup_e2e::scenario::{STARTED, Scenario, eventually};

/// Waits until the condition `LockStoreReachable` has this status and its message contains `word`.
pub(crate) async fn store_reachable(s: &Scenario, wanted: &str, word: &str) -> Result<()> {
    eventually(&format!("LockStoreReachable to be {wanted}, with {word:?}"), STARTED, async || {
        let (status, reason, message) = s.condition(&s.workload.name, "LockStoreReachable").await?;
        ensure!(status == wanted && message.contains(word), "it is {status} ({reason}): {message}");
        Ok(())
    })
    .await
}

/// Waits until each of these replicas has logged `word`.
pub(crate) async fn says(s: &Scenario, replicas: &[String], word: &str) -> Result<()> {
    let before: Vec<_> = replicas.iter().map(|replica| (replica.clone(), 0)).collect();
    says_again(s, &before, word).await
}

/// Each of these replicas, and how often it has logged `word`.
pub(crate) async fn said(s: &Scenario, replicas: &[String], word: &str) -> Result<Vec<(String, usize)>> {
    let mut said = Vec::new();
    for replica in replicas {
        let log = s.stage.operator.pods().logs(replica, &LogParams::default()).await?;
        said.push((replica.clone(), log.matches(word).count()));
    }
    Ok(said)
}

/// Waits until each of these replicas has logged `word` more often than `before`.
pub(crate) async fn says_again(s: &Scenario, before: &[(String, usize)], word: &str) -> Result<()> {
    eventually(&format!("every replica to log {word:?}"), STARTED, async || {
        for (replica, times) in before {
            let log = s.stage.operator.pods().logs(replica, &LogParams::default()).await?;
            ensure!(log.matches(word).count() > *times, "{replica} logged: {log}");
        }
        Ok(())
    })
    .await
}

/// Waits until one of the replicas, the owner of the group, has logged a line with all of these words.
pub(crate) async fn somebody_says(s: &Scenario, words: &[&str]) -> Result<()> {
    eventually(&format!("the operator to log {words:?}"), STARTED, async || {
        let log = s.stage.operator.logs(1000).await?;
        let said = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        ensure!(said, "it logged: {log}");
        Ok(())
    })
    .await
}
