//! The chart's alerts and dashboard: a Prometheus scrapes the operator as the chart's `ServiceMonitor` says, and each
//! of their expressions must show something.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::api::{Api, ListParams};
use leadergroup_e2e::prometheus::{Prometheus, Series};
use leadergroup_e2e::scenario::{OPERATOR_NAMESPACE, eventually};

use crate::Test;
use crate::runbooks::Reader;

#[path = "monitoring/chart.rs"]
mod chart;
#[path = "monitoring/expression.rs"]
mod expression;

use chart::{Chart, Query};

/// Time for the operator to notice, for two scrapes, and for Prometheus to evaluate its rules, on a busy machine. The
/// rules look back a minute, so that a change of a group's owner interrupts no alert: for so long, the last value of a
/// former owner counts as well.
const LIMIT: Duration = Duration::from_mins(3);
/// The targets of the dashboard that show nothing while all is well, with the reason.
const NOTHING_WHEN_WELL: [(&str, &str); 3] = [
    ("Time without a working active pod A", "the active pod has worked all the time"),
    ("Duration of changes A", "the holder has not changed"),
    ("Duration of changes B", "the holder has not changed"),
];
/// The alerts whose expressions give nothing while all is well, even without their comparisons, with the reason.
const NO_VALUE_WHEN_WELL: [(&str, &str); 2] = [
    ("LeaderGroupStalled", "the series of a condition has the status of now"),
    ("LeaderGroupNotRouted", "the series of a condition has the status of now"),
];
/// The group, and its namespace.
const GROUP: (&str, &str) = ("default", "web");

pub(crate) struct Monitoring {
    prometheus: Prometheus,
    chart: Chart,
    /// When all was well, in seconds since 1970.
    since: f64,
    /// How long all of this has taken.
    took: Duration,
}

impl Monitoring {
    /// Starts Prometheus, on a cluster that is well.
    pub(crate) async fn start(test: &Test) -> Result<Self> {
        let begun = Instant::now();
        let chart = Chart::render(&test.cluster).await?;
        let client = test.cluster.client().await?;
        let services: Api<Service> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
        let services = services.list(&ListParams::default().labels(&chart.services()?)).await?;
        let mut slices = Vec::new();
        for service in services.items.iter().filter_map(|service| service.metadata.name.as_ref()) {
            let all: Api<EndpointSlice> = Api::namespaced(client.clone(), OPERATOR_NAMESPACE);
            let of = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
            slices.extend(all.list(&of).await?.items);
        }
        let prometheus = Prometheus::start(chart.scraping(&slices)?, &chart.rules).await?;
        let ask =
            ["get", "-n", "leadergroup", "deployment/leadergroup", "-o", "jsonpath={.status.readyReplicas}"];
        let replicas: usize = test.kubectl(&ask, "").await?.parse()?;
        eventually("three scrapes of each replica", LIMIT, async || {
            let scrapes = prometheus.query("count_over_time(leadergroup_build_info[1m])").await?;
            let enough = scrapes.iter().filter(|series| series.values[0] >= 3.0).count();
            ensure!(enough == replicas, "{scrapes:?} of {replicas} replicas: {}", prometheus.log());
            Ok(())
        })
        .await?;
        Ok(Self { prometheus, chart, since: now(), took: begun.elapsed() })
    }

    /// The dashboard shows the group, and each alert could fire, but does not.
    pub(crate) async fn when_all_is_well(&mut self) -> Result<()> {
        let begun = Instant::now();
        self.shows_all_but(&NOTHING_WHEN_WELL).await?;
        eventually("the variables to offer the group", LIMIT, async || self.offers_the_group().await).await?;
        eventually("the selectors to find series", LIMIT, async || self.selects().await).await?;
        self.evaluates_all().await?;
        eventually("the expressions of alerts to have values", LIMIT, async || self.could_fire().await)
            .await?;
        eventually("no alert", LIMIT, async || {
            let alerts = self.alerts().await?;
            ensure!(alerts.is_empty(), "{alerts:?}");
            Ok(())
        })
        .await?;
        self.since = now();
        self.took += begun.elapsed();
        Ok(())
    }

    /// The dashboard shows when the holder has changed.
    pub(crate) async fn after_a_change(&mut self) -> Result<()> {
        let begun = Instant::now();
        let terms = self.chart.query("Terms A")?;
        eventually("the change on the dashboard", LIMIT, async || {
            let tokens = self.values_since(&terms.expression).await?;
            ensure!(tokens.len() > 1, "{} shows the tokens {tokens:?}", terms.name);
            let series = of_group(self.prometheus.query_since(&terms.expression, self.since).await?);
            let pods: BTreeSet<_> = series.iter().filter_map(|one| one.labels.get("pod")).collect();
            ensure!(pods.len() > 1, "{} names the pods {pods:?}", terms.name);
            for annotation in &self.chart.annotations {
                let marks = of_group(self.prometheus.query(&annotation.expression).await?);
                let mark = marks.first().context("no annotation")?.values[0] / 1000.0;
                // The operator gives whole seconds.
                ensure!((self.since.floor()..=now()).contains(&mark), "{} is at {mark}", annotation.name);
            }
            Ok(())
        })
        .await?;
        self.took += begun.elapsed();
        Ok(())
    }

    /// The only pod of the group hangs: the alerts say so, the runbooks' commands show it, and each panel shows
    /// something.
    pub(crate) async fn while_nobody_takes_over(&mut self, test: &Test) -> Result<()> {
        let begun = Instant::now();
        let reader = Reader::of(&test.cluster, GROUP.1).await?;
        let scale = async |replicas: &str, redundant: &str| -> Result<()> {
            test.kubectl(&["scale", "deployment/web", "--replicas", replicas], "").await?;
            let wait = format!("--for=condition=Redundant={redundant}");
            test.kubectl(&["wait", &wait, "leadergroup/web", "--timeout=50s"], "").await.map(drop)
        };
        scale("1", "False").await?;
        let only = eventually("the last pod", LIMIT, async || {
            let mut pods = test.web().await?;
            ensure!(pods.len() == 1, "{} pods are Ready", pods.len());
            pods.pop().context("no pod")
        })
        .await?;
        test.cluster.freeze_pod(&only.uid).await?;
        self.alarms(&["LeaderGroupActiveFailing", "LeaderGroupWithoutStandby"]).await?;
        for (alert, words) in [
            // It is silent, or the kubelet has noticed first.
            ("LeaderGroupActiveFailing", "is active but "),
            ("LeaderGroupWithoutStandby", "no other pod could take over"),
        ] {
            let said = reader.types(alert).await?.concat();
            ensure!(said.contains(words), "{alert}: no {words:?} in: {said}");
        }
        self.shows_all_but(&[]).await?;
        let works = self.chart.query("The active pod works A")?;
        eventually("the failure on the dashboard", LIMIT, async || {
            let seen = self.values_since(&works.expression).await?;
            ensure!(seen == BTreeSet::from(["0", "1"].map(String::from)), "{} shows {seen:?}", works.name);
            Ok(())
        })
        .await?;
        test.cluster.thaw_pod(&only.uid)?;
        scale("3", "True").await?;
        eventually("no alert for the group", LIMIT, async || {
            let alerts = self.alerts().await?;
            ensure!(alerts.iter().all(|(_, _, name)| name != GROUP.1), "{alerts:?}");
            Ok(())
        })
        .await?;
        self.took += begun.elapsed();
        Ok(())
    }

    /// The operator is uninstalled. Prints how long all of this has taken.
    pub(crate) async fn without_operator(mut self) -> Result<()> {
        let begun = Instant::now();
        self.alarms(&["LeaderGroupOperatorAway"]).await?;
        self.took += begun.elapsed();
        println!("Prometheus: {:.1} s", self.took.as_secs_f64());
        Ok(())
    }

    /// Waits until each target of the dashboard shows a number, except these, which show none.
    async fn shows_all_but(&self, nothing: &[(&str, &str)]) -> Result<()> {
        eventually("the dashboard to show what it should", LIMIT, async || {
            for query in &self.chart.panels {
                let shown = self.shown(query).await?;
                let reason = nothing.iter().find(|(name, _)| *name == query.name);
                match reason {
                    None => ensure!(shown, "{} shows nothing: {}", query.name, query.expression),
                    Some((_, reason)) => {
                        ensure!(!shown, "{} shows something, although {reason}", query.name);
                    }
                }
            }
            let known = |name: &str| self.chart.panels.iter().any(|query| query.name == name);
            let unknown: Vec<_> = nothing.iter().filter(|(name, _)| !known(name)).collect();
            ensure!(unknown.is_empty(), "the dashboard has no {unknown:?}");
            Ok(())
        })
        .await
    }

    /// Whether a query has a number. Its series must have the labels of its legend.
    async fn shown(&self, query: &Query) -> Result<bool> {
        let series = self.prometheus.query(&query.expression).await?;
        for (label, one) in query.labels.iter().flat_map(|label| series.iter().map(move |one| (label, one))) {
            let value = one.labels.get(label).map_or("", String::as_str);
            ensure!(!value.is_empty(), "{}: no label {label} in {:?}", query.name, one.labels);
        }
        Ok(series.iter().any(|one| one.values[0].is_finite()))
    }

    /// The dashboard's variables have the group among their values.
    async fn offers_the_group(&self) -> Result<()> {
        for variable in &self.chart.variables {
            let values = self.prometheus.label_values(&variable.label, &variable.selector).await?;
            let wanted = if variable.name == "namespace" { GROUP.0 } else { GROUP.1 };
            ensure!(values.iter().any(|value| value == wanted), "{} offers {values:?}", variable.name);
        }
        ensure!(!self.chart.variables.is_empty(), "the dashboard has no variables");
        Ok(())
    }

    /// Each condition of each selector finds series by itself.
    async fn selects(&self) -> Result<()> {
        let mut empty = BTreeSet::new();
        for query in self.chart.alerts.iter().chain(&self.chart.panels) {
            for selector in expression::selectors(&query.expression) {
                if self.prometheus.query(&selector).await?.is_empty() {
                    empty.insert(selector);
                }
            }
        }
        ensure!(empty.is_empty(), "no series for {empty:?}");
        Ok(())
    }

    /// Prometheus evaluates the rules without an error.
    async fn evaluates_all(&self) -> Result<()> {
        let names: Vec<&str> = self.chart.alerts.iter().map(|alert| &*alert.name).collect();
        eventually("every rule to be evaluated", LIMIT, async || {
            let answer = self.prometheus.ask("/api/v1/rules").await?;
            let groups = answer["groups"].as_array().context("no groups of rules")?;
            let rules: Vec<_> =
                groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
            let fine = rules.iter().filter(|rule| rule["health"] == "ok" && rule["lastError"].is_null());
            let fine: Vec<_> = fine.filter_map(|rule| rule["name"].as_str()).collect();
            ensure!(fine == names, "only {fine:?} are evaluated: {rules:#?}");
            Ok(())
        })
        .await
    }

    /// The expressions of the alerts, without their comparisons, have values with the labels that the texts name.
    async fn could_fire(&self) -> Result<()> {
        let mut empty = BTreeSet::new();
        for query in &self.chart.alerts {
            let bare = expression::without_comparisons(&query.expression);
            if !self.shown(&Query { expression: bare, ..query.clone() }).await? {
                empty.insert(query.name.as_str());
            }
        }
        let expected = BTreeSet::from(NO_VALUE_WHEN_WELL.map(|(alert, _)| alert));
        ensure!(empty == expected, "no value for {empty:?}, and not only for {expected:?}");
        Ok(())
    }

    /// Waits until all of these alerts are pending or fire; those of groups for the group.
    async fn alarms(&self, names: &[&str]) -> Result<()> {
        eventually("the alerts", LIMIT, async || {
            let alerts = self.alerts().await?;
            for name in names {
                let fires = alerts.iter().any(|(alert, namespace, group)| {
                    alert == name && (group.is_empty() || (&**namespace, &**group) == GROUP)
                });
                ensure!(fires, "{name} is not among {alerts:?}");
            }
            Ok(())
        })
        .await
    }

    /// The alerts that are pending or fire, each with the labels `namespace` and `name`.
    async fn alerts(&self) -> Result<Vec<(String, String, String)>> {
        let answer = self.prometheus.ask("/api/v1/alerts").await?;
        let alerts = answer["alerts"].as_array().context("no list of alerts")?;
        let label =
            |of: &serde_json::Value, name: &str| of["labels"][name].as_str().unwrap_or_default().to_owned();
        Ok(alerts
            .iter()
            .map(|alert| (label(alert, "alertname"), label(alert, "namespace"), label(alert, "name")))
            .collect())
    }

    /// The different values that an expression had for the group since all was well.
    async fn values_since(&self, expression: &str) -> Result<BTreeSet<String>> {
        let series = of_group(self.prometheus.query_since(expression, self.since).await?);
        Ok(series.iter().flat_map(|one| &one.values).map(ToString::to_string).collect())
    }
}

fn of_group(series: Vec<Series>) -> Vec<Series> {
    let is = |one: &Series, label, value| one.labels.get(label).is_some_and(|found| found == value);
    series.into_iter().filter(|one| is(one, "namespace", GROUP.0) && is(one, "name", GROUP.1)).collect()
}

/// Now, in seconds since 1970, as Prometheus writes it.
fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}
