//! The Services of the groups, and what goes wrong with their endpoints.

use leadergroup::api::{GROUP_LABEL, ROLE_LABEL, SLICE_MANAGER};
use serde_json::{Value, json};

use crate::{
    api_server::{DeleteOptions, Hook, Kind, Object, Review, Store, Verdict},
    cluster::NAMESPACE,
    faults::{Begun, Undo},
    simulation::Simulation,
    slices::{FAMILIES, MANAGED_BY, SERVICE_NAME},
};

/// The webhook that is asked about slices.
const HOOK: &str = "slices.example.com";

/// The label of the Services whose endpoints the operator writes; it looks at those of the others.
const MANAGED: &str = "managed";

/// The Service of a group. It selects the active pod, or no pod: then the operator writes its endpoints.
pub fn service(group: &str, managed: bool) -> Value {
    json!({
        "metadata": { "name": group, "labels": { GROUP_LABEL: group, MANAGED: managed.to_string() } },
        "spec": {
            "selector": selector(group, if managed { "managed" } else { "active" }),
            "ipFamilies": FAMILIES,
            "clusterIP": "10.1.0.1",
            "ports": [{ "port": 80, "targetPort": 8080 }],
        },
    })
}

fn selector(group: &str, role: &str) -> Value {
    json!({ "app": group, ROLE_LABEL: role })
}

/// What is wrong with the endpoints of a Service, since which revision, by a fault of which kind.
#[derive(Clone, Debug)]
pub struct Disturbed {
    kind: &'static str,
    service: String,
    since: u64,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// It selects all pods of the group, so that Kubernetes writes its endpoints.
    SelectsAll,
    /// Somebody else has written a slice for it.
    Foreign,
    /// It has no selector, and Kubernetes copies its `Endpoints`.
    Copied,
    /// Writes of its slices do not pass.
    Webhook,
    /// The answers to writes of slices are lost.
    LostAnswers,
}

/// A user lets a Service select all pods of its group, and later none again.
pub fn edit_selector(run: &mut Simulation, kind: &'static str) -> Begun {
    begin(run, kind, How::SelectsAll, |store, service| {
        select(store, service, json!({ "app": service }));
    })
}

/// Somebody else writes a slice for a Service. Its endpoint gets no traffic: otherwise the Service would have two.
pub fn add_foreign_slice(run: &mut Simulation, kind: &'static str) -> Begun {
    begin(run, kind, How::Foreign, |store, service| {
        let slice = json!({
            "metadata": {
                "name": foreign(service),
                "labels": { SERVICE_NAME: service, MANAGED_BY: "somebody" },
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["192.0.2.7"], "conditions": { "ready": false, "serving": false },
            }],
        });
        store.create(Kind::EndpointSlice, NAMESPACE, slice).expect("there is none of this name");
    })
}

/// A Service loses its selector, and somebody writes `Endpoints` for it. Their address is not ready.
pub fn add_endpoints(run: &mut Simulation, kind: &'static str) -> Begun {
    begin(run, kind, How::Copied, |store, service| {
        select(store, service, Value::Null);
        let endpoints = json!({
            "metadata": { "name": service },
            "subsets": [{ "notReadyAddresses": [{ "ip": "192.0.2.8" }], "ports": [{ "port": 8080 }] }],
        });
        store.create(Kind::Endpoints, NAMESPACE, endpoints).expect("there are none of this name");
    })
}

/// A webhook stands in the way of all writes of a Service's slices, one of which a user has deleted.
pub fn refuse(run: &mut Simulation, kind: &'static str) -> Begun {
    let begun = begin(run, kind, How::Webhook, delete_slice);
    if let Begun::Waits(Undo::Endpoints(disturbed)) = &begun {
        let verdicts = [
            Verdict::Deny(403, "it is forbidden".to_owned()),
            Verdict::Fail("it is broken".to_owned()),
            Verdict::Hang,
        ];
        let verdict = verdicts[run.random.below(verdicts.len())].clone();
        let (effects, ways, service) = (run.effects.clone(), run.ways.clone(), disturbed.service.clone());
        let review = move |review: &Review<'_>| {
            let is_slice = review.request.kind == Kind::EndpointSlice && review.verb.writes();
            let of = review.new.map_or(&Value::Null, |slice| &slice["metadata"]["labels"][SERVICE_NAME]);
            if !is_slice || (!of.is_null() && *of != service.as_str()) {
                return Verdict::Allow;
            }
            effects.note(kind);
            if verdict == Verdict::Hang {
                ways.note_unanswered(review.request);
            }
            verdict.clone()
        };
        run.api.hooks().push(Hook::webhook(HOOK, review));
    }
    begun
}

/// Most answers to writes of slices are lost. A user has deleted one.
pub fn lose_answers(run: &mut Simulation, kind: &'static str) -> Begun {
    let begun = begin(run, kind, How::LostAnswers, delete_slice);
    if matches!(begun, Begun::Waits(_)) {
        run.lose_answers_of_slices(Some(kind));
    }
    begun
}

/// Disturbs any Service whose endpoints the operator writes, if it is as usual. Users do nothing while the API server
/// is away.
fn begin(run: &mut Simulation, kind: &'static str, how: How, act: impl FnOnce(&mut Store, &str)) -> Begun {
    if !run.api.is_running() {
        return Begun::Nothing;
    }
    let mut store = run.api.store();
    let services: Vec<String> = managed(&store).map(|service| service.key.name.clone()).collect();
    let Some(service) = services.get(run.random.below(services.len())).cloned() else {
        return Begun::Nothing;
    };
    let found = store.get(Kind::Service, NAMESPACE, &service).expect("it is there");
    if found.value()["spec"]["selector"] != selector(&service, "managed") {
        return Begun::Nothing;
    }
    let since = store.revision();
    act(&mut store, &service);
    Begun::Waits(Undo::Endpoints(Disturbed { kind, service, since, how }))
}

/// The Services whose endpoints the operator writes.
fn managed(store: &Store) -> impl Iterator<Item = &Object> {
    let is_managed =
        |service: &&Object| service.labels().is_some_and(|it| it.get(MANAGED) == Some(&"true".into()));
    store.objects(Kind::Service).values().map(|service| &**service).filter(is_managed)
}

fn select(store: &mut Store, service: &str, selector: Value) {
    let edited = store.update(Kind::Service, NAMESPACE, service, |it| it["spec"]["selector"] = selector);
    edited.unwrap_or_else(|failure| panic!("a Service cannot be edited: {}", failure.message()));
}

/// A user deletes one of the operator's slices. It may not be there.
fn delete_slice(store: &mut Store, service: &str) {
    let name = own(service, FAMILIES[0]);
    drop(store.delete(Kind::EndpointSlice, NAMESPACE, &name, &DeleteOptions::default()));
}

/// The name of the operator's slice.
fn own(service: &str, family: &str) -> String {
    format!("{service}-leadergroup-{}", family.to_lowercase())
}

fn foreign(service: &str) -> String {
    format!("{service}-foreign")
}

impl Disturbed {
    /// Ends it, and notes whether it has had an effect.
    pub fn undo(self, run: &mut Simulation) {
        match self.how {
            How::Webhook => return run.api.hooks().retain(|hook| hook.name != HOOK),
            How::LostAnswers => return run.lose_answers_of_slices(None),
            How::SelectsAll | How::Foreign | How::Copied => {}
        }
        let (mut store, service) = (run.api.store(), self.service.as_str());
        let options = DeleteOptions::default();
        let took_effect = match self.how {
            How::SelectsAll => self.was_given_up(&store),
            How::Foreign => self.was_reported(&store, &format!("delete EndpointSlice {}", foreign(service))),
            _ => self.was_reported(&store, &format!("delete Endpoints {service}")),
        };
        match self.how {
            How::Foreign => {
                store
                    .delete(Kind::EndpointSlice, NAMESPACE, &foreign(service), &options)
                    .expect("it is there");
            }
            How::Copied => {
                store.delete(Kind::Endpoints, NAMESPACE, service, &options).expect("they are there");
                select(&mut store, service, selector(service, "managed"));
            }
            _ => select(&mut store, service, selector(service, "managed")),
        }
        if took_effect {
            run.effects.note(self.kind);
        }
    }

    /// Whether the operator has deleted its slices in the meantime.
    fn was_given_up(&self, store: &Store) -> bool {
        let names = FAMILIES.map(|family| own(&self.service, family));
        let changes = store.since(self.since);
        let mut removed =
            changes.filter(|change| change.new.is_none()).filter_map(|change| change.old.as_ref());
        removed.any(|old| old.kind == Kind::EndpointSlice && names.contains(&old.key.name))
    }

    /// Whether the group has said so in the meantime.
    fn was_reported(&self, store: &Store, remedy: &str) -> bool {
        let changes = store.since(self.since);
        let groups = changes.filter_map(|change| change.new.as_ref());
        let mut groups = groups.filter(|new| new.kind == Kind::LeaderGroup && new.key.name == self.service);
        groups.any(|group| {
            let conditions = group.value()["status"]["conditions"].as_array().into_iter().flatten();
            let routed =
                conditions.into_iter().filter(|it| it["type"] == "Routed" && it["status"] == "False");
            routed.into_iter().any(|it| it["message"].as_str().is_some_and(|text| text.contains(remedy)))
        })
    }
}

/// The pods to which the operator routes a Service, by UID, in each of its slices; `None` if Kubernetes writes them.
pub fn routed_to(store: &Store, service: &str) -> Option<Vec<Vec<String>>> {
    managed(store).find(|found| found.key.name == service)?;
    let slices = store.objects(Kind::EndpointSlice).values();
    let own = slices.filter(|slice| {
        let labels = slice.labels();
        let is = |name: &str, value: &str| labels.is_some_and(|all| all.get(name) == Some(&value.into()));
        is(SERVICE_NAME, service) && is(MANAGED_BY, SLICE_MANAGER)
    });
    let pods = |slice: &Object| {
        let endpoints = slice.value()["endpoints"].as_array().into_iter().flatten();
        endpoints.filter_map(|it| it["targetRef"]["uid"].as_str()).map(str::to_owned).collect()
    };
    Some(own.map(|slice| pods(slice)).collect())
}
