//! What the API server's history says of a group's pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result};

use super::overlap::{Exempt, Term};
use crate::{
    history::{GroupView, History, Kind, Object, Promotion, check},
    moment::Moment,
    network::UNANSWERED,
};

/// How long answers from a reused address are exempt: as long as nodes remember, and as long again for an answer.
const REMEMBERED: Duration = UNANSWERED.saturating_mul(2);

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
            let until = Some(change.seen.plus(REMEMBERED));
            successors.push(Exempt { name: change.id.name.clone(), from, until });
        }
    }
    successors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::{Change, ObjectId};

    fn at(seconds: u64) -> Moment {
        Moment::default().plus(Duration::from_secs(seconds))
    }

    fn change(seconds: u64, name: &str, address: Option<&str>) -> Change {
        let pod = json!({ "metadata": { "uid": format!("uid-{name}") }, "status": { "podIP": address } });
        Change {
            revision: 1,
            seen: at(seconds),
            seen_at: jiff::Timestamp::UNIX_EPOCH,
            id: ObjectId { kind: Kind::Pod, namespace: "ns".into(), name: name.into() },
            state: Some(Object::read(Kind::Pod, &pod).expect("a readable pod")),
            operator: None,
            raw: "".into(),
        }
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
            Term { token: 1, pod: "holder".into(), uid: "uid-holder".into(), declared: at(3), gone: None };
        let after = Exempt { name: "after".into(), from: at(3), until: Some(at(10)) };
        assert_eq!(address_successors(&history, &[term]), [after]);
        assert_eq!(address_successors(&history, &[]), []);
    }
}
