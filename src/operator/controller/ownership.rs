//! Carries out what the ownership of the groups asks for: claiming groups, giving them away, and what replicas ask each
//! other about holders. Nothing waits for an answer of another replica: without one, silence counts after its timeout.

use std::{sync::Arc, time::Duration};

use leadergroup_lock::{
    Changed, Key, Refusal, SessionId,
    controller::{Claimed, LockRow},
};

use super::Controller;
use crate::{
    election::Event as Election,
    operator::{
        executor::{effect::row_of, queue::Urgency},
        group::Group,
        index::{self, Index, IndexedGroup},
        lock::claim::{Answered, LARGEST_CLAIM, claim, resolve},
        message::Message,
        object::GroupName,
        trouble::Trouble,
    },
    ownership::{
        Answer, Effect, Event, Failure, Inside, Opinion, Outside, Phase, Replica, Room, Why, Yielded,
    },
};

/// Groups that are given away, and why.
type Given = Vec<(GroupName, Key, Why)>;

/// This replica and the others, for a step of a group's ownership.
pub(super) fn of_replica(index: &Index, ttl: Duration, stopping: bool) -> Replica<'_> {
    Replica { sessions: index.sessions(), ttl, stopping }
}

impl Controller {
    /// Shows an event to the ownership of a group, and carries out what it asks for.
    pub(super) fn own(&mut self, name: &GroupName, event: Event<'_>, now: Duration) {
        let replica = of_replica(&self.index, self.session_ttl, self.draining);
        let Some(group) = self.groups.get_mut(name) else { return };
        let before = group.ownership.owner();
        let effect = group.ownership.step(event, replica, now);
        if group.ownership.owner() != before {
            // Which pods are probed depends on it.
            self.index.touch(name);
        }
        match effect {
            None | Some(Effect::Claim) => {}
            Some(Effect::Resolve(claimed)) => self.resolve(name, claimed),
            Some(Effect::Adopt(row)) => self.adopt(name, *row, now),
            Some(Effect::Disown) => self.step(name, Election::Disowned, now),
            Some(Effect::Give(why)) => {
                let key = self.groups.get(name).map(|group| group.record().key.clone());
                self.give(key.into_iter().map(|key| (name.clone(), key, why)).collect(), now);
            }
            Some(Effect::Taken) => self.batches.taken(),
            Some(Effect::Bury) => self.step(name, Election::Buried, now),
            Some(Effect::ReportNewer(protocol)) => self.failed_to_claim(
                name,
                Trouble::Lock(format!(
                    "a newer operator (lock protocol {protocol}) has taken this group; upgrade this replica"
                )),
                now,
            ),
            Some(Effect::Ask { pod, blind }) => self.untold.ask(pod, blind),
            Some(Effect::Vouch(pod)) => self.untold.vouch(pod),
            Some(Effect::Rely(pod)) => self.index.relies_on_others(name, &pod, now),
        }
    }

    /// A heartbeat succeeded: every group that this replica does not own may be claimed, and some of those that it owns
    /// may be given away.
    pub(super) fn heartbeat(&mut self, now: Duration) {
        let others = self.groups.values().filter(|group| !group.is_owned());
        others.for_each(|group| self.unclaimed.add(&group.record().key, &group.record().name));
        let given = self.away(now);
        for why in [Why::HeardElsewhere, Why::MissesCandidates, Why::FallsElsewhere] {
            let given: Given = given.iter().filter(|(_, _, reason)| *reason == why).cloned().collect();
            let Some((first, ..)) = given.first() else { continue };
            announce(why, given.len(), first);
            if why == Why::FallsElsewhere {
                self.batches.given(now);
            }
            self.give(given, now);
        }
    }

    /// The groups that are given away at this heartbeat.
    fn away(&mut self, now: Duration) -> Given {
        let replica = of_replica(&self.index, self.session_ttl, self.draining);
        if replica.may_act().is_none() {
            return Given::new();
        }
        let unanswered = self.groups.values().any(|group| group.ownership.is_given());
        let mut room = self.batches.room(unanswered, replica, now);
        let mut given = Given::new();
        for (name, group) in self.groups.iter_mut().filter(|(_, group)| group.is_at_rest(now)) {
            let record = group.record().clone();
            let event = Event::Beat(inside(group, &record.key, &self.index, room, now));
            if let Some(Effect::Give(why)) = group.ownership.step(event, replica, now) {
                room.take(why);
                given.push((name.clone(), record.key.clone(), why));
            }
        }
        given
    }

    /// Ends the elections of these groups, and gives their claims up.
    fn give(&mut self, given: Given, now: Duration) {
        for (name, ..) in &given {
            self.index.touch(name);
            self.step(name, Election::Disowned, now);
        }
        let Some(own) = self.index.sessions().own() else { return };
        // This replica claims the others again, if no other one does.
        let undecodable = given.iter().any(|(.., why)| *why == Why::Undecodable);
        let (names, keys): (Vec<GroupName>, Vec<Key>) =
            given.into_iter().map(|(name, key, _)| (name, key)).unzip();
        self.executor.start(Urgency::AtOnce, move |context| async move {
            match context.store.unclaim(own, &keys).await {
                Ok(answers) if !undecodable => {
                    let busy = |answer: &Changed| *answer == Changed::Refused(Refusal::Busy);
                    let kept = names.into_iter().zip(answers).filter(|(_, answer)| busy(answer));
                    return Message::NotGiven(kept.map(|(name, _)| name).collect());
                }
                Ok(_) => return Message::NotGiven(Vec::new()),
                Err(error) if undecodable => {
                    tracing::warn!(groups = ?keys, %error, "could not pass on groups that cannot be read");
                }
                Err(error) => tracing::debug!(%error, "could not give groups to other replicas"),
            }
            Message::NotGiven(names)
        });
    }

    /// These groups could not be given away.
    pub(super) fn not_given(&mut self, groups: &[GroupName], now: Duration) {
        for name in groups {
            self.own(name, Event::NotGiven, now);
        }
    }

    /// Claims the groups that have no owner and fall to this replica.
    pub(super) fn claim(&mut self, now: Duration) {
        let replica = of_replica(&self.index, self.session_ttl, self.draining);
        let Some(own) = replica.may_act().filter(|_| !self.claiming) else { return };
        let mut changed = Vec::new();
        let claims = self.unclaimed.take(LARGEST_CLAIM, |name| {
            let group = self.groups.get_mut(name)?;
            let record = group.record().clone();
            // A group that cannot be decoded is left to a replica that can.
            let undecodable = self.index.group(name).is_some_and(IndexedGroup::is_undecodable);
            if !self.index.allows_claim(name, now) || (undecodable && !record.is_deleting()) {
                return None;
            }
            let before = group.ownership.owner();
            let event = Event::Turn(Outside {
                key: &record.key,
                holder_node: self.index.holder_node(name),
                deaf: group.election().is_deaf_to_holder(),
            });
            let effect = group.ownership.step(event, replica, now);
            if group.ownership.owner() != before {
                // Which pods are probed depends on it.
                changed.push(name.clone());
            }
            effect.map(|_| record)
        });
        for name in changed {
            self.index.touch(&name);
        }
        if claims.is_empty() {
            return;
        }
        self.claiming = true;
        self.executor.start(Urgency::AtOnce, move |context| async move {
            Message::Claimed {
                session: own,
                answers: claim(&context.store, &context.keys, own, &claims).await,
            }
        });
    }

    /// Resolves a claim that needs a read, and perhaps the finalizer.
    fn resolve(&mut self, name: &GroupName, claimed: Box<Claimed>) {
        let Some(session) = self.index.sessions().own() else { return };
        let Some(record) = self.groups.get(name).map(|group| group.record().clone()) else { return };
        self.executor.start_in(&name.namespace, Urgency::Routine, move |context| async move {
            let answer = resolve(&context.store, &context.router, session, &record, claimed).await;
            Message::Resolved { session, answer: Box::new(answer) }
        });
    }

    /// A claim was answered.
    pub(super) fn claimed(&mut self, session: SessionId, answered: Answered, now: Duration) {
        let Answered { name, uid, answer, object } = answered;
        if !self.is_current(&name, &uid) {
            return;
        }
        if let Some(object) = object {
            self.apply(index::Event::GroupRead(*object), now);
        }
        self.index.touch(&name);
        let is_current = self.index.sessions().own() == Some(session);
        let Some(group) = self.sync(&name) else { return };
        let counts = is_current && matches!(group.ownership.phase(), Phase::Claiming(_));
        if counts && !matches!(answer, Ok(Answer::Provisional(_))) {
            group.report.spoken &= answer.is_err();
        }
        let answer = answer.map_err(|trouble| {
            let waits = matches!(trouble, Trouble::Unreachable(_) | Trouble::Refused(_));
            if counts {
                self.failed_to_claim(&name, trouble, now);
            }
            Failure { waits }
        });
        self.own(&name, Event::Answered(session, answer), now);
    }

    fn failed_to_claim(&mut self, name: &GroupName, trouble: Trouble, now: Duration) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if group.trouble.as_ref() == Some(&trouble) {
            return;
        }
        if self.causes.is_new(&trouble, now) {
            tracing::warn!(group = %name, ?trouble, "could not take the group over; trying again");
        }
        group.trouble = Some(trouble);
    }

    /// Begins to work for a group.
    fn adopt(&mut self, name: &GroupName, row: LockRow, now: Duration) {
        if let Some(group) = self.groups.get_mut(name) {
            group.trouble = None;
        }
        let Some(world) = self.prepare(name, now) else { return };
        let row = row_of(row);
        if row.token > 0 {
            self.executor.metrics().adoption();
        }
        // Without a finalizer the group could be deleted and leave its labels behind. Reading the group adds it.
        let has_finalizer = self.index.group(name).is_some_and(|group| group.record().has_finalizer());
        let row = has_finalizer.then_some(row);
        self.step(name, Election::Owned { seed: self.store.new_uuid(), row, world }, now);
    }

    /// The owners of these groups may have given them up although their sessions are alive.
    pub(super) fn given_up(&mut self, yielded: &Yielded, now: Duration) {
        let replica = of_replica(&self.index, self.session_ttl, self.draining);
        let concerned = self.groups.values_mut().filter(|group| yielded.concerns(&group.record().key));
        concerned.for_each(|group| {
            group.ownership.step(Event::GivenUp, replica, now);
        });
    }

    fn owned(&self) -> Vec<GroupName> {
        let owned = self.groups.iter().filter(|(_, group)| group.is_owned());
        owned.map(|(name, _)| name.clone()).collect()
    }

    /// The session ended: other replicas may own what this one owned.
    pub(super) fn session_ended(&mut self, now: Duration) {
        for name in self.owned() {
            self.own(&name, Event::SessionEnded, now);
        }
    }

    /// The database may have lost commits: the rows of all owned groups are read again.
    pub(super) fn doubt_rows(&mut self, now: Duration) {
        for name in self.owned() {
            self.step(&name, Election::Doubt, now);
        }
    }

    /// Another replica asks about this holder, which this one hears.
    pub(super) fn heard(&mut self, name: &GroupName, pod: Arc<str>, now: Duration) {
        let undecodable = self.index.group(name).is_none_or(IndexedGroup::is_undecodable);
        if undecodable || !self.index.allows_claim(name, now) {
            return;
        }
        let Some(group) = self.groups.get(name) else { return };
        let silence_timeout = group.record().object.spec.health.silence_timeout.0;
        self.own(name, Event::Heard { pod, silence_timeout }, now);
    }

    /// Another replica has asked or answered.
    pub(super) fn told(&mut self, message: &str, now: Duration) {
        if let Some((from, opinion)) = Opinion::read(message) {
            self.apply(index::Event::Opinion(from, opinion), now);
        }
    }

    /// Sends the queued questions and answers to the other replicas.
    pub(super) fn tell(&mut self, now: Duration) {
        if self.untold.due().is_none_or(|due| now < due) {
            return;
        }
        let opinions = self.untold.take(now);
        let Some(own) = self.index.sessions().reachable() else { return };
        let messages: Vec<String> = opinions.iter().flat_map(|opinion| opinion.messages(own)).collect();
        let peers = self.peers.clone();
        self.executor.start_silent(Urgency::AtOnce, |context| async move {
            if let Err(error) = context.store.tell(&peers, &messages).await {
                tracing::debug!(%error, "could not ask or answer the other replicas");
            }
        });
    }
}

/// What matters of a group at rest.
fn inside<'a>(group: &Group, key: &'a Key, index: &'a Index, room: Room, now: Duration) -> Inside<'a> {
    let (election, name) = (group.election(), &group.record().name);
    let heard_elsewhere = election.is_heard_elsewhere();
    Inside {
        key,
        holder_node: index.holder_node(name),
        has_holder: election.holder().is_some(),
        works: election.has_healthy_active(),
        unheard: index.does_not_hear_holder(name),
        held_since: group.held_since,
        reported: group.is_reported(),
        unreportable: group.report.trouble.is_some(),
        heard_elsewhere,
        blind: heard_elsewhere && index.is_blind_to_holder(name, now),
        misses_candidates: election.lacks_candidate(now) && index.misses_candidates(name, now),
        room,
    }
}

fn announce(why: Why, groups: usize, first: &GroupName) {
    match why {
        Why::FallsElsewhere => tracing::debug!(groups, "giving groups to the replicas that they fall to"),
        Why::HeardElsewhere => tracing::warn!(
            groups,
            group = %first,
            "another replica hears active pods that this one does not hear: giving their groups to it. Check the network \
             between the nodes, and NetworkPolicies"
        ),
        Why::MissesCandidates => tracing::warn!(
            groups,
            group = %first,
            "pods are ready according to Kubernetes, and this replica does not hear them: giving groups without a working \
             active pod to other replicas. Check the network between the nodes, NetworkPolicies, and the condition Probed"
        ),
        Why::Undecodable => {}
    }
}

impl Group {
    /// Whether this replica owns the group, nothing is under way and no call has failed, so that another replica can
    /// continue as well as this one.
    fn is_at_rest(&self, now: Duration) -> bool {
        self.is_owned()
            && self.election().is_at_rest(now)
            && !self.record().is_deleting()
            && self.trouble.is_none()
    }

    /// Whether the status says all that this replica knows. Another one cannot report what this one has seen.
    fn is_reported(&self) -> bool {
        let report = &self.report;
        !report.writing && !report.queued && report.rendered.is_some()
    }
}
