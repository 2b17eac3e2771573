//! The checker: a pure function from a history to the violations of the invariants in it.
//!
//! It goes through the changes in the order of their revisions, keeps the state after each, and checks every group
//! and Service that the change can affect. At the end it compares the result with the lock's term history.

mod families;
mod services;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::objects::selects;
use super::outcome::{Checked, Invariant, Promotion, Violation};
use super::{Change, GroupView, History, Kind, Object, PodView, ServiceView, SliceView, Term};
use crate::moment::Moment;

/// Checks a history.
pub fn check(history: &History) -> Checked {
    let mut checker = Checker::new(history);
    for change in &history.changes {
        checker.apply(change);
    }
    checker.count_all_endpoints();
    checker.check_terms();
    checker.out.violations.extend(super::fencing::violations(history));
    checker.out.violations.extend(super::endpoints::violations(history));
    checker.out.violations.extend(super::storms::violations(history));
    super::evidence::check(history, &mut checker.out);
    let late = super::deadline::violations(&history.deadlines, &checker.out.promotions);
    checker.out.violations.extend(late);
    let after = history.changes.iter().filter(|c| c.revision > history.baseline && c.id.kind != Kind::Event);
    checker.out.revisions = after.map(|c| c.revision).collect::<BTreeSet<_>>().len();
    checker.out
}

/// After this time Kubernetes and the operator have rewritten the slices of a Service whose selector was edited.
const SELECTOR_IS_FOLLOWED: Duration = Duration::from_secs(5);

type Name = (String, String);

/// The pods that serve, by address family.
type Serving = BTreeMap<String, BTreeSet<String>>;

struct Group {
    namespace: String,
    name: String,
    view: GroupView,
    key: String,
}

/// The declarations for one lock key, over all groups that ever used it.
#[derive(Default)]
struct Announced {
    declared: Vec<Declared>,
    /// Where those begin that later ones are compared with.
    from: usize,
    promoted: Option<(i64, String)>,
}

struct Declared {
    revision: i64,
    seen_at: Timestamp,
    token: i64,
    holder: Option<String>,
    grant: Option<String>,
}

impl Announced {
    fn compared(&self) -> &[Declared] {
        &self.declared[self.from..]
    }
}

struct Checker<'a> {
    history: &'a History,
    pods: BTreeMap<Name, PodView>,
    /// The Service, and when its selector was last edited.
    services: BTreeMap<Name, (ServiceView, Option<Moment>)>,
    slices: BTreeMap<Name, SliceView>,
    /// The serving endpoints that each slice, or the one of its name before it, was last written with.
    written: BTreeMap<Name, BTreeSet<String>>,
    /// What they listed before, when they last listed anything.
    listed: BTreeMap<Name, BTreeSet<String>>,
    groups: BTreeMap<String, Group>,
    keys: BTreeMap<String, Announced>,
    /// The sets of active pods that were reported, so that each violation is reported once.
    reported: BTreeSet<(String, BTreeSet<String>)>,
    out: Checked,
}

impl<'a> Checker<'a> {
    fn new(history: &'a History) -> Self {
        Self {
            history,
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            written: BTreeMap::new(),
            listed: BTreeMap::new(),
            groups: BTreeMap::new(),
            keys: BTreeMap::new(),
            reported: BTreeSet::new(),
            out: Checked::default(),
        }
    }

    fn violated(&mut self, invariant: Invariant, change: &Change, text: String) {
        let object = change.id.to_string();
        self.out.violations.push(Violation { invariant, revision: change.revision, object, text });
    }

    fn apply(&mut self, change: &Change) {
        let name = (change.id.namespace.clone(), change.id.name.clone());
        match (&change.id.kind, &change.state) {
            (Kind::Pod, Some(Object::Pod(pod))) => {
                let before = self.pods.insert(name, pod.clone());
                self.pod_changed(change, before.as_ref(), pod);
                self.count_actives(change);
            }
            (Kind::Service, Some(Object::Service(service))) => {
                let before = self.services.get(&name).filter(|(before, _)| before.uid == service.uid);
                let edited = before.and_then(|(before, edited)| {
                    if before.selector == service.selector { *edited } else { Some(change.seen) }
                });
                self.services.insert(name, (service.clone(), edited));
            }
            (Kind::EndpointSlice, Some(Object::Slice(slice))) => self.slice_changed(change, &name, slice),
            (Kind::LeaderGroup, Some(Object::Group(group))) => {
                self.group_changed(change, group);
                self.count_actives(change);
            }
            (kind, _) => self.gone(*kind, &name),
        }
    }

    fn gone(&mut self, kind: Kind, name: &Name) {
        match kind {
            Kind::Pod => drop(self.pods.remove(name)),
            Kind::Service => drop(self.services.remove(name)),
            Kind::EndpointSlice => drop(self.slices.remove(name)),
            Kind::Event => {}
            Kind::LeaderGroup => {
                self.groups.retain(|_, group| (&group.namespace, &group.name) != (&name.0, &name.1));
            }
        }
    }

    // ---- I1 ----

    /// Counts the active pods of every group of the namespace.
    fn count_actives(&mut self, change: &Change) {
        let namespace = &change.id.namespace;
        let mut found = Vec::new();
        for (uid, group) in self.groups.iter().filter(|(_, group)| group.namespace == *namespace) {
            let pods = self.pods.range((namespace.clone(), String::new())..);
            let actives: BTreeSet<String> = pods
                .take_while(|((of, _), _)| of == namespace)
                .filter(|(_, pod)| pod.is_active(&group.view.routing) && self.belongs(pod, uid, group))
                .map(|((_, name), _)| name.clone())
                .collect();
            found.push((uid.clone(), actives));
        }
        for (uid, actives) in found {
            self.out.most_active = self.out.most_active.max(actives.len());
            if actives.len() > 1 && self.reported.insert((uid.clone(), actives.clone())) {
                self.violated(
                    Invariant::OneActive,
                    change,
                    format!("group {uid} has the actives {actives:?}"),
                );
            }
        }
    }

    /// Whether a pod counts for a group: it carries the group's stamp, or this group is the oldest whose selector
    /// matches it.
    fn belongs(&self, pod: &PodView, uid: &str, group: &Group) -> bool {
        let stamped = pod.term().is_some_and(|stamp| stamp.group == uid);
        stamped || self.oldest_selecting(&group.namespace, pod).is_some_and(|oldest| oldest == uid)
    }

    fn oldest_selecting(&self, namespace: &str, pod: &PodView) -> Option<&str> {
        let selecting = self
            .groups
            .iter()
            .filter(|(_, g)| g.namespace == namespace && selects(&g.view.selector, &pod.labels));
        selecting.min_by_key(|(uid, g)| (g.view.created, uid.as_str())).map(|(uid, _)| uid.as_str())
    }

    // ---- I2, I3, I4: what a promotion needs ----

    fn pod_changed(&mut self, change: &Change, before: Option<&PodView>, pod: &PodView) {
        let namespace = &change.id.namespace;
        let groups: Vec<&String> = self
            .groups
            .iter()
            .filter(|(uid, group)| {
                group.namespace == *namespace
                    && pod.is_active(&group.view.routing)
                    && self.belongs(pod, uid, group)
                    && !before.is_some_and(|b| {
                        b.uid == pod.uid && b.is_active(&group.view.routing) && b.stamp == pod.stamp
                    })
            })
            .map(|(uid, _)| uid)
            .collect();
        let Some(first) = groups.first().map(|uid| (*uid).clone()) else { return };
        let Some(stamp) = pod.term() else {
            let text = format!("{} turned active with the stamp {:?}", pod.uid, pod.stamp);
            return self.violated(Invariant::GrantedAndDeclared, change, text);
        };
        let Some(group) = self.groups.get(&stamp.group) else {
            let text =
                format!("turned active for the group {}, which is not there; it is in {first}", stamp.group);
            return self.violated(Invariant::GrantedAndDeclared, change, text);
        };
        let promotion = Promotion {
            revision: change.revision,
            seen: change.seen,
            seen_at: change.seen_at,
            group: stamp.group,
            key: group.key.clone(),
            pod: change.id.name.clone(),
            uid: pod.uid.clone(),
            node: pod.node.clone(),
            token: stamp.token,
            evidence_ms: None,
        };
        self.promoted(change, promotion);
    }

    fn promoted(&mut self, change: &Change, promotion: Promotion) {
        let Promotion { token, uid, .. } = &promotion;
        let announced = self.keys.entry(promotion.key.clone()).or_default();
        let last = announced.promoted.replace((*token, uid.clone()));
        if change.revision <= self.history.baseline {
            return;
        }
        let mut found = Vec::new();
        let declared =
            announced.compared().iter().any(|d| d.token == *token && d.holder.as_ref() == Some(uid));
        if !declared {
            found.push((
                Invariant::GrantedAndDeclared,
                format!("turned active with token {token}, which was not declared for it before"),
            ));
        }
        if let Some(later) = announced.compared().iter().find(|d| d.token > *token) {
            let text = format!(
                "turned active with token {token} after token {} was declared at revision {}",
                later.token, later.revision
            );
            found.push((Invariant::NoLateWrites, text));
        }
        if let Some((before, owner)) = last
            && (before > *token || (before == *token && owner != *uid))
        {
            found.push((
                Invariant::TokensGrow,
                format!("turned active with token {token} after {owner} was active with token {before}"),
            ));
        }
        self.out.promotions.push(promotion);
        for (invariant, text) in found {
            self.violated(invariant, change, text);
        }
    }

    fn group_changed(&mut self, change: &Change, view: &GroupView) {
        let id = &change.id;
        let key = view.key.clone().unwrap_or_else(|| {
            format!("{}/{}/{}", self.history.cluster.as_deref().unwrap_or("?"), id.namespace, id.name)
        });
        let (namespace, name) = (id.namespace.clone(), id.name.clone());
        let group = Group { namespace, name, view: view.clone(), key: key.clone() };
        let before = self.groups.insert(view.uid.clone(), group);
        let is_first = before.as_ref().is_none_or(|before| before.view.token == 0);
        if let Some(before) = before
            && before.view.token > view.token
        {
            let text = format!("status.token went from {} to {}", before.view.token, view.token);
            self.violated(Invariant::TokensGrow, change, text);
        }
        let token = view.declaration.token;
        if token == 0 {
            return;
        }
        let holder = view.declaration.holder.as_ref().map(|holder| holder.uid.clone());
        let grant = view.declaration.grant.clone();
        let announced = self.keys.entry(key).or_default();
        let apart = |grant: &Option<String>| {
            grant.as_ref().is_some_and(|grant| self.history.grants_apart.contains(grant))
        };
        // Nothing tells a new group which tokens an earlier one of its name got from another database.
        if is_first && announced.declared.last().is_some_and(|last| apart(&last.grant) != apart(&grant)) {
            announced.from = announced.declared.len();
            announced.promoted = None;
        }
        let last = announced.compared().last();
        if last.is_some_and(|last| last.token == token && last.holder == holder) {
            return;
        }
        // Within one term the holder may only disappear: a vacated row keeps its token until the next grant.
        let grows = last.is_none_or(|last| token > last.token || (token == last.token && holder.is_none()));
        let text = (!grows).then(|| {
            let last = last.map(|last| (last.token, &last.holder));
            format!("declares token {token} for {holder:?} after {last:?}")
        });
        announced.declared.push(Declared {
            revision: change.revision,
            seen_at: change.seen_at,
            token,
            holder,
            grant,
        });
        if let Some(text) = text {
            self.violated(Invariant::TokensGrow, change, text);
        }
    }

    // ---- I2, I3: the lock's own history ----

    fn check_terms(&mut self) {
        let Some(terms) = &self.history.terms else { return };
        let mut by_key: BTreeMap<&str, Vec<&Term>> = BTreeMap::new();
        for term in terms.iter().filter(|term| self.keys.contains_key(&term.key)) {
            by_key.entry(&term.key).or_default().push(term);
        }
        let mut found = Vec::new();
        let is_in_order = self.history.one_clock && self.history.clock_set.is_empty();
        for (key, terms) in &mut by_key {
            terms.sort_by_key(|term| (term.token, term.granted_at));
            for pair in terms.windows(2) {
                let (one, next) = (pair[0], pair[1]);
                // Two databases that act as primary may grant one token. Only one of both grants can be declared, and
                // that no token is declared twice is checked at each declaration.
                let apart = |term: &Term| self.history.grants_apart.contains(&term.grant);
                if apart(one) != apart(next) {
                    continue;
                }
                if one.token == next.token && (&one.owner, &one.grant) != (&next.owner, &next.grant) {
                    let text =
                        format!("token {} was granted to {} and to {}", one.token, one.owner, next.owner);
                    found.push((Invariant::TokensGrow, 0, (*key).to_owned(), text));
                } else if is_in_order && next.granted_at < one.granted_at {
                    let text = format!("token {} was granted before token {}", next.token, one.token);
                    found.push((Invariant::TokensGrow, 0, (*key).to_owned(), text));
                }
            }
        }
        for promotion in &self.out.promotions {
            let wanted = |term: &&&Term| term.token == promotion.token && term.owner == promotion.uid;
            let granted = by_key.get(promotion.key.as_str()).and_then(|terms| terms.iter().find(wanted));
            let object = format!("pod {}", promotion.pod);
            let mut wrong = |text: String| {
                found.push((Invariant::GrantedAndDeclared, promotion.revision, object.clone(), text));
            };
            let Some(granted) = granted else {
                wrong(format!("the lock never granted token {} of {} to it", promotion.token, promotion.key));
                continue;
            };
            if self.history.compares_clocks(promotion.seen_at) && granted.granted_at > promotion.seen_at {
                wrong(format!("token {} was granted at {}, later", promotion.token, granted.granted_at));
            }
        }
        found.extend(self.declared_without_grant(&by_key));
        for (invariant, revision, object, text) in found {
            self.out.violations.push(Violation { invariant, revision, object, text });
        }
    }

    /// Declarations of a holder that were made before the lock granted it the token, or without that. What is wrong
    /// with a promotion is reported there.
    fn declared_without_grant(
        &self,
        terms: &BTreeMap<&str, Vec<&Term>>,
    ) -> Vec<(Invariant, i64, String, String)> {
        let mut found = Vec::new();
        for (key, announced) in &self.keys {
            for declared in announced.declared.iter().filter(|d| d.revision > self.history.baseline) {
                let Some(holder) = &declared.holder else { continue };
                let of_key = || terms.get(key.as_str()).into_iter().flatten();
                let granted = of_key().find(|term| term.token == declared.token && term.owner == *holder);
                let was_promoted = || {
                    let mut promotions = self.out.promotions.iter();
                    promotions.any(|one| one.key == *key && one.token == declared.token && one.uid == *holder)
                };
                let text = match granted {
                    Some(granted)
                        if self.history.compares_clocks(declared.seen_at)
                            && granted.granted_at > declared.seen_at =>
                    {
                        format!(
                            "token {} was declared at {}, granted at {}",
                            declared.token, declared.seen_at, granted.granted_at
                        )
                    }
                    // The terms were read after the objects.
                    None if !was_promoted() => {
                        format!("token {} was declared for {holder}, and never granted to it", declared.token)
                    }
                    _ => continue,
                };
                found.push((Invariant::GrantedAndDeclared, declared.revision, key.clone(), text));
            }
        }
        found
    }
}
