//! The rights of the user: what each command of the plugin needs.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

use super::finding::{Finding, Level};
use crate::plugin::{cluster::Cluster, failure::Failure};

/// A right, and what it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
    /// Without it the plugin is of no use.
    is_needed: bool,
}

const fn right(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    purpose: &'static str,
) -> Right {
    Right { verb, group, resource, purpose, is_needed: false }
}

/// What the commands need.
pub(super) const RIGHTS: &[Right] = &[
    Right { is_needed: true, ..right("list", "leadergroup.dev", "leadergroups", "all commands") },
    right("watch", "leadergroup.dev", "leadergroups", "status --watch, switchover --wait"),
    right("patch", "leadergroup.dev", "leadergroups", "switchover, pause, resume"),
    right("list", "", "pods", "status, explain, doctor"),
    right("list", "", "services", "status GROUP, doctor"),
    right("list", "discovery.k8s.io", "endpointslices", "status GROUP, doctor"),
    right("list", "", "events", "explain"),
    right("list", "apps", "deployments", "doctor"),
    right("list", "apps", "statefulsets", "doctor"),
    right("list", "apps", "daemonsets", "doctor"),
    right("list", "networking.k8s.io", "networkpolicies", "doctor"),
];

/// Asks the API server for each right in a namespace.
pub(super) async fn reviewed(cluster: &Cluster, namespace: &str) -> Result<Vec<(Right, bool)>, Failure> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let mut answers = Vec::new();
    for right in RIGHTS {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.to_owned()),
                    verb: Some(right.verb.to_owned()),
                    group: Some(right.group.to_owned()),
                    resource: Some(right.resource.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let what = "ask for your rights";
        let answer = cluster.call(what, reviews.create(&PostParams::default(), &review)).await?;
        answers.push((*right, answer.status.is_some_and(|status| status.allowed)));
    }
    Ok(answers)
}

/// What follows from the answers.
pub(super) fn findings(namespace: &str, answers: Result<Vec<(Right, bool)>, Failure>) -> Vec<Finding> {
    let about = format!("your rights in the namespace {namespace}");
    let answers = match answers {
        Ok(answers) => answers,
        Err(failure) => return vec![Finding::new(Level::Unknown, about, failure.problem, failure.remedy)],
    };
    let missing: Vec<Finding> = answers
        .iter()
        .filter(|(_, allowed)| !allowed)
        .map(|(right, _)| {
            let api = if right.group.is_empty() { String::new() } else { format!(".{}", right.group) };
            let text = format!(
                "you may not {} {}{api}, which is for: {}",
                right.verb, right.resource, right.purpose
            );
            let role = if right.verb == "patch" { "edit" } else { "view" };
            let level = if right.is_needed { Level::Wrong } else { Level::Hint };
            let remedy = format!(
                "ask for the cluster role {role} in this namespace (with the chart's rbac.aggregate)"
            );
            Finding::new(level, about.clone(), text, remedy)
        })
        .collect();
    if missing.is_empty() { vec![Finding::fine(about, "all that the commands need")] } else { missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_to_list_groups_is_needed_for_everything() {
        let answers = |allowed: bool| RIGHTS.iter().map(|right| (*right, allowed)).collect::<Vec<_>>();
        let all = findings("shop", Ok(answers(true)));
        assert_eq!(all, [Finding::fine("your rights in the namespace shop", "all that the commands need")]);
        let none = findings("shop", Ok(answers(false)));
        assert_eq!(none.iter().filter(|finding| finding.level == Level::Wrong).count(), 1);
        let patch = none.iter().find(|finding| finding.text.contains("patch")).expect("the right to patch");
        assert_eq!(
            patch.text,
            "you may not patch leadergroups.leadergroup.dev, which is for: switchover, pause, resume"
        );
        assert!(patch.remedy().contains("cluster role edit"), "{patch:?}");
    }
}
