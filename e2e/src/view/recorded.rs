//! What the API server's history says of a group's pods.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::overlap::{Exempt, Term};
use crate::history::{GroupView, History, Kind, Object, Promotion, check};

/// The terms of a group in which a pod was active. Their times are those of the API server's history: the database's
/// clock may be wrong.
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
            declared: declared.seen,
            gone: gone.map(|change| change.seen),
        })
    };
    let terms: Option<Vec<Term>> = promotions.map(term).collect();
    terms.context("a promotion that was not declared")
}

/// The names of the pods that were given the address of one of these pods.
pub(super) fn address_successors(history: &History, pods: &[Exempt]) -> BTreeSet<String> {
    let mut addresses = BTreeSet::new();
    let mut successors = BTreeSet::new();
    for change in &history.changes {
        let Some(Object::Pod(pod)) = &change.state else { continue };
        let Some(address) = &pod.address else { continue };
        if pods.iter().any(|exempt| exempt.name == pod.uid) {
            addresses.insert(address);
        } else if addresses.contains(address) {
            successors.insert(change.id.name.clone());
        }
    }
    successors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        history::{Change, ObjectId},
        moment::Moment,
    };

    fn change(name: &str, address: Option<&str>) -> Change {
        let pod = json!({ "metadata": { "uid": format!("uid-{name}") }, "status": { "podIP": address } });
        Change {
            revision: 1,
            seen: Moment::default(),
            seen_at: jiff::Timestamp::UNIX_EPOCH,
            id: ObjectId { kind: Kind::Pod, namespace: "ns".into(), name: name.into() },
            state: Some(Object::read(Kind::Pod, &pod).expect("a readable pod")),
            operator: None,
            raw: "".into(),
        }
    }

    #[test]
    fn who_got_the_address_of_a_pod_that_was_cut_off() {
        let changes = vec![
            change("before", Some("10.0.0.1")),
            change("cut-off", None),
            change("cut-off", Some("10.0.0.1")),
            change("elsewhere", Some("10.0.0.2")),
            change("after", None),
            change("after", Some("10.0.0.1")),
            change("cut-off", Some("10.0.0.3")),
        ];
        let history = History { changes, ..History::default() };
        let cut_off = Exempt { name: "uid-cut-off".into(), from: Moment::default(), until: None };
        assert_eq!(address_successors(&history, &[cut_off]), ["after".to_owned()].into());
        assert!(address_successors(&history, &[]).is_empty());
    }
}
