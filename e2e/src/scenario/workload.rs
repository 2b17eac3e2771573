//! The manifests of a scenario: a Deployment of pods that accept orders, a Service, and a `LeaderGroup`.

use anyhow::Result;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use leadergroup::api::{Endpoints, GROUP_LABEL, LeaderGroup, ROLE_LABEL};
use serde_json::{Value, json};

/// The image of all test pods.
pub const IMAGE: &str = "docker.io/library/busybox:1.37";
/// The port of the Service.
pub const PORT: u16 = 80;

/// Serves the pod's name, and waits for one order on a pipe: to crash, or to leak until the kernel kills it. The
/// shell is the container's first process, so the container ends with it.
const SCRIPT: &str = r"
trap 'exit 0' TERM
mkdir /www && hostname >/www/index.html
mkfifo /orders
httpd -f -p 8080 -h /www &
while :; do
  read -r order </orders
  case $order in
  crash) exit 3 ;;
  leak)
    chunk=$(head -c 262144 /dev/zero | tr '\0' x)
    while :; do leaked=$leaked$chunk; done
    ;;
  esac
done
";

/// The workload of a scenario. All objects have the same name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The name of the objects, and the value of the pods' label `app`.
    pub name: String,
    /// How many pods.
    pub replicas: i32,
    /// How long the active pod may be silent.
    pub silence_timeout: &'static str,
    /// How often each pod is probed.
    pub interval: &'static str,
    /// The role label of the Service and the group.
    pub role_label: &'static str,
    /// Whether the operator writes the Service's endpoints.
    pub managed: bool,
    /// Whether a pod that was active is deleted, once the next one is.
    pub deletes_demoted: bool,
    /// The leases of the pods' agents, if they have agents.
    pub agent_lease: Option<&'static str>,
    /// A Deployment of the same name in place of the usual one. Its pods have the label `app` with this name, and a
    /// port `http`.
    pub deployment: Option<Box<Deployment>>,
    /// Manifests to apply in place of the Deployment and the Service. Their pods have the label `app`, too.
    pub manifests: Option<String>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            name: "web".into(),
            replicas: 3,
            silence_timeout: "5s",
            interval: "1s",
            role_label: ROLE_LABEL,
            managed: false,
            deletes_demoted: false,
            agent_lease: None,
            deployment: None,
            manifests: None,
        }
    }
}

impl Workload {
    /// The Deployment. Its pods are spread over the nodes and leave a lost node soon.
    pub fn deployment(&self) -> Result<Deployment> {
        if let Some(own) = &self.deployment {
            return Ok(Deployment::clone(own));
        }
        let pod = json!({
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "web",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", SCRIPT],
                "ports": [{ "name": "http", "containerPort": 8080 }],
                "readinessProbe": {
                    "httpGet": { "path": "/", "port": "http" }, "periodSeconds": 2, "timeoutSeconds": 1,
                },
                "resources": {
                    "requests": { "cpu": "5m", "memory": "8Mi" }, "limits": { "memory": "24Mi" },
                },
            }],
        });
        spread_over_nodes(&self.name, self.replicas, LEAVES_AFTER, pod)
    }

    /// The Service: it selects only the active pod, or no pod if the operator writes its endpoints.
    pub fn service(&self) -> Result<Service> {
        let labels = self.managed.then(|| json!({ GROUP_LABEL: self.name }));
        let role = if self.managed { "managed" } else { "active" };
        Ok(serde_json::from_value(json!({
            "metadata": { "name": self.name, "labels": labels },
            "spec": {
                "selector": { "app": self.name, self.role_label: role },
                "ports": [{ "port": PORT, "targetPort": "http" }],
            },
        }))?)
    }

    /// The group, with a name of its own for scenarios with several groups.
    pub fn group(&self, name: &str) -> Result<LeaderGroup> {
        let agent = self.agent_lease.map(|lease| json!({ "leaseDuration": lease }));
        Ok(serde_json::from_value(json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { "app": self.name } },
                "agent": agent,
                "election": { "onDemote": if self.deletes_demoted { "Delete" } else { "Keep" } },
                "health": {
                    "interval": self.interval,
                    "silenceTimeout": self.silence_timeout,
                    // busybox closes the connection of each probe, but serves many at a time.
                    "holdConnection": "Always",
                },
                "routing": {
                    "roleLabel": self.role_label,
                    "endpoints": if self.managed { Endpoints::Managed } else { Endpoints::Selector },
                },
            },
        }))?)
    }
}

/// After this many seconds pods leave a lost node.
pub const LEAVES_AFTER: Option<u32> = Some(5);

/// A Deployment of this name. Its pods have the label `app` with the name, are spread over the nodes, and leave a lost
/// node after so many seconds, or never. `pod` is the rest of their spec.
pub fn spread_over_nodes(
    name: &str,
    replicas: i32,
    leaves_after: Option<u32>,
    mut pod: Value,
) -> Result<Deployment> {
    let labels = json!({ "app": name });
    let toleration = |taint: &str| {
        json!({ "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": leaves_after })
    };
    pod["enableServiceLinks"] = false.into();
    pod["tolerations"] = json!(["not-ready", "unreachable"].map(toleration));
    pod["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": { "matchLabels": labels },
    }]);
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    }))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_can_be_decoded() -> Result<()> {
        let workload = Workload { role_label: "example.com/role", ..Workload::default() };
        assert_eq!(workload.deployment()?.spec.and_then(|spec| spec.replicas), Some(3));
        let selector = workload.service()?.spec.and_then(|spec| spec.selector).unwrap_or_default();
        assert_eq!(selector.get("example.com/role").map(String::as_str), Some("active"));
        let group = workload.group("other")?;
        assert_eq!(group.spec.routing.role_label, "example.com/role");
        assert_eq!(group.spec.health.silence_timeout.0.as_secs(), 5);
        Ok(())
    }
}
