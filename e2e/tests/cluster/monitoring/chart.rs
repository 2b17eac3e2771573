//! What the chart renders for Prometheus and Grafana.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use leadergroup_e2e::cluster::Cluster;
use leadergroup_e2e::command::{LIMIT, output};
use leadergroup_e2e::scenario::OPERATOR_NAMESPACE;
use serde_json::{Value, json};
use tokio::process::Command;

/// How often Prometheus scrapes and evaluates: more often than in earnest, so that the test is short.
const INTERVAL: &str = "2s";
/// A scrape that takes longer makes all series of its target stale.
const TIMEOUT: &str = "2s";
/// Values for Grafana's variables, as in scripts/test-chart.sh.
const VARIABLES: [(&str, &str); 3] = [("$__rate_interval", "5m"), ("$namespace", ".*"), ("$group", ".*")];

/// An expression, and where it is.
#[derive(Clone, Debug)]
pub(super) struct Query {
    /// The alert, or the panel with the letter of the target.
    pub(super) name: String,
    pub(super) expression: String,
    /// The labels that the text beside it takes from its series.
    pub(super) labels: Vec<String>,
}

/// A variable of the dashboard.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) selector: String,
    pub(super) label: String,
}

/// What the chart renders.
#[derive(Debug)]
pub(super) struct Chart {
    monitor: Value,
    /// A file of rules.
    pub(super) rules: Value,
    pub(super) alerts: Vec<Query>,
    pub(super) panels: Vec<Query>,
    pub(super) annotations: Vec<Query>,
    pub(super) variables: Vec<Variable>,
}

impl Chart {
    pub(super) async fn render(cluster: &Cluster) -> Result<Self> {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadergroup");
        let mut helm = Command::new(cluster.program("helm")?);
        helm.args(["template", "leadergroup", chart, "--namespace", OPERATOR_NAMESPACE]);
        helm.args(["--show-only", "templates/metrics.yaml"]);
        for part in ["serviceMonitor", "prometheusRule", "dashboard"] {
            helm.args(["--set", &format!("metrics.{part}.enabled=true")]);
        }
        let objects: Vec<Value> = serde_saphyr::from_multiple(&output(helm, LIMIT).await?)?;
        let object = |kind: &str| {
            let mut found = objects.iter().filter(|object| object["kind"] == kind);
            found.next().with_context(|| format!("the chart renders no {kind}"))
        };
        let rules = object("PrometheusRule")?["spec"].clone();
        let board = object("ConfigMap")?["data"]["leadergroup.json"].as_str().context("no dashboard")?;
        let board: Value = serde_json::from_str(board)?;
        let found = Self {
            monitor: object("ServiceMonitor")?.clone(),
            alerts: alerts(&rules)?,
            rules,
            panels: panels(&board)?,
            annotations: annotations(&board)?,
            variables: variables(&board)?,
        };
        ensure!(
            !found.alerts.is_empty() && !found.panels.is_empty() && !found.annotations.is_empty(),
            "something is missing: {found:?}"
        );
        Ok(found)
    }

    /// The target of a panel.
    pub(super) fn query(&self, name: &str) -> Result<&Query> {
        let found = self.panels.iter().find(|query| query.name == name);
        found.with_context(|| format!("the dashboard has no {name}"))
    }

    /// The selector of the Services that the `ServiceMonitor` is for.
    pub(super) fn services(&self) -> Result<String> {
        let labels = self.monitor["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels.context("the ServiceMonitor selects all Services")?.iter();
        let equal =
            |(label, value): (&String, &Value)| format!("{label}={}", value.as_str().unwrap_or_default());
        Ok(labels.map(equal).collect::<Vec<_>>().join(","))
    }

    /// A configuration for these slices, with the labels that Prometheus' operator gives to the series of a
    /// `ServiceMonitor`. Debian's Prometheus cannot ask Kubernetes itself.
    pub(super) fn scraping(&self, slices: &[EndpointSlice]) -> Result<Value> {
        let endpoint = &self.monitor["spec"]["endpoints"][0];
        let wanted = endpoint["port"].as_str().context("the ServiceMonitor names no port")?;
        let mut targets = Vec::new();
        for slice in slices {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
            let mut ports = slice.ports.iter().flatten().filter(|port| port.name.as_deref() == Some(wanted));
            let port =
                ports.next().and_then(|port| port.port).with_context(|| format!("no port {wanted}"))?;
            for one in &slice.endpoints {
                let address = one.addresses.first().context("an endpoint without an address")?;
                targets.push(json!({
                    "targets": [format!("{address}:{port}")],
                    "labels": {
                        "namespace": slice.metadata.namespace,
                        "service": service,
                        "job": service,
                        "pod": one.target_ref.as_ref().and_then(|pod| pod.name.as_ref()),
                        "endpoint": wanted,
                    },
                }));
            }
        }
        ensure!(!targets.is_empty(), "the Services have no endpoints: {slices:?}");
        Ok(json!({
            "global": { "scrape_interval": INTERVAL, "scrape_timeout": TIMEOUT, "evaluation_interval": INTERVAL },
            "scrape_configs": [{
                "job_name": "serviceMonitor",
                "honor_labels": endpoint["honorLabels"].as_bool().unwrap_or_default(),
                "metrics_path": endpoint["path"],
                "static_configs": targets,
            }],
        }))
    }
}

fn alerts(rules: &Value) -> Result<Vec<Query>> {
    let groups = rules["groups"].as_array().context("no groups of rules")?.iter();
    let rules = groups.filter_map(|group| group["rules"].as_array()).flatten();
    let alert = |rule: &Value| {
        let texts = rule["annotations"].as_object().context("no annotations")?.values();
        let texts: String = texts.filter_map(Value::as_str).collect();
        let labels = texts.split("{{ $labels.").skip(1).filter_map(|rest| rest.split(' ').next());
        let labels = labels.map(str::to_owned).collect();
        Ok(Query { name: text(rule, "alert")?, expression: text(rule, "expr")?, labels })
    };
    rules.map(alert).collect()
}

fn panels(board: &Value) -> Result<Vec<Query>> {
    let mut queries = Vec::new();
    for panel in board["panels"].as_array().context("no panels")? {
        for target in panel["targets"].as_array().context("a panel without targets")? {
            let name = format!("{} {}", text(panel, "title")?, text(target, "refId")?);
            let legend = text(target, "legendFormat")?;
            let labels = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            let labels = labels.map(str::to_owned).collect();
            queries.push(Query { name, expression: with_values(&text(target, "expr")?), labels });
        }
    }
    Ok(queries)
}

fn annotations(board: &Value) -> Result<Vec<Query>> {
    let list = board["annotations"]["list"].as_array().context("no annotations")?.iter();
    let query = |one: &Value| {
        let expression = with_values(&text(one, "expr")?);
        Ok(Query { name: text(one, "name")?, expression, labels: Vec::new() })
    };
    list.map(query).collect()
}

fn variables(board: &Value) -> Result<Vec<Variable>> {
    let list = board["templating"]["list"].as_array().context("no variables")?.iter();
    let variable = |one: &Value| {
        let query = with_values(&text(&one["query"], "query")?);
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) =
            inside.and_then(|inside| inside.rsplit_once(", ")).with_context(|| query.clone())?;
        Ok(Variable { name: text(one, "name")?, selector: selector.to_owned(), label: label.to_owned() })
    };
    list.filter(|one| one["type"] == "query").map(variable).collect()
}

fn text(of: &Value, field: &str) -> Result<String> {
    of[field].as_str().map(str::to_owned).with_context(|| format!("no text {field} in {of}"))
}

fn with_values(expression: &str) -> String {
    VARIABLES.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}
