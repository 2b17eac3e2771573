//! What a kubelet knows of a pod and does not report at once.

use anyhow::{Context, Result, ensure};

use super::{Active, STARTED, Scenario, eventually};

impl Scenario {
    /// Waits until the kubelet of a pod that was frozen has had an answer to a readiness probe again. Until then it may
    /// still report the pod as not ready, although it works: the probe that was under way counts.
    pub async fn kubelet_hears(&self, pod: &Active) -> Result<()> {
        let before = self.answered_probes(pod).await?;
        eventually("the kubelet to hear the pod again", STARTED, async || {
            let now = self.answered_probes(pod).await?;
            ensure!(now > before, "{now} probes of {} were answered, {before} before", pod.pod);
            Ok(())
        })
        .await
    }

    async fn answered_probes(&self, pod: &Active) -> Result<u64> {
        let path = format!("/api/v1/nodes/{}/proxy/metrics/probes", pod.node);
        let request = http::Request::get(path).body(Vec::new())?;
        answered(&self.stage.kube.request_text(request).await?, &pod.uid)
    }
}

/// How many readiness probes of this pod were answered well, according to the metrics of its kubelet.
fn answered(metrics: &str, uid: &str) -> Result<u64> {
    let (pod, wanted) = (format!("pod_uid=\"{uid}\""), ["probe_type=\"Readiness\"", "result=\"successful\""]);
    let is_it = |line: &&str| line.contains(&pod) && wanted.iter().all(|label| line.contains(label));
    let mut lines = metrics.lines().filter(|line| line.starts_with("prober_probe_total{")).filter(is_it);
    let line = lines.next().with_context(|| format!("the kubelet has no probes of {uid}"))?;
    let value = line.rsplit(' ').next().unwrap_or_default();
    value.parse().with_context(|| format!("the kubelet's metric is not a number: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answered_readiness_probes_of_one_pod_are_counted() {
        let line = |uid: &str, kind: &str, result: &str, count: u32| {
            format!(
                "prober_probe_total{{container=\"main\",pod_uid=\"{uid}\",probe_type=\"{kind}\",result=\"{result}\"}} {count}"
            )
        };
        let metrics = [
            line("a", "Readiness", "failed", 1),
            line("a", "Liveness", "successful", 2),
            line("b", "Readiness", "successful", 3),
            line("a", "Readiness", "successful", 4),
        ];
        assert_eq!(answered(&metrics.join("\n"), "a").ok(), Some(4));
        assert!(answered(&metrics.join("\n"), "c").is_err());
    }
}
