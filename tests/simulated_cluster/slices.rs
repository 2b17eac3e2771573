//! The controllers of Kubernetes that write `EndpointSlices`: the one for Services that select pods, and the one that
//! copies `Endpoints`. They see changes after random delays, and stop while the API server is away.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leadergroup_e2e::random::Random;
use serde_json::{Map, Value, json};

use crate::{
    agenda::Agenda,
    api_server::{ApiServer, DeleteOptions, Kind, Object, Store},
    cluster::NAMESPACE,
};

/// The label of a slice that names its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of a slice that names its writer.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

const OF_SELECTOR: &str = "endpointslice-controller.k8s.io";
const OF_ENDPOINTS: &str = "endpointslicemirroring-controller.k8s.io";
/// The families of all Services and pods.
pub const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// How long a change waits to be looked at, and in one case of twenty.
const USUAL: usize = 100;
const SELDOM: usize = 1_000;
/// How long the slices of a Service are on their way.
const WRITE: usize = 20;

/// A slice as it should be; without endpoints it may be left out.
struct Wanted {
    name: String,
    family: &'static str,
    writer: &'static str,
    /// `None`: there should be no such slice.
    endpoints: Option<Vec<Value>>,
}

enum Step {
    /// A Service is looked at.
    Look(String),
    /// Its slices are written as they should have been when it was looked at.
    Write(String, Vec<Wanted>),
}

/// Both controllers.
pub struct Slices {
    api: ApiServer,
    random: Random,
    agenda: Agenda<Step>,
    /// Changes up to this revision were noticed.
    noticed: u64,
    /// Services that have changed and were not looked at.
    waiting: BTreeSet<String>,
    /// Services whose slices are on their way. They are not looked at.
    writing: BTreeSet<String>,
    is_away: bool,
}

impl Slices {
    pub fn new(api: ApiServer, seed: u64) -> Self {
        Self {
            api,
            random: Random::new(seed),
            agenda: Agenda::default(),
            noticed: 0,
            waiting: BTreeSet::new(),
            writing: BTreeSet::new(),
            is_away: false,
        }
    }

    /// Does what is due.
    pub fn turn(&mut self, now: Duration) {
        if !self.api.is_running() {
            (self.agenda, self.is_away) = (Agenda::default(), true);
            self.waiting.clear();
            self.writing.clear();
            return;
        }
        if std::mem::take(&mut self.is_away) {
            return self.catch_up();
        }
        for service in self.changed() {
            if self.waiting.insert(service.clone()) && !self.writing.contains(&service) {
                self.look_soon(service, now);
            }
        }
        while let Some(step) = self.agenda.due(now) {
            match step {
                Step::Look(service) => {
                    self.waiting.remove(&service);
                    let wanted = wanted(&self.api.store(), &service);
                    self.writing.insert(service.clone());
                    let at = now + self.millis(WRITE);
                    self.agenda.plan(at, Step::Write(service, wanted));
                }
                Step::Write(service, wanted) => {
                    write(&mut self.api.store(), &service, wanted);
                    self.writing.remove(&service);
                    if self.waiting.contains(&service) {
                        self.look_soon(service, now);
                    }
                }
            }
        }
    }

    /// Writes all slices as they should be. The history checker reckons with this within five seconds of an edit of a
    /// selector, so after an outage nobody else writes before.
    fn catch_up(&mut self) {
        let mut store = self.api.store();
        self.noticed = store.revision();
        let services: Vec<String> = store.objects(Kind::Service).keys().map(|key| key.name.clone()).collect();
        for service in services {
            let wanted = wanted(&store, &service);
            write(&mut store, &service, wanted);
        }
    }

    fn look_soon(&mut self, service: String, now: Duration) {
        let longest = if self.random.below(20) == 0 { SELDOM } else { USUAL };
        let at = now + self.millis(longest);
        self.agenda.plan(at, Step::Look(service));
    }

    fn millis(&mut self, below: usize) -> Duration {
        Duration::from_millis(u64::try_from(self.random.below(below)).expect("a small number"))
    }

    /// The Services that changes since the last time concern.
    fn changed(&mut self) -> BTreeSet<String> {
        let store = self.api.store();
        let since = std::mem::replace(&mut self.noticed, store.revision());
        let changes = store.journal().iter().rev().take_while(|change| change.revision > since);
        let objects = changes.flat_map(|change| change.old.iter().chain(&change.new));
        objects.filter_map(|object| service_of(object)).collect()
    }
}

/// The Service that an object concerns. Services are called as their groups are.
fn service_of(object: &Object) -> Option<String> {
    let label = |name: &str| object.labels()?.get(name)?.as_str();
    let service = match object.kind {
        Kind::Service | Kind::Endpoints => &object.key.name,
        Kind::Pod => label("app")?,
        Kind::EndpointSlice if [OF_SELECTOR, OF_ENDPOINTS].contains(&label(MANAGED_BY)?) => {
            label(SERVICE_NAME)?
        }
        _ => return None,
    };
    Some(service.to_owned())
}

/// The slices that the controllers write for a Service.
fn wanted(store: &Store, service: &str) -> Vec<Wanted> {
    let Some(found) = store.get(Kind::Service, NAMESPACE, service) else { return Vec::new() };
    let selector = found.value()["spec"]["selector"].as_object().filter(|selector| !selector.is_empty());
    // Without a selector the slices of the last one stay as they are.
    let of_selector = selector.into_iter().flat_map(|selector| {
        FAMILIES.iter().zip(["p4v7k", "w2x9d"]).map(|(family, suffix)| Wanted {
            name: format!("{service}-{suffix}"),
            family,
            writer: OF_SELECTOR,
            endpoints: Some(selected(store, selector, family)),
        })
    });
    let endpoints = store.get(Kind::Endpoints, NAMESPACE, service).filter(|_| selector.is_none());
    let copy = Wanted {
        name: format!("{service}-m8q3z"),
        family: FAMILIES[0],
        writer: OF_ENDPOINTS,
        endpoints: endpoints.map(|endpoints| copied(endpoints)),
    };
    of_selector.chain([copy]).collect()
}

/// The pods that a selector matches, as endpoints.
fn selected(store: &Store, selector: &Map<String, Value>, family: &str) -> Vec<Value> {
    let matches = |pod: &&Arc<Object>| {
        selector.iter().all(|(name, value)| pod.labels().and_then(|labels| labels.get(name)) == Some(value))
    };
    store.objects(Kind::Pod).values().filter(matches).filter_map(|pod| endpoint(pod, family)).collect()
}

fn endpoint(pod: &Object, family: &str) -> Option<Value> {
    let status = &pod.value()["status"];
    let is_of_family = |address: &&str| address.contains(':') == (family == "IPv6");
    let mut addresses = status["podIPs"].as_array()?.iter().filter_map(|it| it["ip"].as_str());
    let address = addresses.find(is_of_family)?;
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let serving = conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True");
    let terminating = pod.is_being_deleted();
    Some(json!({
        "addresses": [address],
        "conditions": { "ready": serving && !terminating, "serving": serving, "terminating": terminating },
        "nodeName": pod.value()["spec"]["nodeName"],
        "targetRef": {
            "kind": "Pod", "namespace": NAMESPACE, "name": pod.key.name, "uid": pod.uid(),
        },
    }))
}

/// The addresses of `Endpoints`, as endpoints of a slice.
fn copied(endpoints: &Object) -> Vec<Value> {
    let subsets = endpoints.value()["subsets"].as_array().into_iter().flatten();
    let of = |subset: &Value, field: &str, ready: bool| {
        let addresses = subset[field].as_array().cloned().unwrap_or_default().into_iter();
        addresses.map(move |it| json!({ "addresses": [it["ip"]], "conditions": { "ready": ready } }))
    };
    subsets
        .flat_map(|it| {
            of(it, "addresses", true).chain(of(it, "notReadyAddresses", false)).collect::<Vec<_>>()
        })
        .collect()
}

fn write(store: &mut Store, service: &str, wanted: Vec<Wanted>) {
    let Some(of) = store.get(Kind::Service, NAMESPACE, service).cloned() else { return };
    for Wanted { name, family, writer, endpoints } in wanted {
        let there = store.get(Kind::EndpointSlice, NAMESPACE, &name).is_some();
        let Some(endpoints) = endpoints else {
            if there {
                let options = DeleteOptions::default();
                store.delete(Kind::EndpointSlice, NAMESPACE, &name, &options).expect("it is there");
            }
            continue;
        };
        let mut labels = of.labels().cloned().unwrap_or_default();
        labels.insert(SERVICE_NAME.to_owned(), service.into());
        labels.insert(MANAGED_BY.to_owned(), writer.into());
        let endpoints = Value::from(endpoints);
        let written = if there {
            store.update(Kind::EndpointSlice, NAMESPACE, &name, |slice| {
                slice["metadata"]["labels"] = labels.into();
                slice["endpoints"] = endpoints;
            })
        } else {
            let owner = json!({ "apiVersion": "v1", "kind": "Service", "name": service, "uid": of.uid(), "controller": true });
            let metadata = json!({ "name": name, "labels": labels, "ownerReferences": [owner] });
            let slice = json!({
                "metadata": metadata, "addressType": family, "endpoints": endpoints,
                "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
            });
            store.create(Kind::EndpointSlice, NAMESPACE, slice)
        };
        written.unwrap_or_else(|failure| panic!("the slice {name} is refused: {}", failure.message()));
    }
}
