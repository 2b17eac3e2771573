//! The installation: the custom resource definition and the operator's Deployment.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::Deployment,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps},
};
use kube::{CustomResourceExt as _, ResourceExt as _};

use super::finding::{Finding, Level};
use crate::{
    api::{FIELD_MANAGER, LeaderGroup},
    plugin::{
        cluster::Part,
        failure::{Failure, Kind},
        operator::{LABELS, Place, of_namespace, ready_replicas, watched, watches},
    },
};

const ABOUT: &str = "installation";

/// Whether the API server knows LeaderGroups, and knows the same of them as this plugin. `served` is its answer to the
/// question for the version.
pub(super) fn of_definition(
    served: Result<(), Failure>,
    definition: Part<CustomResourceDefinition>,
) -> Vec<Finding> {
    if let Err(failure) = served {
        let remedy = "install the operator's chart, or choose another --context";
        return vec![match failure.kind {
            Kind::UnknownKind | Kind::NotFound => Finding::new(
                Level::Wrong,
                ABOUT,
                "the API server does not know leadergroup.dev/v1alpha1",
                remedy,
            ),
            _ => Finding::new(Level::Wrong, ABOUT, failure.problem, failure.remedy),
        }];
    }
    let served = Finding::fine(ABOUT, "the API server knows leadergroup.dev/v1alpha1");
    let compared = match definition {
        Err(failure) => Finding::new(
            Level::Unknown,
            ABOUT,
            format!("whether the definition is that of this plugin's version: {}", failure.problem),
            "ask somebody who may read CustomResourceDefinitions",
        ),
        Ok(definition) => compared(&definition),
    };
    vec![served, compared]
}

fn compared(installed: &CustomResourceDefinition) -> Finding {
    let (there, here) = (fields(installed), fields(&LeaderGroup::crd()));
    let list = |fields: Vec<&String>| fields.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let lacking = list(here.difference(&there).collect());
    let more = list(there.difference(&here).collect());
    let version = env!("CARGO_PKG_VERSION");
    if !lacking.is_empty() {
        return Finding::new(
            Level::Wrong,
            ABOUT,
            format!(
                "the definition of LeaderGroups is older than this plugin ({version}): it lacks {lacking}"
            ),
            "upgrade the chart, which brings the definition, or use the plugin of the operator's version",
        );
    }
    if !more.is_empty() {
        return Finding::new(
            Level::Hint,
            ABOUT,
            format!(
                "the definition of LeaderGroups is newer than this plugin ({version}): it has {more}, too"
            ),
            "use the plugin of the operator's version",
        );
    }
    Finding::fine(ABOUT, format!("the definition of LeaderGroups is that of version {version}"))
}

/// The paths of all fields of the version that the plugin uses.
fn fields(definition: &CustomResourceDefinition) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let versions = definition.spec.versions.iter().filter(|version| version.name == "v1alpha1");
    let schemas = versions.filter_map(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
    for part in ["spec", "status"] {
        for schema in schemas.clone().filter_map(|schema| schema.properties.as_ref()?.get(part)) {
            collect(part, schema, &mut found);
        }
    }
    found
}

fn collect(path: &str, schema: &JSONSchemaProps, found: &mut BTreeSet<String>) {
    for (name, child) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        collect(&path, child, found);
        found.insert(path);
    }
}

/// Whether an operator runs for the groups of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    /// There.
    Runs(Place),
    /// None was found, or none that is ready.
    Absent,
    /// It cannot be seen.
    Unknown,
}

impl Operator {
    /// What the Deployments of the chart tell. `is_heard`: the status of a group shows that one runs.
    pub(super) fn of(deployments: &Part<Vec<Deployment>>, namespace: &str, is_heard: bool) -> Self {
        let Ok(found) = deployments else { return Self::Unknown };
        match of_namespace(found, namespace) {
            Some(place) => Self::Runs(place),
            None if is_heard && !found.iter().any(|it| watches(it, namespace)) => Self::Unknown,
            None => Self::Absent,
        }
    }
}

/// How long a report of the operator shows that it runs. It reports only what changes.
const FRESH: SignedDuration = SignedDuration::from_secs(30);

/// Whether the status of a group shows that an operator runs: one has written it just now.
pub(super) fn is_heard(group: &LeaderGroup, now: Timestamp) -> bool {
    let mut writes = group.metadata.managed_fields.iter().flatten();
    writes.any(|write| {
        write.manager.as_deref() == Some(FIELD_MANAGER)
            && write.subresource.as_deref() == Some("status")
            && write.time.as_ref().is_some_and(|time| now.duration_since(time.0) < FRESH)
    })
}

/// Whether the operator runs, and watches these namespaces. `is_heard`: the status of a group shows that one does.
pub(super) fn of_operator(
    deployments: Part<Vec<Deployment>>,
    namespaces: &BTreeSet<String>,
    is_heard: bool,
) -> Vec<Finding> {
    let found = match deployments {
        Ok(found) => found,
        Err(failure) => {
            let heard = if is_heard { "an operator has just reported about a group, but " } else { "" };
            let remedy = "ask somebody who may list Deployments in the operator's namespace";
            let text = format!("{heard}whether it runs now cannot be seen: {}", failure.problem);
            return vec![Finding::new(Level::Unknown, ABOUT, text, remedy)];
        }
    };
    if found.is_empty() {
        let text = format!("no Deployment of the operator's chart was found (labels {LABELS})");
        let (level, text, remedy) = if is_heard {
            let text = format!("{text}, but an operator has just reported about a group");
            (Level::Hint, text, "if that is not meant so, install the chart")
        } else {
            let remedy =
                "install the chart; an operator that runs without it is not seen here: check it yourself";
            (Level::Wrong, text + ": nothing fails over", remedy)
        };
        return vec![Finding::new(level, ABOUT, text, remedy)];
    }
    found.iter().flat_map(|deployment| of_deployment(deployment, namespaces)).collect()
}

fn of_deployment(deployment: &Deployment, namespaces: &BTreeSet<String>) -> Vec<Finding> {
    let namespace = deployment.namespace().unwrap_or_default();
    let name = format!("the operator {namespace}/{}", deployment.name_any());
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = ready_replicas(deployment);
    let version = deployment.labels().get("app.kubernetes.io/version");
    let shown = version.map_or_else(String::new, |version| format!(", version {version}"));
    let logs = Place::of(deployment).log();
    let mut all = vec![match (ready, wanted) {
        (_, 0) => Finding::new(
            Level::Wrong,
            ABOUT,
            format!("{name} is scaled to 0: nothing fails over"),
            format!("`kubectl -n {namespace} scale deployment/{} --replicas 2`", deployment.name_any()),
        ),
        (0, _) => {
            let text = format!("{name} has no ready replica: nothing fails over");
            Finding::new(Level::Wrong, ABOUT, text, logs)
        }
        (ready, wanted) if ready < wanted => {
            let text = format!("{name} has {ready} ready replicas of {wanted}");
            Finding::new(Level::Wrong, ABOUT, text, logs)
        }
        (1, _) => Finding::new(
            Level::Hint,
            ABOUT,
            format!("{name} has one replica{shown}: while it is replaced, nothing fails over"),
            "set replicaCount to 2 or more in the chart",
        ),
        _ => Finding::fine(ABOUT, format!("{name} has {ready} ready replicas{shown}")),
    }];
    if version.is_some_and(|version| version != env!("CARGO_PKG_VERSION")) {
        let text =
            format!("this plugin has version {}, and {name} another{shown}", env!("CARGO_PKG_VERSION"));
        all.push(Finding::new(Level::Hint, ABOUT, text, "use the plugin of the operator's version"));
    }
    let watched = watched(deployment);
    let left_out: Vec<&str> = namespaces
        .iter()
        .filter(|namespace| !watched.is_empty() && !watched.contains(*namespace))
        .map(String::as_str)
        .collect();
    if !left_out.is_empty() {
        all.push(Finding::new(
            Level::Wrong,
            ABOUT,
            format!("{name} does not watch: {}", left_out.join(", ")),
            "add the namespace to watchNamespaces in the chart",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::{
        operator::NAMESPACES,
        samples::{now, object, web},
    };

    fn deployment(replicas: i32, ready: i32, version: &str, namespaces: &str) -> Deployment {
        object(json!({
            "metadata": {
                "namespace": "lg", "name": "leadergroup", "labels": { "app.kubernetes.io/version": version },
            },
            "spec": {
                "replicas": replicas, "selector": {},
                "template": { "spec": { "containers": [{
                    "name": "operator", "env": [{ "name": NAMESPACES, "value": namespaces }],
                }] } },
            },
            "status": { "readyReplicas": ready },
        }))
    }

    fn of(found: Deployment) -> Vec<(Level, String)> {
        let findings = of_operator(Ok(vec![found]), &["shop".to_owned()].into(), true);
        findings.into_iter().map(|finding| (finding.level, finding.text)).collect()
    }

    #[test]
    fn the_operator_must_be_ready_and_watch_the_namespace() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(of(deployment(2, 2, version, ""))[0].0, Level::Fine);
        assert_eq!(of(deployment(2, 2, version, "a, shop"))[0].0, Level::Fine);
        assert_eq!(of(deployment(1, 1, version, ""))[0].0, Level::Hint);
        for (found, words) in [
            (deployment(0, 0, version, ""), "scaled to 0"),
            (deployment(2, 0, version, ""), "no ready replica"),
            (deployment(2, 1, version, ""), "1 ready replicas of 2"),
        ] {
            let all = of(found);
            assert!(all[0].0 == Level::Wrong && all[0].1.contains(words), "{all:?}");
        }
        let all = of(deployment(2, 2, version, "other"));
        assert!(all[1].0 == Level::Wrong && all[1].1.ends_with("does not watch: shop"), "{all:?}");
        assert!(of(deployment(2, 2, "9.9.9", ""))[1].1.contains("version 9.9.9"));
    }

    #[test]
    fn an_operator_that_is_not_found_is_wrong_unless_groups_show_that_one_works() {
        for (is_heard, level) in [(true, Level::Hint), (false, Level::Wrong)] {
            assert_eq!(of_operator(Ok(Vec::new()), &BTreeSet::new(), is_heard)[0].level, level);
        }
        let refused = Failure::new("could not list the Deployments: forbidden", "");
        let of = |found: Vec<Deployment>, is_heard| Operator::of(&Ok(found), "shop", is_heard);
        assert_eq!(Operator::of(&Err(refused.clone()), "shop", false), Operator::Unknown);
        assert_eq!(of(Vec::new(), false), Operator::Absent);
        assert_eq!(of(Vec::new(), true), Operator::Unknown);
        assert_eq!(of(vec![deployment(0, 0, "1", "")], true), Operator::Absent);
        assert!(matches!(of(vec![deployment(2, 1, "1", "")], false), Operator::Runs(_)));
        assert_eq!(of_operator(Err(refused), &BTreeSet::new(), false)[0].level, Level::Unknown);
    }

    #[test]
    fn each_namespace_has_the_operator_that_watches_it() {
        let all = [("bank", 2), ("shop", 1), ("away", 0)].map(|(name, ready)| {
            let mut found = deployment(2, ready, "1", name);
            found.metadata.namespace = Some(format!("lg-{name}"));
            found
        });
        let of = |namespace: &str, is_heard| Operator::of(&Ok(all.to_vec()), namespace, is_heard);
        assert_eq!(of("shop", false), Operator::Runs(Place::of(&all[1])));
        assert_eq!(of("bank", false), Operator::Runs(Place::of(&all[0])));
        assert_eq!(of("away", true), Operator::Absent, "none of its replicas is ready");
        assert_eq!((of("other", false), of("other", true)), (Operator::Absent, Operator::Unknown));
    }

    #[test]
    fn only_a_report_of_just_now_shows_that_an_operator_runs() {
        let written = |manager: &str, subresource: &str, time: &str| {
            let mut group = web();
            group.metadata.managed_fields = object(json!([{
                "manager": manager, "subresource": subresource, "time": time, "operation": "Apply",
            }]));
            is_heard(&group, now())
        };
        assert!(written(FIELD_MANAGER, "status", "2026-11-20T11:59:50Z"));
        assert!(!written(FIELD_MANAGER, "status", "2026-11-20T11:59:20Z"), "long ago");
        assert!(!written(FIELD_MANAGER, "", "2026-11-20T11:59:50Z"), "no status");
        assert!(!written("kubectl", "status", "2026-11-20T11:59:50Z"), "somebody else");
        assert!(!is_heard(&web(), now()));
    }

    #[test]
    fn a_definition_of_another_version_is_noticed_by_its_fields() {
        let mut definition = LeaderGroup::crd();
        assert_eq!(compared(&definition).level, Level::Fine);
        let schema = definition.spec.versions[0].schema.as_mut().expect("a schema");
        let schema = schema.open_api_v3_schema.as_mut().expect("a schema");
        let spec = schema.properties.as_mut().expect("fields").get_mut("spec").expect("a spec");
        let fields = spec.properties.as_mut().expect("fields");
        let paused = fields.remove("paused").expect("the field");
        let older = compared(&definition);
        assert!(older.level == Level::Wrong && older.text.ends_with("it lacks spec.paused"), "{older:?}");
        let schema = definition.spec.versions[0].schema.as_mut().expect("a schema");
        let schema = schema.open_api_v3_schema.as_mut().expect("a schema");
        let spec = schema.properties.as_mut().expect("fields").get_mut("spec").expect("a spec");
        let fields = spec.properties.as_mut().expect("fields");
        fields.insert("paused".to_owned(), paused.clone());
        fields.insert("later".to_owned(), paused);
        assert_eq!(compared(&definition).level, Level::Hint);
    }

    #[test]
    fn a_cluster_that_does_not_know_the_kind_needs_the_chart() {
        let unknown = Failure { kind: Kind::UnknownKind, ..Failure::new("no", "") };
        let found = of_definition(Err(unknown.clone()), Err(unknown));
        assert!(found.len() == 1 && found[0].level == Level::Wrong, "{found:?}");
        assert!(found[0].remedy().contains("install the operator's chart"), "{found:?}");
    }
}
