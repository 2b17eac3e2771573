//! Requests to the API server by verb and resource, from its own metrics.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::{Value, json};

/// The resources that the operator uses. Others are requests of the API server itself, and the nodes' leases.
const RESOURCES: [&str; 5] = ["pods", "leadergroups", "events", "nodes", "namespaces"];
const COUNTER: &str = "apiserver_request_total{";

/// Counts of requests.
#[derive(Clone, Default)]
pub(crate) struct Requests(BTreeMap<String, f64>);

impl Requests {
    /// All so far.
    pub(crate) async fn so_far(client: &Client) -> Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = client.request_text(request).await.context("reading the API server's metrics")?;
        let mut counts = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(COUNTER)) {
            let Some((labels, count)) = line.rsplit_once("} ") else { continue };
            let labels: BTreeMap<&str, &str> =
                labels.split(',').filter_map(|pair| Some((pair.split_once('=')?.0, value(pair)?))).collect();
            let label = |name: &str| labels.get(name).copied().unwrap_or_default();
            // Watches are counted when they end.
            if !RESOURCES.contains(&label("resource")) || label("verb") == "WATCH" {
                continue;
            }
            let mut name = format!("{} {}", label("verb"), label("resource"));
            if !label("subresource").is_empty() {
                name += &format!("/{}", label("subresource"));
            }
            if !label("code").starts_with('2') {
                name += &format!(" ({})", label("code"));
            }
            *counts.entry(name).or_default() += count.trim().parse::<f64>()?;
        }
        Ok(Self(counts))
    }

    /// The requests after the earlier count, without the benchmark's own, whose names begin with `own`.
    pub(crate) fn since(&self, earlier: &Self, own: &str) -> Self {
        let later = self
            .0
            .iter()
            .map(|(name, count)| (name.clone(), count - earlier.0.get(name).copied().unwrap_or_default()));
        Self(
            later
                .filter(|(name, count)| *count > 0.0 && (own.is_empty() || !name.starts_with(own)))
                .collect(),
        )
    }

    pub(crate) fn total(&self) -> f64 {
        self.0.values().fold(0.0, |sum, count| sum + count)
    }

    /// The number of requests that are no reads.
    pub(crate) fn writes(&self) -> f64 {
        let reads = |name: &str| name.starts_with("GET ") || name.starts_with("LIST ");
        // Not `sum`: that of nothing is -0.
        self.0.iter().filter(|(name, _)| !reads(name)).fold(0.0, |sum, (_, count)| sum + count)
    }

    /// The number of each kind of request for one of so many changes, the most frequent first.
    pub(crate) fn per(&self, changes: usize) -> String {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by(|one, other| other.1.total_cmp(one.1));
        let each = all.iter().map(|(name, count)| format!("{name} {:.2}", *count / changes.max(1) as f64));
        each.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn json(&self) -> Value {
        json!(self.0)
    }
}

fn value(pair: &str) -> Option<&str> {
    pair.split_once('=').map(|(_, value)| value.trim_matches('"'))
}
