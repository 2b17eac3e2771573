//! What a cluster is started with.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::images::Image;

/// The configuration of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// Number of nodes.
    pub nodes: u8,
    /// kube-proxy's `minSyncPeriod`. Default: 1 s, as in kube-proxy.
    pub proxy_min_sync_period: Duration,
    /// Images for the nodes in addition to the standard ones.
    pub images: Vec<Image>,
}

impl Default for Config {
    fn default() -> Self {
        Self { nodes: 3, proxy_min_sync_period: Duration::from_secs(1), images: Vec::new() }
    }
}
