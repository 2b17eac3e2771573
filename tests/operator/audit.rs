//! The requests that an API server of a test's own has answered, from its audit log.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::apiserver::ApiServer;

/// The audit log of one API server.
pub(crate) struct Audit {
    directory: TempDir,
}

impl Audit {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{ "level": "Request", "resources": [
                { "group": "", "resources": ["pods", "pods/status"] },
                { "group": "leadergroup.dev", "resources": ["leadergroups", "leadergroups/status"] },
            ] }],
        });
        fs::write(directory.path().join("policy.yaml"), policy.to_string()).unwrap();
        Self { directory }
    }

    /// A server that writes this log.
    pub(crate) async fn start(&self) -> ApiServer {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let policy = format!("--audit-policy-file={}", path("policy.yaml"));
        ApiServer::start(&[&policy, &format!("--audit-log-path={}", path("log"))]).await
    }

    /// The reads and writes of pods and groups so far, in the order of their answers, without those of users that are
    /// impersonated.
    pub(crate) fn requests(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|request| request["impersonatedUser"].is_null() && request["verb"] != "watch").collect()
    }
}
