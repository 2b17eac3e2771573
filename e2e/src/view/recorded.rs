//! What the API server's history says of a group's pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result};

use super::overlap::{Exempt, STILL_KNOWN, Term};
use crate::{
    history::{GroupView, History, Kind, Object, Promotion, check},
    moment::Moment,
};

/// The terms of a group in which a pod was active. They begin with their grants: the recording sees a declaration a
/// while after it was made, perhaps later than a client reaches the pod. If the database's clock was another one,
/// they begin with the declarations.
pub(super) fn terms(history: &History, namespace: &str, group: &str) -> Result<Vec<Term>> {
    let key = format!("/{namespace}/{group}");
    let promotions = check(history).promotions.into_iter().filter(|promotion| promotion.key.ends_with(&key));
    let term = |promotion: Promotion| {
        let is_of = |view: &GroupView| {
            let holder = view.declaration.holder.as_ref().map(|holder| &holder.uid);
            view.declaration.token == promotion.token && holder == Some(&promotion.uid)
        };
        let declared = history
            .changes
            .iter()
            .find(|change| matches!(&change.state, Some(Object::Group(view)) if is_of(view)))?;
        let granted = history.terms.iter().flatten().filter(|_| history.compares_clocks(declared.seen_at));
        let granted = granted
            .filter(|granted| granted.key == promotion.key && granted.token == promotion.token)
            .map(|granted| declared.seen_at.duration_since(granted.granted_at))
            .find_map(|before| Duration::try_from(before).ok());
        let gone = history.changes.iter().find(|change| {
            change.id.kind == Kind::Pod
                && change.id.namespace == namespace
                && change.id.name == promotion.pod
                && change.state.is_none()
        });
        Some(Term {
            token: promotion.token,
            pod: promotion.pod,
            uid: promotion.uid,
            began: declared.seen.minus(granted.unwrap_or_default()),
            gone: gone.map(|change| change.seen),
        })
    };
    let terms: Option<Vec<Term>> = promotions.map(term).collect();
    terms.context("a promotion that was not declared")
}

/// When other pods had the address of a former holder, by their names, until no node remembers the former connections.
pub(super) fn address_successors(history: &History, terms: &[Term]) -> Vec<Exempt> {
    let mut of_holders: BTreeMap<&str, Moment> = BTreeMap::new();
    let mut given = BTreeSet::new();
    let mut successors = Vec::new();
    for change in &history.changes {
        let Some(Object::Pod(pod)) = &change.state else { continue };
        let Some(address) = pod.address.as_deref() else { continue };
        if terms.iter().any(|term| term.uid == pod.uid) {
            of_holders.entry(address).or_insert(change.seen);
        } else if let Some(from) = of_holders.get(address).copied()
            && given.insert((&pod.uid, address))
        {
            let until = Some(change.seen.plus(STILL_KNOWN));
            successors.push(Exempt { name: change.id.name.clone(), from, until });
        }
    }
    successors
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::history::{Change, ObjectId};

    fn at(seconds: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(seconds))
    }

    fn wall(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn change(seconds: u64, name: &str, address: Option<&str>) -> Change {
        let pod = json!({ "metadata": { "uid": format!("uid-{name}") }, "status": { "podIP": address } });
        object(seconds, Kind::Pod, name, &pod)
    }

    fn object(seconds: u64, kind: Kind, name: &str, json: &Value) -> Change {
        Change {
            revision: i64::try_from(seconds).expect("a small number"),
            seen: at(seconds),
            seen_at: wall(seconds),
            id: ObjectId { kind, namespace: "ns".into(), name: name.into() },
            state: Some(Object::read(kind, json).expect("a readable object")),
            operator: None,
            raw: "".into(),
        }
    }

    #[test]
    fn a_term_begins_with_its_grant_unless_the_database_has_another_clock() {
        let group = json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
            "metadata": { "name": "web", "namespace": "ns", "uid": "g", "creationTimestamp": wall(0).to_string() },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
            "status": {
                "observedGeneration": 1, "token": 2,
                "declaration": { "token": 2, "holder": { "name": "a", "uid": "uid-a" } },
            },
        });
        let pod = json!({ "metadata": {
            "name": "a", "uid": "uid-a",
            "labels": { "app": "web", "leadergroup.dev/role": "active" },
            "annotations": { "leadergroup.dev/stamp": "g/2", "leadergroup.dev/fencing-token": "c/ns/web/2" },
        } });
        let granted = crate::history::Term {
            key: "c/ns/web".into(),
            token: 2,
            grant: "1".into(),
            owner: "uid-a".into(),
            granted_at: wall(3),
        };
        let mut history = History {
            cluster: Some("c".into()),
            changes: vec![object(5, Kind::LeaderGroup, "web", &group), object(6, Kind::Pod, "a", &pod)],
            complete_to: 6,
            terms: Some(vec![granted]),
            one_clock: true,
            ..History::default()
        };
        let began =
            |history: &History| terms(history, "ns", "web").expect("declared").first().map(|term| term.began);
        assert_eq!(began(&history), Some(at(3)));
        history.clock_set = vec![(wall(5), Some(wall(6)))];
        assert_eq!(began(&history), Some(at(5)));
        history.clock_set = vec![(wall(1), Some(wall(5))), (wall(6), None)];
        assert_eq!(began(&history), Some(at(3)));
        history.one_clock = false;
        assert_eq!(began(&history), Some(at(5)));
    }

    #[test]
    fn who_got_the_address_of_a_former_holder() {
        let changes = vec![
            change(1, "before", Some("10.0.0.1")),
            change(2, "holder", None),
            change(3, "holder", Some("10.0.0.1")),
            change(4, "elsewhere", Some("10.0.0.2")),
            change(5, "after", None),
            change(6, "after", Some("10.0.0.1")),
            change(200, "after", Some("10.0.0.1")),
            change(201, "holder", Some("10.0.0.3")),
        ];
        let history = History { changes, ..History::default() };
        let term =
            Term { token: 1, pod: "holder".into(), uid: "uid-holder".into(), began: at(3), gone: None };
        let after = Exempt { name: "after".into(), from: at(3), until: Some(at(10)) };
        assert_eq!(address_successors(&history, &[term]), [after]);
        assert_eq!(address_successors(&history, &[]), []);
    }
}
