//! Groups with `routing.endpoints: Managed`, whose Services get their endpoints from the operator.

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use leadergroup::api::STAMP_ANNOTATION;
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use crate::{
    apiserver::ApiServer,
    kubelet::{active, keep_lease, report, run_pod},
    objects::{condition, group, groups},
    postgres::{self, eventually},
    replica::Operator,
    versions::Versions,
};

pub(crate) const SLICE: &str = "front-leadergroup-ipv4";
pub(crate) const SWITCHED_ON: (&str, &str) = ("LEADERGROUP_MANAGED_ENDPOINTS", "true");

fn pods_of(slice: &EndpointSlice) -> Vec<String> {
    slice.endpoints.iter().filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone()).collect()
}

/// The slices of a namespace.
#[derive(Clone)]
pub(crate) struct Slices(pub(crate) Api<EndpointSlice>);

impl Slices {
    /// The pods that a slice lists; `None` if there is no such slice.
    pub(crate) async fn pods(&self, name: &str) -> Option<Vec<String>> {
        self.0.get_opt(name).await.unwrap().map(|slice| pods_of(&slice))
    }

    pub(crate) async fn until(&self, name: &str, pods: Option<&[&str]>) {
        let wanted = pods.map(|pods| pods.iter().map(|&pod| pod.to_owned()).collect::<Vec<_>>());
        eventually(&format!("{name} to list {pods:?}"), async || self.pods(name).await == wanted).await;
    }

    /// Collects the pods of each version of each slice.
    fn observe(&self) -> Versions<Vec<String>> {
        Versions::watch(self.0.clone(), watcher::Config::default(), |slice| pods_of(&slice))
    }
}

/// No version lists two pods. Waits until the watch has shown one that lists these.
async fn assert_single(versions: &Versions<Vec<String>>, last: &[&str]) {
    eventually("the watch to show the last version", async || {
        versions.all().last().is_some_and(|it| it == last)
    })
    .await;
    let two: Vec<_> = versions.all().into_iter().filter(|pods| pods.len() > 1).collect();
    assert!(two.is_empty(), "{two:?}");
}

/// Gives a pod an address of each family.
pub(crate) async fn give_addresses(pods: &Api<Pod>, name: &str, addresses: &[&str]) {
    let all: Vec<_> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    let status = Patch::Merge(json!({ "status": { "podIP": addresses[0], "podIPs": all } }));
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}

/// A group with managed endpoints and the pods web-0 and web-1, in a namespace of its own.
pub(crate) struct Stage {
    pub(crate) server: &'static ApiServer,
    pub(crate) namespace: String,
    pub(crate) groups: Api<DynamicObject>,
    pub(crate) pods: Api<Pod>,
    pub(crate) services: Api<Service>,
    pub(crate) slices: Slices,
    kubelet: AbortHandle,
}

impl Stage {
    /// The node has the name of the namespace. The addresses are those of the two pods.
    pub(crate) async fn set_up(name: &'static str, addresses: [&[&str]; 2]) -> Self {
        let server = ApiServer::shared().await;
        let client = server.client().await;
        let namespace = server.namespace(name).await;
        let stage = Self {
            server,
            groups: groups(client.clone(), &namespace),
            pods: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client.clone(), &namespace),
            slices: Slices(Api::namespaced(client.clone(), &namespace)),
            kubelet: keep_lease(client, name).await,
            namespace,
        };
        for (pod, addresses) in ["web-0", "web-1"].into_iter().zip(addresses) {
            run_pod(&stage.pods, pod, name).await;
            give_addresses(&stage.pods, pod, addresses).await;
        }
        let spec =
            json!({ "selector": { "matchLabels": { "app": "web" } }, "routing": { "endpoints": "Managed" } });
        stage.groups.create(&PostParams::default(), &group("web", &spec)).await.unwrap();
        stage
    }

    pub(crate) async fn create_service(&self, name: &str, families: &str) {
        let service = json!({
            "metadata": { "name": name, "labels": { "leadergroup.dev/group": "web" } },
            "spec": { "ports": [{ "port": 80, "targetPort": 8080 }], "ipFamilyPolicy": families }
        });
        let service = serde_json::from_value(service).unwrap();
        self.services.create(&PostParams::default(), &service).await.unwrap();
    }

    /// Starts a replica that may write endpoints.
    pub(crate) fn start_operator(&self, database_url: &str) -> Operator {
        let variables = [("LEADERGROUP_DATABASE_URL", database_url), SWITCHED_ON];
        Operator::start_with(self.server, &self.namespace, &variables)
    }

    pub(crate) async fn until_ready(&self) {
        let ready = async || condition(&self.groups, "web", "Ready").await.0 == "True";
        eventually("the group to be ready", ready).await;
    }

    /// The active pod and the other one.
    pub(crate) async fn roles(&self) -> (String, &'static str) {
        let active = active(&self.pods).await.remove(0);
        let other = if active == "web-0" { "web-1" } else { "web-0" };
        (active, other)
    }

    pub(crate) async fn request_switchover(&self) {
        let request = json!({ "metadata": { "annotations": { "leadergroup.dev/switchover": "1" } } });
        self.groups.patch("web", &PatchParams::default(), &Patch::Merge(request)).await.unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

#[tokio::test]
async fn the_endpoints_of_a_groups_services_follow_its_active_pod() {
    let stage = Stage::set_up("endpoints", [&["198.18.9.1"], &["198.18.9.2"]]).await;
    let Stage { groups, pods, services, slices, .. } = &stage;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let routed = async |reason: &str| {
        eventually(&format!("Routed to say {reason}"), async || {
            condition(groups, "web", "Routed").await.1 == reason
        })
        .await;
    };
    // Without the setting it needs no rights, and says what is missing.
    let mut operator = Operator::start(stage.server, &stage.namespace, &url);
    routed("EndpointsNotManaged").await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
    let mut operator = stage.start_operator(&url);
    routed("NoService").await;
    stage.create_service("front", "SingleStack").await;
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    slices.until(SLICE, Some(&[&first])).await;

    // One update replaces the one pod by the other.
    let versions = slices.observe();
    eventually("the observer", async || !versions.all().is_empty()).await;
    stage.request_switchover().await;
    slices.until(SLICE, Some(&[second])).await;
    assert_eq!(active(pods).await, [second]);
    let seen = async |count: usize| {
        eventually("the versions", async || versions.all().len() >= count).await;
        versions.all()
    };
    assert_eq!(seen(2).await, [vec![first.clone()], vec![second.to_owned()]]);
    let slice = slices.0.get(SLICE).await.unwrap();
    assert!(slice.annotations()[STAMP_ANNOTATION].ends_with("/2"), "{:?}", slice.annotations());
    let owner = services.get("front").await.unwrap().uid();
    assert_eq!(Some(&slice.owner_references()[0].uid), owner.as_ref(), "it is deleted with its Service");

    // So does the deletion of the active pod: its terminating state is no update of its own.
    versions.forget();
    pods.delete(second, &DeleteParams::default()).await.unwrap();
    slices.until(SLICE, Some(&[&first])).await;
    assert_eq!(seen(1).await, [vec![first.clone()]]);
    pods.delete(second, &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("the pod to be gone", async || pods.get_opt(second).await.unwrap().is_none()).await;
    run_pod(pods, second, "endpoints").await;
    give_addresses(pods, second, &["198.18.9.2"]).await;
    eventually("the other pod is eligible", async || {
        groups.get("web").await.unwrap().data["status"]["eligibleSummary"] == "2/2"
    })
    .await;

    // Neither pod is ready any more: the active one stays, and is not served.
    for pod in [&first, second] {
        report(pods, pod, "False").await;
    }
    let ready = async || {
        let slice = slices.0.get(SLICE).await.unwrap();
        slice.endpoints[0].conditions.as_ref().and_then(|conditions| conditions.ready)
    };
    eventually("the endpoint not to be ready", async || ready().await == Some(false)).await;
    for pod in [second, &first] {
        report(pods, pod, "True").await;
    }
    eventually("the endpoint to be ready again", async || ready().await == Some(true)).await;
    stage.until_ready().await;
    let now = active(pods).await;
    let now: Vec<&str> = now.iter().map(String::as_str).collect();

    // Slices that others change or delete are put right.
    let edit = async |change: Value| {
        slices.0.patch(SLICE, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    edit(json!({ "endpoints": [] })).await;
    slices.until(SLICE, Some(&now)).await;
    edit(json!({ "metadata": { "labels": { "kubernetes.io/service-name": "other" } } })).await;
    let service_of =
        async || slices.0.get(SLICE).await.unwrap().labels()["kubernetes.io/service-name"].clone();
    eventually("its label", async || service_of().await == "front").await;
    slices.0.delete(SLICE, &DeleteParams::default()).await.unwrap();
    slices.until(SLICE, Some(&now)).await;

    // A Service that selects pods is left to Kubernetes.
    let select = async |role: &str| {
        let selector = json!({ "spec": { "selector": { "app": "web", "leadergroup.dev/role": role } } });
        services.patch("front", &PatchParams::default(), &Patch::Merge(selector)).await.unwrap();
    };
    select("active").await;
    slices.until(SLICE, None).await;
    routed("ServiceUnusable").await;
    select("managed").await;
    slices.until(SLICE, Some(&now)).await;
    routed("AsExpected").await;
    assert!(condition(groups, "web", "Routed").await.2.contains("the endpoints of front"));

    // Several Services; one that loses its label; and the way back.
    stage.create_service("back", "SingleStack").await;
    slices.until("back-leadergroup-ipv4", Some(&now)).await;
    let forget = Patch::Merge(json!({ "metadata": { "labels": { "leadergroup.dev/group": null } } }));
    services.patch("back", &PatchParams::default(), &forget).await.unwrap();
    slices.until("back-leadergroup-ipv4", None).await;
    let change = async |endpoints: &str| {
        let patch = Patch::Merge(json!({ "spec": { "routing": { "endpoints": endpoints } } }));
        groups.patch("web", &PatchParams::default(), &patch).await.unwrap();
    };
    change("Selector").await;
    slices.until(SLICE, None).await;
    change("Managed").await;
    slices.until(SLICE, Some(&now)).await;

    // The deletion of the group ends it.
    assert_single(&versions, &now).await;
    groups.delete("web", &DeleteParams::default()).await.unwrap();
    slices.until(SLICE, None).await;
    assert!(slices.0.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn without_the_database_an_endpoint_goes_with_its_pod_and_no_other_comes() {
    let stage = Stage::set_up("endpoints-kept", [&["198.18.9.3"], &["198.18.9.4"]]).await;
    let Stage { pods, slices, .. } = &stage;
    stage.create_service("front", "SingleStack").await;
    // Of its own: dropping a database of the shared server would leave it reachable.
    let server = postgres::Server::start(&[]);
    let url = server.migrated().await.0.url();
    let mut operator = stage.start_operator(&url);
    stage.until_ready().await;
    let (holder, _) = stage.roles().await;
    slices.until(SLICE, Some(&[&holder])).await;
    operator.kill();
    drop(server);

    // A replica that never reached the database.
    let mut operator = stage.start_operator(&url);
    report(pods, &holder, "False").await;
    let ready = async || {
        let slice = slices.0.get(SLICE).await.unwrap();
        slice.endpoints[0].conditions.as_ref().and_then(|conditions| conditions.ready)
    };
    eventually("the endpoint not to be ready", async || ready().await == Some(false)).await;
    assert_eq!(slices.pods(SLICE).await.unwrap(), [&*holder]);
    // Its address may soon belong to another pod.
    pods.delete(&holder, &DeleteParams::default().grace_period(0)).await.unwrap();
    slices.until(SLICE, Some(&[])).await;
    assert_eq!(active(pods).await, Vec::<String>::new());
    assert!(operator.end().await.0.success(), "{}", operator.log());
}

#[tokio::test]
async fn a_dual_stack_service_has_a_slice_for_each_family() {
    const SLICES: [(&str, &str); 2] = [(SLICE, "IPv4"), ("front-leadergroup-ipv6", "IPv6")];
    let addresses = |pod: &str| match pod {
        "web-0" => ["198.18.9.5", "2001:db8:9::5"],
        _ => ["198.18.9.6", "2001:db8:9::6"],
    };
    let stage = Stage::set_up("endpoints-dual", [&addresses("web-0"), &addresses("web-1")]).await;
    let Stage { services, slices, .. } = &stage;
    stage.create_service("front", "RequireDualStack").await;
    let (database, _store) = postgres::migrated().await;
    let mut operator = stage.start_operator(&database.url());
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    let versions = slices.observe();
    let both_list = async |pod: &str| {
        for ((name, family), address) in SLICES.into_iter().zip(addresses(pod)) {
            slices.until(name, Some(&[pod])).await;
            let slice = slices.0.get(name).await.unwrap();
            assert_eq!(
                (&*slice.address_type, &slice.endpoints[0].addresses),
                (family, &vec![address.into()])
            );
        }
    };
    both_list(&first).await;
    stage.request_switchover().await;
    both_list(second).await;
    assert_single(&versions, &[second]).await;

    // A Service that gives up its second family needs no slice for it.
    let single = Patch::Merge(json!({ "spec": { "ipFamilyPolicy": "SingleStack" } }));
    services.patch("front", &PatchParams::default(), &single).await.unwrap();
    slices.until(SLICES[1].0, None).await;
    slices.until(SLICE, Some(&[second])).await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
}
