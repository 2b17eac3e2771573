//! One replica: the state of its watches and probes, its election, and its jobs. Models `src/operator`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use leadergroup::{
    api::{PodRef, Reason, Role, Verdict},
    election::{
        Effect, Event, Group, HookPolicy, Member, Outcome, Phase, Policy, SwitchoverRequest, Ticket,
        Workload, World,
    },
};
use uuid::Uuid;

use crate::{
    database::Claimed,
    model::NODES,
    others::RIVAL,
    server::{GroupObject, Pod},
    task::{End, Job, Task, parts, together},
};

#[derive(Clone, Debug)]
pub enum Seen {
    Pod(Pod),
    PodGone(String),
    /// A list of all pods. What comes after it may be old.
    Listed(Vec<Pod>),
    /// The watch has caught up after a list.
    Current,
}

/// The group as this replica knows it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub object: GroupObject,
    pub machine: Group,
    /// A claim is on its way.
    pub claiming: bool,
}

#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Replica {
    pub alive: bool,
    pub database: usize,
    pub session: Option<u32>,
    pub entry: Option<Entry>,
    pub pods: BTreeMap<String, Pod>,
    pub evidence: BTreeMap<String, Verdict>,
    pub pod_watch: VecDeque<Seen>,
    /// What the watch shows may be old, as after a list.
    pub late: bool,
    /// Since when this replica has seen evidence against a pod: the time, and the revision of the API server then.
    pub against: BTreeMap<String, (Duration, u64)>,
    /// The holder that was replaced by the last decision, and since which revision there was evidence against it.
    pub replaced: Option<(String, Option<u64>)>,
    /// The holder that the last decision replaces as planned: for a request, a cordon, a rollout or a priority.
    pub released: Option<String>,
    pub group_watch: VecDeque<Option<GroupObject>>,
    pub tasks: Vec<Task>,
    /// Finished jobs of effects that still have unfinished ones, and the pods that these jobs have shown.
    pub parts: Vec<(Ticket, Outcome, Vec<Pod>)>,
    /// The database failed over, and this replica has not handled that yet.
    pub doubt: bool,
    pub lock_away: bool,
    /// The last requested grant. Repeating it is not a new decision.
    pub asked: Option<Uuid>,
    /// A violation of an invariant by the core.
    pub violation: Option<String>,
}

/// Whether a group with this UID has made the pod active.
fn is_active_for(pod: &Pod, group: u32) -> bool {
    pod.role == Role::Active && pod.stamp.is_some_and(|(of, _)| of == group)
}

impl Replica {
    fn world(&self) -> World {
        let Some(entry) = &self.entry else { return World::default() };
        let contested = entry.object.contested;
        let selected = || self.pods.values().filter(|pod| pod.selected);
        // It counts as one of the other group.
        let is_rivals = |pod: &Pod| contested && is_active_for(pod, RIVAL);
        let members = selected().filter(|pod| !is_rivals(pod)).map(|pod| Member {
            pod: pod.pod.clone(),
            node: Some(pod.node.to_owned()),
            version: pod.version.to_string(),
            role: pod.role,
            stamp: pod.stamp.map(|(_, token)| token),
            stamped_by_us: pod.stamp.is_some_and(|(group, _)| group == entry.object.uid),
            leaving: pod.leaving,
            // The pods of one node are preferred.
            priority: u32::from(pod.node == NODES[0]),
            // The routing writes it together with the role, and the model has no foreign edits.
            fencing_fits: true,
            verdict: match self.verdict(pod) {
                Verdict::Eligible if contested && !is_active_for(pod, entry.object.uid) => Verdict::Contested,
                verdict => verdict,
            },
            agent: None,
            asked_at: None,
            silent_since: None,
            restarts: 0,
            ended: Vec::new(),
            created: pod.created.cast_signed(),
            // As if each pod that replaces one of the first three were of a newer template.
            revision: Some(if pod.created > 3 { "2" } else { "1" }.into()),
            workload: Some(Workload { name: "web".into(), ordinal: None }),
        });
        World {
            members: members.collect(),
            policy: Policy {
                paused: entry.object.paused,
                delay: entry.object.delay,
                failback: entry.object.failback,
                leaves_before_rollout: true,
                deletes_demoted: false,
                deletion_policy: entry.object.deletion_policy,
                agent: None,
                hooks: HookPolicy::default(),
            },
            declared: entry.object.declared.clone(),
            // The model's status has no history.
            history: Arc::default(),
            obstacle: selected().any(is_rivals).then_some(Reason::SelectedByOtherGroup),
            switchover: entry.object.requested.clone().map(|id| SwitchoverRequest { id, to: None }),
            deleting: entry.object.deleting,
            lock_away: self.lock_away,
            stopping: false,
        }
    }

    fn verdict(&self, pod: &Pod) -> Verdict {
        if pod.deleting {
            Verdict::Ended(Reason::PodDeleted)
        } else if pod.crashed {
            Verdict::Failing(Reason::ContainerTerminated)
        } else {
            self.evidence.get(&pod.pod.uid).copied().unwrap_or(Verdict::Unknown)
        }
    }

    /// One step of the election, and its effects.
    fn step(&mut self, event: Event, now: Duration) {
        let Some(entry) = &mut self.entry else { return };
        let ended = matches!(event, Event::Outcome(_, Outcome::Verified(Some(Reason::PodDeleted)), _));
        let effects = entry.machine.step(event, now);
        let (group, floor) = (entry.object.uid, entry.object.declared.token);
        for (ticket, effect) in effects {
            if matches!(effect, Effect::Finished(_)) {
                continue;
            }
            self.judge(&effect, ended, now);
            let job = |part| Task::new(group, self.session, Job::Effect(ticket, part), floor);
            self.tasks.extend(parts(effect).into_iter().map(job));
        }
    }

    /// I5: no pod is chosen without fresh positive evidence, unless it is already active. While the group is paused, no
    /// pod is chosen except in the middle of a change; while it is contested, only one that is active already. A holder
    /// that has not ended is not replaced before the election delay is over. `read`: a read has just shown its end,
    /// which the watch may not have shown yet.
    fn judge(&mut self, effect: &Effect, read: bool, now: Duration) {
        let (Effect::Grant(grant), Some(entry)) = (effect, &self.entry) else { return };
        if self.asked.replace(grant.id) == Some(grant.id) {
            return;
        }
        let (row, declared) = (entry.machine.row(), entry.machine.declared());
        let settled = row.holder.is_none() || (row.confirmed && row.token == declared.token);
        let member = entry.machine.member(&grant.holder.uid);
        let keeps_it = member.is_some_and(|member| member.role == Role::Active);
        let held = entry.object.paused || (entry.object.contested && !keeps_it);
        if held && settled && grant.reason != Reason::LostCommits {
            self.violation =
                Some(format!("granted to {} while paused or contested: {row:?}", grant.holder.uid));
            return;
        }
        let former = row.holder.as_ref().filter(|former| settled && **former != grant.holder);
        let planned = settled && grant.reason.is_planned();
        if planned {
            let leaving = |pod: &PodRef| entry.machine.member(&pod.uid).is_some_and(|member| member.leaving);
            let requested = entry.object.requested.as_ref();
            let priority = |pod: &PodRef| entry.machine.member(&pod.uid).map_or(0, |member| member.priority);
            let revision = |pod: &PodRef| entry.machine.member(&pod.uid).and_then(|it| it.revision.clone());
            let due = match grant.reason {
                Reason::NodeCordoned => former.is_some_and(leaving) && !leaving(&grant.holder),
                Reason::Rollout => former.is_some_and(|former| revision(former) < revision(&grant.holder)),
                Reason::Failback => {
                    entry.object.failback.is_some()
                        && former.is_some_and(|former| priority(former) < priority(&grant.holder))
                }
                Reason::Switchover => requested.is_some_and(|id| declared.switchover.as_ref() != Some(id)),
                _ => false,
            };
            if !due {
                self.violation = Some(format!("I5: {} follows for no {}", grant.holder.uid, grant.reason));
                return;
            }
            self.released = former.map(|former| former.uid.clone());
        }
        let former = former.filter(|_| !planned);
        // A holder that has lost its label is no longer active. It does not get it back if the API server refuses that,
        // or if another group selects it, too.
        let refused = |former: &PodRef| entry.machine.refused().any(|(pod, _)| pod.pod.uid == former.uid);
        let contested = |former: &PodRef| {
            let member = entry.machine.member(&former.uid);
            member.is_some_and(|member| member.verdict == Verdict::Contested)
        };
        let former = former
            .filter(|former| grant.reason != Reason::LabelLost || !(refused(former) || contested(former)));
        let against = |former: &PodRef| self.against.get(&former.uid);
        self.replaced = former.map(|former| (former.uid.clone(), against(former).map(|(_, at)| *at)));
        let ended = |former: &PodRef| {
            let member = entry.machine.member(&former.uid);
            member.is_none_or(|member| matches!(member.verdict, Verdict::Ended(_)))
        };
        if let Some(former) = former.filter(|former| !read && !ended(former))
            && against(former).is_none_or(|(since, _)| now < *since + entry.object.delay)
        {
            self.violation = Some(format!("I5: {} replaced before the election delay was over", former.uid));
            return;
        }
        let member = entry.machine.member(&grant.holder.uid);
        let chosen = member.is_some_and(|member| {
            member.verdict == Verdict::Eligible
                || (member.role == Role::Active
                    && (matches!(
                        member.verdict,
                        Verdict::Contested | Verdict::Unknown | Verdict::HeardElsewhere
                    ) || grant.reason == Reason::LostCommits))
        });
        if !chosen {
            self.violation =
                Some(format!("I5: granted to {} without evidence: {member:?}", grant.holder.uid));
        }
    }

    /// Updates the world of the election.
    pub fn look(&mut self, now: Duration, revision: u64) {
        self.note_evidence(now, revision);
        let world = self.world();
        let Some(entry) = &self.entry else { return };
        let event = if *entry.machine.world() == world { Event::Tick } else { Event::World(world) };
        self.step(event, now);
    }

    /// Records since when there is evidence against a pod, also before this replica knows the group.
    fn note_evidence(&mut self, now: Duration, revision: u64) {
        let machine = self.entry.as_ref().map(|entry| &entry.machine);
        let rests = machine.is_none_or(|it| matches!(it.phase(), Phase::Stable | Phase::Observing));
        let holder = machine.and_then(|it| it.row().holder.as_ref()).map(|holder| holder.uid.clone());
        let selected = self.pods.values().filter(|pod| pod.selected);
        let against = |pod: &Pod| (pod.pod.uid.clone(), self.verdict(pod).against().is_some());
        let members: Vec<_> = selected.map(against).collect();
        let gone = holder.filter(|holder| members.iter().all(|(uid, _)| uid != holder));
        let gone = gone.map(|holder| (holder, true));
        for (uid, against) in members.into_iter().chain(gone) {
            if against {
                self.against.entry(uid).or_insert((now, revision));
            } else if rests {
                self.against.remove(&uid);
            }
        }
    }

    pub fn see_pod(&mut self, seen: Seen) {
        match seen {
            Seen::Pod(pod) => self.learn(pod),
            Seen::PodGone(uid) => self.forget(&uid),
            Seen::Listed(pods) => {
                let known: Vec<String> = self.pods.keys().cloned().collect();
                for uid in known.iter().filter(|uid| !pods.iter().any(|pod| pod.pod.uid == **uid)) {
                    self.forget(uid);
                }
                self.late = true;
                for pod in pods {
                    self.learn(pod);
                }
            }
            Seen::Current => self.late = false,
        }
    }

    fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.evidence.remove(uid);
    }

    fn learn(&mut self, pod: Pod) {
        let known = self.pods.get(&pod.pod.uid);
        if !self.late && known.is_some_and(|known| pod.restarts > known.restarts) {
            // Until the next probe, which is of the new container.
            self.evidence.insert(pod.pod.uid.clone(), Verdict::Failing(Reason::ContainerRestarted));
        }
        if known.is_none_or(|known| pod.version >= known.version) {
            self.pods.insert(pod.pod.uid.clone(), pod);
        }
    }

    pub fn see_group(&mut self, group: Option<GroupObject>) {
        let Some(object) = group else {
            self.entry = None;
            return;
        };
        match &mut self.entry {
            Some(entry) if entry.object.uid == object.uid => {
                if object.version >= entry.object.version {
                    entry.object = object;
                }
            }
            _ => {
                let machine = Group::new(World::default());
                self.entry = Some(Entry { object, machine, claiming: false });
            }
        }
    }

    pub fn begin_claim(&mut self) {
        let session = self.session;
        if let Some(entry) = &mut self.entry {
            entry.claiming = true;
            self.tasks.push(Task::new(entry.object.uid, session, Job::Claim, 0));
        }
    }

    pub fn finish(&mut self, task: Task, end: End, seed: u128, (now, revision): (Duration, u64)) {
        let Some((end, learned)) = self.joined(&task, end) else { return };
        for pod in learned {
            // Only the watch decides which pods exist: an answer may arrive after the deletion of its pod.
            if self.pods.contains_key(&pod.pod.uid) {
                self.learn(pod);
            }
        }
        self.note_evidence(now, revision);
        let Some(entry) = self.entry.as_mut().filter(|entry| entry.object.uid == task.group) else { return };
        match (end, task.job) {
            (answer @ (End::Claimed(_) | End::Buried | End::Unclaimed), _) => {
                entry.claiming = false;
                // Of a session that was given up since, or to the first of two claims, an answer says nothing.
                let current =
                    task.session == self.session && self.session.is_some() && !entry.machine.is_at_work();
                match answer {
                    End::Claimed(Claimed::Ours(row)) if current => {
                        let (seed, world) = (Uuid::from_u128(seed), self.world());
                        self.step(Event::Owned { seed, row: Some(row), world }, now);
                    }
                    End::Buried if current => self.step(Event::Buried, now),
                    _ => {}
                }
            }
            (End::Outcome(outcome), Job::Effect(ticket, _)) => {
                if let Some(object) = task.object
                    && object.version >= entry.object.version
                    && matches!(outcome, Outcome::Read { .. })
                {
                    entry.object = object;
                }
                let world = self.world();
                self.step(Event::Outcome(ticket, outcome, world), now);
            }
            (End::Outcome(_), Job::Claim) => unreachable!("a claim ends with a claim's answer"),
        }
    }

    /// The end of an effect whose last job this was, and the pods that it has shown.
    fn joined(&mut self, task: &Task, end: End) -> Option<(End, Vec<Pod>)> {
        let (
            Job::Effect(ticket, effect @ (Effect::Strip { .. } | Effect::Stamp { .. })),
            End::Outcome(outcome),
        ) = (&task.job, &end)
        else {
            return Some((end, task.learned.clone()));
        };
        self.parts.push((*ticket, outcome.clone(), task.learned.clone()));
        if self.tasks.iter().any(|other| other.ticket() == Some(*ticket)) {
            return None;
        }
        let ours = self.parts.extract_if(.., |(of, ..)| of == ticket);
        let (outcomes, learned): (Vec<_>, Vec<_>) =
            ours.map(|(_, outcome, learned)| (outcome, learned)).unzip();
        let outcome = together(outcomes);
        // A strip that ends early shows nothing.
        let shown = !matches!(effect, Effect::Strip { .. }) || matches!(outcome, Outcome::Stripped);
        Some((End::Outcome(outcome), if shown { learned.concat() } else { Vec::new() }))
    }

    /// The session is lost or was given up.
    pub fn lose_session(&mut self, now: Duration) {
        self.session = None;
        self.disown(now);
    }

    /// This replica is no longer the owner.
    pub fn disown(&mut self, now: Duration) {
        if self.is_owner() {
            self.step(Event::Disowned, now);
        }
    }

    pub fn is_owner(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.machine.is_at_work())
    }

    pub fn doubt(&mut self, now: Duration) {
        self.doubt = false;
        if self.is_owner() {
            self.step(Event::Doubt, now);
        }
    }
}
