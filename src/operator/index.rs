//! Taking messages in: what each changes in what the loop knows, and which groups have to be looked at again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{ResourceExt as _, runtime::watcher};

use super::{
    claim::Answer,
    connectivity::Peer,
    controller::{Driver, Outage},
    group::{Charge, Entry, version},
    lock_keeper::LockNews,
    message::{Done, GroupName, Message, Scope, Trouble, Watched},
    selection::Selected,
    watch::trim,
    watch_health::Sight,
};
use crate::{
    api::{LeaderGroup, Sighting},
    election::{Event, Outcome},
    health::{Monotonic, ProbeEvent, ProbeStep},
};
use leadergroup_lock::{Claimed, LockError, Token};

/// For so long after a watch failed its news may be of the time before: it is tried again every second.
const LATE_AFTER_FAILED_WATCH: Duration = Duration::from_secs(5);

impl Driver {
    pub(super) fn take(&mut self, message: Message) {
        let now = Monotonic::now();
        match message {
            Message::Group(scope, event) => self.group_event(&scope, event),
            Message::Pod(scope, event) => self.pod_event(&scope, event, now),
            Message::NodeLease(event) => self.lease_event(event, now),
            Message::WatchFailed(watched, scope, problem) => self.watch_failed(watched, &scope, &problem),
            Message::Lock(news) => self.lock_news(news, now),
            Message::Done(done) => self.done(*done, now),
            Message::Claimed { session, answers } => {
                self.claiming = false;
                let current = self.lock.own == Some(session);
                for (name, uid, answer) in answers {
                    let Some(entry) = self.entries.get_mut(&name).filter(|entry| entry.uid == uid) else {
                        continue;
                    };
                    let adopted = matches!(&answer, Ok(Answer::Lock(claimed))
                        if matches!(&**claimed, Claimed::Ours(row) if row.token > Token::ZERO));
                    let buried = matches!(&answer, Ok(Answer::Buried));
                    if !current {
                        entry.charge = Charge::Open;
                    } else if entry.claimed(answer, now) {
                        if adopted {
                            self.parts.voice.metrics.adoption();
                        }
                        self.charged(&name, now);
                    } else if buried {
                        self.step(&name, Event::Buried, now);
                    }
                    self.touched.insert(name);
                }
            }
            Message::Owner { group, uid, owner, selects } => {
                if let Some(entry) = self.entries.get_mut(&group).filter(|entry| entry.uid == uid) {
                    entry.owners.answered(&owner, &selects);
                    self.touched.insert(group);
                }
            }
            Message::Audited(audit) => self.audited(audit, now),
            Message::Reported { group, uid, object } => self.reported(group, &uid, object, now),
            Message::ApiServer { reachable } => {
                self.heard(Peer::ApiServer, reachable, now);
                if let Some(until) = self.lag.answered(reachable, now) {
                    self.news_late_until(until, None);
                }
                if reachable {
                    self.forgive_watches(now);
                } else {
                    tracing::debug!("the API server did not answer a ping");
                }
            }
        }
    }

    /// A probe did something.
    pub(super) fn probed(&mut self, event: &ProbeEvent) {
        let Some(name) = self.owners.get(&event.uid) else { return };
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(evidence) = entry.evidence(&event.uid) else { return };
        match event.step {
            ProbeStep::Sent => evidence.probe_sent(event.seq, event.sent_at),
            ProbeStep::Ended(outcome) => {
                self.parts.voice.probe(outcome);
                evidence.probe_answered(event.seq, event.sent_at, outcome);
            }
        }
        self.touched.insert(name.clone());
    }

    fn group_event(&mut self, scope: &Scope, event: watcher::Event<Sighting>) {
        let listing = (Watched::Groups, scope.clone());
        match event {
            watcher::Event::Apply(object) => self.sighted(object),
            watcher::Event::Delete(object) => {
                if let Some(name) = name_of(&object) {
                    self.group_gone(&name);
                }
            }
            watcher::Event::Init => {
                self.listing.insert(listing, BTreeSet::new());
            }
            watcher::Event::InitApply(object) => {
                if let (Some(seen), Some(name)) = (self.listing.get_mut(&listing), name_of(&object)) {
                    seen.insert(name.to_string());
                }
                self.sighted(object);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(&listing).unwrap_or_default();
                for name in self.roster.group_names(scope.as_deref()) {
                    if !seen.contains(&name.to_string()) {
                        self.group_gone(&name);
                    }
                }
                self.synced(Watched::Groups, scope.clone());
            }
        }
    }

    pub(super) fn group_seen(&mut self, object: LeaderGroup) {
        let Some(name) = name_of(&object) else { return };
        let uid = object.uid().unwrap_or_default();
        let known = self.entries.get(&name);
        if known.is_some_and(|entry| *entry.uid != *uid) {
            // Deleted and created anew: another group, of which nothing of the old one is true.
            self.group_gone(&name);
        } else if known.is_some_and(|entry| version(&*entry.object) > version(&object)) {
            return;
        }
        let now = Monotonic::now();
        let spec_changed = self.entries.get(&name).is_none_or(|entry| entry.object.spec != object.spec);
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.update(object.clone(), now);
        } else {
            let Some(entry) = Entry::new(object.clone(), name.clone(), &self.parts.cluster, now) else {
                tracing::error!(group = %name, "spec.lock.key cannot be used; create the group anew with another");
                return;
            };
            self.entries.insert(name.clone(), entry);
        }
        self.unreadable.remove(&name);
        self.roster.put_group(&name, Arc::new(object));
        // What is known of a pod depends on more of the spec than the selector: on the probe, and on the label's values.
        if spec_changed {
            self.muster(&name);
        }
        self.touched.insert(name);
    }

    /// Goes through the pods that a group selects: each goes to the oldest of the groups that select it.
    fn muster(&mut self, name: &GroupName) {
        let now = Monotonic::now();
        for (pod, selected) in self.roster.pods_of(name) {
            self.assign(&pod, &selected, now);
        }
    }

    pub(super) fn group_gone(&mut self, name: &GroupName) {
        self.unreadable.remove(name);
        let pods = self.roster.pods_of(name);
        self.roster.take_group(name);
        if let Some(mut entry) = self.entries.remove(name) {
            self.parts.voice.metrics.forget_group(&name.namespace, &name.name);
            let uids: Vec<_> = entry.tracked.keys().cloned().collect();
            for uid in uids {
                entry.pod_gone(&uid, &mut self.parts.prober);
                self.owners.remove(&uid);
            }
        }
        let now = Monotonic::now();
        for (pod, selected) in pods {
            let selected = selected.into_iter().filter(|other| other != name).collect();
            self.assign(&pod, &selected, now);
        }
        self.touched.insert(name.clone());
    }

    fn pod_event(&mut self, scope: &Scope, event: watcher::Event<Pod>, now: Duration) {
        let listing = (Watched::Pods, scope.clone());
        match event {
            watcher::Event::Apply(pod) => self.pod_seen(pod, now),
            watcher::Event::Delete(pod) => {
                if let (Some(namespace), Some(uid)) = (pod.namespace(), pod.uid()) {
                    self.pod_gone(&namespace, &uid);
                }
            }
            watcher::Event::Init => {
                self.listing.insert(listing, BTreeSet::new());
            }
            watcher::Event::InitApply(pod) => {
                if let (Some(seen), Some(uid)) = (self.listing.get_mut(&listing), pod.uid()) {
                    seen.insert(uid);
                }
                self.pod_seen(pod, now);
            }
            watcher::Event::InitDone => {
                let seen = self.listing.remove(&listing).unwrap_or_default();
                for (namespace, uid) in self.roster.pod_uids(scope.as_deref()) {
                    if !seen.contains(&*uid) {
                        self.pod_gone(&namespace, &uid);
                    }
                }
                self.synced(Watched::Pods, scope.clone());
            }
        }
    }

    pub(super) fn pod_seen(&mut self, pod: Pod, now: Duration) {
        let Some((before, selected, pod)) = self.roster.put_pod(pod) else { return };
        let uid = pod.uid().unwrap_or_default();
        for name in before.iter().filter(|name| !selected.contains(name)) {
            self.leave(name, &uid);
        }
        self.assign(&pod, &selected, now);
    }

    /// Gives a pod to the first of the groups that select it, and tells the others.
    fn assign(&mut self, pod: &Pod, selected: &Selected, now: Duration) {
        let uid: Arc<str> = pod.uid().unwrap_or_default().into();
        let Some(first) = selected.first() else {
            self.owners.remove(&uid);
            return;
        };
        if let Some(former) = self.owners.insert(uid.clone(), first.clone())
            && former != *first
            && let Some(entry) = self.entries.get_mut(&former)
        {
            entry.pod_gone(&uid, &mut self.parts.prober);
        }
        for (rank, name) in selected.iter().enumerate() {
            if let Some(entry) = self.entries.get_mut(name) {
                if rank == 0 {
                    entry.contested.remove(&*uid);
                    entry.pod_seen(pod, now);
                    if let Some(owner) = entry.owners.pod_seen(pod, &entry.group.marks) {
                        let (uid, group) = (entry.uid.clone(), entry.group.clone());
                        self.ask_for_owner(name.clone(), uid, group, owner);
                    }
                } else {
                    entry.contested.insert(uid.to_string(), first.to_string());
                }
                self.touched.insert(name.clone());
            }
        }
    }

    fn pod_gone(&mut self, namespace: &str, uid: &str) {
        for name in self.roster.take_pod(namespace, uid) {
            self.leave(&name, uid);
        }
        self.owners.remove(uid);
    }

    /// A pod is no longer one of a group's.
    fn leave(&mut self, name: &GroupName, uid: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.pod_gone(uid, &mut self.parts.prober);
            entry.contested.remove(uid);
            self.touched.insert(name.clone());
        }
    }

    fn lease_event(&mut self, event: watcher::Event<Lease>, now: Duration) {
        let node = match event {
            watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => {
                let renewed =
                    lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
                self.leases.seen(&lease.name_any(), renewed, now);
                lease.name_any()
            }
            watcher::Event::Delete(lease) => {
                self.leases.forget(&lease.name_any());
                lease.name_any()
            }
            watcher::Event::Init => return,
            watcher::Event::InitDone => {
                self.leases.alive(now);
                return self.synced(Watched::NodeLeases, None);
            }
        };
        let concerned = self.entries.values().filter(|entry| entry.lives_by_lease_of(&node));
        self.touched.extend(concerned.map(|entry| entry.name.clone()));
    }

    fn synced(&mut self, watched: Watched, scope: Scope) {
        if self.watches.listed(watched, scope) {
            self.entries.values_mut().for_each(|entry| entry.hindrance_reported = false);
        }
        self.tell_watches();
        self.ask_for_claims();
    }

    fn watch_failed(&mut self, watched: Watched, scope: &Scope, problem: &str) {
        if watched == Watched::NodeLeases {
            self.leases.interrupted();
        }
        let now = Monotonic::now();
        if self.watches.failed(watched, scope.clone(), problem, now) {
            tracing::warn!(?watched, namespace = scope.as_deref(), problem, "a watch failed; trying again");
        }
        self.tell_watches();
        if watched == Watched::Pods {
            self.news_late_until(now + LATE_AFTER_FAILED_WATCH, scope.as_ref());
        }
        let blind = self.entries.keys().filter(|name| self.watches.blindness(&name.namespace).is_some());
        self.touched.extend(blind.cloned());
    }

    /// The pods of this namespace, or of all, cannot be heard of now, and what is heard of them until then may be old.
    fn news_late_until(&mut self, until: Duration, namespace: Option<&Arc<str>>) {
        let concerned = self
            .entries
            .values_mut()
            .filter(|entry| namespace.is_none_or(|one| *one == entry.name.namespace));
        concerned.for_each(|entry| entry.news_late_until(until));
    }

    fn forgive_watches(&mut self, now: Duration) {
        if self.watches.forgive(now) {
            tracing::info!("the watches work again");
        }
        self.tell_watches();
    }

    fn tell_watches(&self) {
        match self.watches.sight() {
            Sight::Clear => self.parts.voice.watches.pass(),
            Sight::Coming => {}
            Sight::None(problem) => self.parts.voice.watches.fail(&problem),
        }
    }

    /// A peer was reached, or was not. While the network leads nowhere, and until it leads somewhere again, no pod's
    /// silence is its own.
    fn heard(&mut self, peer: Peer, reached: bool, now: Duration) {
        if self.network.heard(peer, reached) {
            self.entries.values_mut().for_each(|entry| entry.cut_off_until(now));
            self.touched.extend(self.entries.keys().cloned());
        }
    }

    fn lock_news(&mut self, news: LockNews, now: Duration) {
        let reached = match &news {
            LockNews::Beat { .. } => true,
            // Nobody speaks to the database until there is a session again.
            LockNews::Lost => false,
            LockNews::Down(error) => error.is_an_answer(),
        };
        self.heard(Peer::Database, reached, now);
        match news {
            LockNews::Beat { own, living, suspects, doubt, yielded, took } => {
                self.parts.voice.lock.pass();
                self.lock.beaten_at = now.saturating_sub(took);
                if self.lock.outage.take().is_some() {
                    tracing::info!("the lock's database answers again");
                    self.entries.values_mut().for_each(|entry| entry.hindrance_reported = false);
                    self.touched.extend(self.entries.keys().cloned());
                }
                if self.lock.own != Some(own) {
                    self.discharge(now);
                    self.lock.own = Some(own);
                }
                if self.lock.living != living || self.lock.suspects != suspects {
                    (self.lock.living, self.lock.suspects) = (living, suspects);
                    self.touched.extend(self.entries.keys().cloned());
                }
                if doubt {
                    tracing::warn!("the database failed over or lost its identity: reading every row anew");
                    let ours: Vec<_> = self.ours().collect();
                    for name in ours {
                        self.step(&name, Event::Doubt, now);
                    }
                }
                if yielded {
                    self.doubt_charges();
                }
                self.ask_for_claims();
            }
            LockNews::Lost => {
                self.parts.voice.metrics.session_lost();
                self.parts.voice.lock.fail("the session with the lock's database was lost");
                self.lock.own = None;
                self.discharge(now);
            }
            LockNews::Down(error) => self.lock_down(&error, now),
        }
    }

    fn lock_down(&mut self, error: &LockError, now: Duration) {
        let text = error.to_string();
        self.parts.voice.lock.fail(&text);
        let before = self.lock.outage.take();
        if before.as_ref().is_none_or(|before| before.problem != text) {
            tracing::error!(
                problem = text,
                "the lock's database cannot be used; labels stay as they are. Trying again"
            );
        }
        self.lock.outage = Some(Outage::goes_on(before, &text, now));
        if self.lock.own.is_some() && now.saturating_sub(self.lock.beaten_at) >= self.parts.session_ttl {
            // Others may have taken over by now. Should the session live when the database answers, all is as it was.
            self.lock.own = None;
            self.discharge(now);
        }
        self.touched.extend(self.entries.keys().cloned());
    }

    fn ours(&self) -> impl Iterator<Item = GroupName> {
        let ours = self.entries.values().filter(|entry| entry.charge == Charge::Ours);
        ours.map(|entry| entry.name.clone()).collect::<Vec<_>>().into_iter()
    }

    /// The session ended: others may be in charge of what was ours.
    fn discharge(&mut self, now: Duration) {
        let ours: Vec<_> = self.ours().collect();
        for name in ours {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.charge = Charge::Open;
            }
            self.step(&name, Event::Disowned, now);
            self.touched.insert(name);
        }
    }

    /// Once a heartbeat every group without a known charge is up for a claim.
    fn ask_for_claims(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.claim_due = true);
    }

    /// Who is in charge of the groups of others is asked anew: whoever was may have passed one on, and lives.
    pub(super) fn doubt_charges(&mut self) {
        self.entries.values_mut().for_each(Entry::doubt_charge);
    }

    fn done(&mut self, done: Done, now: Duration) {
        // The watches alone say what exists: an answer may come in after the news that its object is gone.
        for mut pod in done.pods {
            if self.roster.knows_pod(&pod) {
                trim(&mut pod);
                self.pod_seen(pod, now);
            }
        }
        if self.entries.get(&done.group).is_none_or(|entry| entry.uid != done.uid) {
            return;
        }
        if let Some(object) = done.object {
            self.sighted(*object);
        }
        let Some(entry) = self.entries.get_mut(&done.group).filter(|entry| entry.uid == done.uid) else {
            return;
        };
        // Stamping standbys is protection in depth: what keeps it from succeeding keeps nobody from being active.
        let stamping = entry.machine.is_stamping(done.ticket);
        let known = if stamping { &mut entry.stamp_trouble } else { &mut entry.trouble };
        if let Some(trouble) = done.trouble {
            if known.as_ref() != Some(&trouble) {
                tracing::warn!(group = %done.group, ?trouble, "a step failed; trying again");
            }
            *known = Some(trouble);
        } else if stamping || known.as_ref().is_some_and(|trouble| is_over(trouble, &done.outcome)) {
            *known = None;
        }
        let world = entry.world(&self.leases, now, false);
        self.step(&done.group, Event::Outcome(done.ticket, done.outcome, world), now);
        self.touched.insert(done.group);
    }

    fn reported(
        &mut self,
        name: GroupName,
        uid: &str,
        object: Result<Box<Sighting>, Trouble>,
        now: Duration,
    ) {
        let Some(entry) = self.entries.get_mut(&name).filter(|entry| *entry.uid == *uid) else { return };
        entry.reporting = false;
        match object {
            Ok(object) => {
                entry.report_trouble = None;
                self.sighted(*object);
            }
            Err(trouble) => {
                if entry.report_trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(group = %name, ?trouble, "could not write the status; trying again");
                }
                entry.report_trouble = Some(trouble);
                entry.hindrance_reported = false;
                entry.report_after = now + super::controller::REPORT_PAUSE;
            }
        }
        self.touched.insert(name);
    }
}

/// Whether an outcome shows that what was in the way is out of it. Reading alone proves nothing of writing.
fn is_over(trouble: &Trouble, outcome: &Outcome) -> bool {
    match trouble {
        Trouble::Lock(_) => matches!(
            outcome,
            Outcome::Read { .. }
                | Outcome::Rechecked { .. }
                | Outcome::Granted { .. }
                | Outcome::Confirmed
                | Outcome::Vacated
                | Outcome::Tombstoned
        ),
        Trouble::Refused(_) | Trouble::Unreachable(_) => {
            matches!(outcome, Outcome::Declared | Outcome::Promoted | Outcome::Cleared | Outcome::Unfinalized)
        }
    }
}

pub(super) fn name_of(object: &impl kube::ResourceExt) -> Option<GroupName> {
    Some(GroupName { namespace: object.namespace()?.into(), name: object.meta().name.as_deref()?.into() })
}
