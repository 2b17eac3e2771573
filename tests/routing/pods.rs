//! Tests of the writes to pods and their preconditions.

use std::time::Instant;

use k8s_openapi::api::{
    core::v1::Pod,
    rbac::v1::{self as rbac, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use leadergroup::{
    api::{
        ACTIVE_DELETION_COST, DELETION_COST_ANNOTATION, DeletionPolicy, FENCING_ANNOTATION, PodRef,
        ROLE_LABEL, Role,
    },
    routing::{Promoted, Router, Stripped, Trial},
};
use serde_json::{Value, json};

use crate::{
    apiserver::{ApiServer, DEADLINE, admission::Policy},
    stage::{KEY, Stage, unseen},
};

async fn promote(stage: &Stage, token: i64, pod: &PodRef, version: &str) -> bool {
    matches!(stage.router.promote(&stage.group, KEY, token, pod, version).await.unwrap(), Promoted::Done(_))
}

#[tokio::test]
async fn a_promotion_needs_the_version_that_was_read() {
    let stage = Stage::new("promote").await;
    let pod = stage.pod("a").await;
    let outdated = stage.version(&pod).await;
    stage.edit(&pod, json!({ "annotations": { "example.org/note": "changed" } })).await;
    for version in [outdated.as_str(), "", "0"] {
        assert!(!promote(&stage, 1, &pod, version).await, "{version:?}");
    }
    assert_eq!(stage.mark(&pod).await, (Role::None, None));
    let version = stage.version(&pod).await;
    assert!(promote(&stage, 1, &pod, &version).await);
    assert_eq!(stage.mark(&pod).await, (Role::Active, Some(1)));
    let annotations = stage.read(&pod).await.annotations().clone();
    assert_eq!(annotations.get(FENCING_ANNOTATION), Some(&format!("{KEY}/1")));
    assert_eq!(annotations.get(DELETION_COST_ANNOTATION), Some(&ACTIVE_DELETION_COST.to_string()));
    // A repetition has an outdated precondition, even though it would change nothing.
    assert!(!promote(&stage, 1, &pod, &version).await);
}

#[tokio::test]
async fn a_promotion_is_for_one_pod_and_not_for_its_name() {
    let stage = Stage::new("promote").await;
    let old = stage.pod("a").await;
    let version = stage.version(&old).await;
    let new = stage.replace(&old).await;
    assert!(!promote(&stage, 1, &old, &version).await, "another UID and version");
    assert!(!promote(&stage, 1, &old, &stage.version(&new).await).await, "another UID");
    assert_eq!(stage.mark(&new).await, (Role::None, None));
    stage.remove(&new).await;
    assert!(!promote(&stage, 1, &new, &version).await, "no pod");
}

#[tokio::test]
async fn a_strip_covers_every_pod_and_skips_those_that_are_gone() {
    let stage = Stage::new("strip").await;
    let (active, plain) = (stage.pod("a").await, stage.pod("b").await);
    let (missing, old) = (stage.pod("c").await, stage.pod("d").await);
    assert!(promote(&stage, 1, &active, &stage.version(&active).await).await);
    stage.remove(&missing).await;
    let new = stage.replace(&old).await;
    stage.declare(2, &plain).await;
    let pods = [active.clone(), plain.clone(), missing, old];
    for again in [false, true] {
        let before = stage.version(&active).await;
        match stage.router.strip(&stage.group, 2, &unseen(&pods)).await.unwrap() {
            Stripped::Done(left, changed) => {
                assert_eq!((left.len(), changed), (2, !again));
            }
            Stripped::Outdated => panic!("nothing is newer"),
        }
        assert_eq!(before == stage.version(&active).await, again, "completed writes are not repeated");
    }
    for pod in [&active, &plain] {
        assert_eq!(stage.mark(pod).await, (Role::Standby, Some(2)));
        assert_eq!(stage.read(pod).await.annotations().get(DELETION_COST_ANNOTATION), None);
    }
    assert_eq!(stage.mark(&new).await, (Role::None, None), "another pod of the same name");
    // A fencing token that somebody else wrote to a standby.
    let forged = json!({ "annotations": { FENCING_ANNOTATION: format!("{KEY}/2") } });
    stage.edit(&plain, forged).await;
    let stripped = stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&plain))).await.unwrap();
    assert!(matches!(stripped, Stripped::Done(_, true)));
    assert_eq!(stage.mark(&plain).await, (Role::Standby, Some(2)));
}

#[tokio::test]
async fn a_strip_stops_at_a_newer_term_and_corrects_a_foreign_stamp() {
    let stage = Stage::new("strip").await;
    let (pod, holder) = (stage.pod("a").await, stage.pod("b").await);
    stage.declare(2, &holder).await;
    let uid = stage.group.uid.clone();
    // This token was never declared.
    stage.stamp_foreign(&pod, &uid, 99).await;
    let stripped = stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&pod))).await.unwrap();
    assert!(matches!(stripped, Stripped::Done(_, true)));
    assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(2)));
    stage.stamp_foreign(&pod, "another-group", 99).await;
    let stripped = stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&pod))).await.unwrap();
    assert!(matches!(stripped, Stripped::Done(_, true)));
    assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(2)));
    // A later term has written the pod: it is that term's holder and stays active.
    stage.declare(3, &pod).await;
    assert!(promote(&stage, 3, &pod, &stage.version(&pod).await).await);
    let stripped = stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&pod))).await.unwrap();
    assert!(matches!(stripped, Stripped::Outdated));
    assert_eq!(stage.mark(&pod).await, (Role::Active, Some(3)));
    // Nothing shows that the later term is over.
    stage.undeclare().await;
    let stripped = stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&pod))).await.unwrap();
    assert!(matches!(stripped, Stripped::Outdated));
    assert_eq!(stage.mark(&pod).await, (Role::Active, Some(3)));
    // The stamp of a standby is put right all the same.
    stage.stamp_foreign(&holder, &uid, 99).await;
    let stamped = stage.router.stamp(&stage.group, 3, &unseen(std::slice::from_ref(&holder))).await;
    assert_eq!((stamped.pods.len(), stage.mark(&holder).await), (1, (Role::Standby, Some(3))));
}

#[tokio::test]
async fn a_strip_does_not_take_the_label_of_another_group_that_selects_the_pod() {
    let stage = Stage::new("strip").await;
    let (pod, holder) = (stage.pod("a").await, stage.pod("b").await);
    stage.declare(2, &holder).await;
    let create = async |name: &str, app: &str, routing: Value| {
        let group = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup", "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": { "app": app } }, "routing": routing },
        });
        let group = serde_json::from_value(group).unwrap();
        stage.groups().create(&PostParams::default(), &group).await.unwrap().uid().unwrap()
    };
    let activate = async |group: &str| {
        stage.edit(&pod, json!({ "labels": { ROLE_LABEL: "active" } })).await;
        stage.stamp_foreign(&pod, group, 9).await;
    };
    let strip =
        async || stage.router.strip(&stage.group, 2, &unseen(std::slice::from_ref(&pod))).await.unwrap();
    // Groups that have not made it active: one selects other pods, one has a role label of its own.
    let usual = || json!({});
    let of_label = create("label", "orders", json!({ "roleLabel": "role" })).await;
    for other in [create("of-others", "none", usual()).await, of_label] {
        activate(&other).await;
        assert!(matches!(strip().await, Stripped::Done(_, true)));
        assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(2)));
    }
    let other = create("other", "orders", json!({ "standbyValue": "spare" })).await;
    activate(&other).await;
    let before = stage.version(&pod).await;
    assert!(matches!(strip().await, Stripped::Outdated));
    // It leaves the group, and is a pod of the other one alone.
    stage.groups().delete("other", &DeleteParams::default()).await.unwrap();
    let other = create("other", "elsewhere", usual()).await;
    stage.edit(&pod, json!({ "labels": { "app": "elsewhere" } })).await;
    activate(&other).await;
    let left = stage.version(&pod).await;
    assert!(matches!(strip().await, Stripped::Done(_, false)));
    assert_eq!(stage.version(&pod).await, left);
    assert_ne!(before, left);
    // That one is gone.
    stage.groups().delete("other", &DeleteParams::default()).await.unwrap();
    assert!(matches!(strip().await, Stripped::Done(_, true)));
    assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(2)));
    // This group is gone itself, and its watch does not show that yet.
    let other = create("other", "elsewhere", usual()).await;
    activate(&other).await;
    stage.groups().delete(&stage.group.name, &DeleteParams::default()).await.unwrap();
    assert!(matches!(strip().await, Stripped::Outdated));
}

#[tokio::test]
async fn a_write_is_bound_to_the_version_that_the_watch_has_shown_and_reads_the_pod_if_that_has_passed() {
    let stage = Stage::new("strip").await;
    let (pod, other, gone) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    stage.declare(2, &other).await;
    let before = stage.seen(&[pod.clone(), gone.clone()]).await;
    stage.remove(&gone).await;
    let Stripped::Done(left, true) = stage.router.strip(&stage.group, 2, &before).await.unwrap() else {
        panic!("it is stripped");
    };
    assert_eq!(left.len(), 1, "the other one is gone");
    assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(2)));

    // The same write changes nothing: a version that has passed is read again, the present one is confirmed.
    let now = stage.version(&pod).await;
    for at in [before, stage.seen(std::slice::from_ref(&pod)).await] {
        let again = stage.router.strip(&stage.group, 2, &at).await.unwrap();
        assert!(matches!(again, Stripped::Done(_, false)), "{again:?}");
        assert_eq!(stage.version(&pod).await, now);
    }

    // A later term has made it active. Neither a strip nor a stamp of the earlier one changes that.
    let before = stage.seen(std::slice::from_ref(&pod)).await;
    stage.declare(3, &pod).await;
    assert!(promote(&stage, 3, &pod, &stage.version(&pod).await).await);
    let stripped = stage.router.strip(&stage.group, 2, &before).await.unwrap();
    assert!(matches!(stripped, Stripped::Outdated), "{stripped:?}");
    let stamped = stage.router.stamp(&stage.group, 2, &before).await;
    assert_eq!((stamped.pods.len(), stamped.refused.len()), (1, 0), "{stamped:?}");
    assert_eq!(stage.mark(&pod).await, (Role::Active, Some(3)));

    // Nor does the deletion of the group skip it.
    stage.router.clear(&stage.group, DeletionPolicy::RemoveLabels, &before).await.unwrap();
    assert_eq!(stage.mark(&pod).await, (Role::None, None));
}

#[tokio::test]
async fn stamping_goes_on_past_what_it_cannot_stamp() {
    let stage = Stage::new("stamp").await;
    let (gone, newer, pod) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    stage.remove(&gone).await;
    stage.declare(5, &newer).await;
    assert!(promote(&stage, 5, &newer, &stage.version(&newer).await).await);
    let pods = [gone, newer.clone(), pod.clone()];
    let stamped = stage.router.stamp(&stage.group, 4, &unseen(&pods)).await;
    assert!(stamped.failed.is_none() && stamped.refused.is_empty(), "{stamped:?}");
    let mut left: Vec<_> = stamped.pods.iter().map(ResourceExt::name_any).collect();
    left.sort();
    assert_eq!(left, ["b", "c"]);
    assert_eq!(stage.mark(&newer).await, (Role::Active, Some(5)));
    // Also for the current term: the pod became active after it was stamped.
    let stamped = stage.router.stamp(&stage.group, 5, &unseen(std::slice::from_ref(&newer))).await;
    assert!(stamped.failed.is_none() && stamped.refused.is_empty(), "{stamped:?}");
    assert_eq!(stage.mark(&newer).await, (Role::Active, Some(5)));
    assert_eq!(stage.mark(&pod).await, (Role::Standby, Some(4)));
}

#[tokio::test]
async fn clearing_leaves_alone_what_is_not_the_groups() {
    let stage = Stage::new("clear").await;
    let (ours, foreign, gone) = (stage.pod("a").await, stage.pod("b").await, stage.pod("c").await);
    stage.declare(1, &ours).await;
    for (kept, role) in [(DeletionPolicy::Retain, Role::Active), (DeletionPolicy::RemoveLabels, Role::None)] {
        assert!(promote(&stage, 1, &ours, &stage.version(&ours).await).await);
        stage.stamp_foreign(&foreign, "another-group", 7).await;
        if kept == DeletionPolicy::RemoveLabels {
            stage.remove(&gone).await;
        }
        let pods = [ours.clone(), foreign.clone(), gone.clone()];
        stage.router.clear(&stage.group, kept, &unseen(&pods)).await.unwrap();
        assert_eq!(stage.mark(&ours).await, (role, None));
        // A pod that keeps serving keeps the token that its writes carry.
        let fencing = stage.read(&ours).await.annotations().get(FENCING_ANNOTATION).cloned();
        assert_eq!(fencing, (role == Role::Active).then(|| format!("{KEY}/1")));
        assert_eq!(stage.mark(&foreign).await, (Role::None, Some(7)));
    }
}

#[tokio::test]
async fn an_invalid_label_does_not_block_a_deletion() {
    let mut stage = Stage::new("clear").await;
    let pod = stage.pod("a").await;
    let before = stage.version(&pod).await;
    for label in ["no label", "", "a/b/c"] {
        label.clone_into(&mut stage.group.marks.label);
        stage
            .router
            .clear(&stage.group, DeletionPolicy::RemoveLabels, &unseen(std::slice::from_ref(&pod)))
            .await
            .unwrap();
    }
    assert_eq!(stage.version(&pod).await, before);
}

#[tokio::test]
async fn a_pod_that_must_not_be_written_does_not_block_the_others() {
    let stage = Stage::new("clear").await;
    let mut pods = Vec::new();
    // More pods than are written concurrently, with the forbidden one first.
    for number in 0..12 {
        let pod = stage.pod(&format!("pod-{number}")).await;
        assert!(promote(&stage, 1, &pod, &stage.version(&pod).await).await);
        pods.push(pod);
    }
    let (namespace, group) = (&stage.namespace, "rbac.authorization.k8s.io");
    let others: Vec<_> = pods[1..].iter().map(|pod| &pod.name).collect();
    let role: rbac::Role = serde_json::from_value(json!({
        "metadata": { "name": namespace },
        "rules": [
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
            { "apiGroups": [""], "resources": ["pods"], "resourceNames": others, "verbs": ["patch"] }
        ]
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": namespace },
        "roleRef": { "apiGroup": group, "kind": "Role", "name": namespace },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": namespace }]
    }))
    .unwrap();
    let params = PostParams::default();
    Api::namespaced(stage.client.clone(), namespace).create(&params, &role).await.unwrap();
    Api::namespaced(stage.client.clone(), namespace).create(&params, &binding).await.unwrap();
    let client = ApiServer::shared().await.client_as(namespace).await;
    let visible = Api::<Pod>::namespaced(client.clone(), namespace);
    let start = Instant::now();
    // A granted right takes effect a moment later.
    while visible.list(&ListParams::default()).await.is_err() {
        assert!(start.elapsed() < DEADLINE, "the right does not arrive");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }

    let router = Router::new(client, DEADLINE);
    let refused = router.clear(&stage.group, DeletionPolicy::RemoveLabels, &unseen(&pods)).await.unwrap_err();
    assert!(refused.is_refusal() && refused.code() == Some(403), "{refused}");
    for pod in &pods[1..] {
        assert_eq!(stage.mark(pod).await, (Role::None, None), "{}", pod.name);
    }
    assert_eq!(stage.mark(&pods[0]).await, (Role::Active, Some(1)));
}

#[tokio::test]
async fn a_dry_run_tells_whether_a_pod_may_be_active_and_writes_nothing() {
    let stage = Stage::new("try").await;
    let (free, refused) = (stage.pod("a").await, stage.pod("b").await);
    let tried = async |pod: &PodRef| stage.router.try_change(&stage.group, KEY, 1, pod, None).await.unwrap();
    let condition = "object.metadata.name == 'b' && 'leadergroup.dev/role' in object.metadata.labels";
    let labels = json!({ ROLE_LABEL: "active" });
    let policy = Policy::refuse(
        stage.client.clone(),
        &stage.namespace,
        (condition, "b must not have a role"),
        ("b", &labels),
    )
    .await;
    let before = (stage.version(&free).await, stage.version(&refused).await);
    assert!(matches!(tried(&free).await, Trial::Accepted));
    match tried(&refused).await {
        Trial::Refused(error) => assert!(error.to_string().contains("b must not have a role"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((stage.version(&free).await, stage.version(&refused).await), before);
    // The same refusal of the real writes, which have no effect either.
    let version = stage.version(&refused).await;
    let promoted = stage.router.promote(&stage.group, KEY, 1, &refused, &version).await.unwrap();
    assert!(matches!(promoted, Promoted::Refused(_)), "{promoted:?}");
    let stamped = stage.router.stamp(&stage.group, 1, &unseen(&[free.clone(), refused.clone()])).await;
    assert!(stamped.failed.is_none(), "{stamped:?}");
    assert_eq!(stamped.refused.iter().map(|(pod, _)| pod).collect::<Vec<_>>(), [&refused]);
    assert_eq!(stage.mark(&free).await, (Role::Standby, Some(1)));
    assert_eq!(stage.mark(&refused).await, (Role::None, None));
    policy.lift("b", &labels).await;
    assert!(matches!(tried(&refused).await, Trial::Accepted));
    // Another pod of the same name, or none.
    let old = refused.clone();
    stage.replace(&refused).await;
    assert!(matches!(tried(&old).await, Trial::Gone));
    stage.remove(&free).await;
    assert!(matches!(tried(&free).await, Trial::Gone));
}
