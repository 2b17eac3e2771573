//! The execution of an effect as a sequence of single requests, as in the operator's executor and assignment and in
//! `src/routing`. Anything may happen between two requests.

use leadergroup::{
    api::{Declaration, DeletionPolicy, PodAt, PodRef, Reason, Role},
    election::{Effect, Outcome, Rejection, Row, Ticket},
};

use crate::{
    database::{Claimed, Reply, Statement},
    server::{Answer, Call, GroupObject, Pod},
};

/// The number of attempts to write one pod's role, as in `src/routing/pods.rs`.
const ATTEMPTS: u8 = 8;

#[derive(Clone, Debug)]
pub enum Job {
    Effect(Ticket, Effect),
    Claim,
}

#[derive(Clone, Debug)]
pub enum Request {
    Server(Call),
    Database(Statement),
}

#[derive(Clone, Debug)]
pub enum Response {
    Server(Answer),
    Database(Reply),
}

#[derive(Clone, Debug)]
pub enum End {
    Outcome(Outcome),
    Claimed(Claimed),
    /// A claim: the group is being deleted, and has no row left.
    Buried,
    /// A claim without an answer.
    Unclaimed,
}

/// Why there is no answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It was not sent.
    Unsent,
    /// It was sent, but its sender has stopped waiting.
    Lost,
}

pub enum Next {
    Ask(Request),
    End(End),
}

/// The jobs of an effect. Several pods are stripped or stamped at the same time, each in a job of its own.
pub fn parts(effect: Effect) -> Vec<Effect> {
    let alone = |at| vec![at];
    match effect {
        Effect::Strip { token, pods } if pods.len() > 1 => {
            pods.into_iter().map(|at| Effect::Strip { token, pods: alone(at) }).collect()
        }
        Effect::Stamp { token, pods } if pods.len() > 1 => {
            pods.into_iter().map(|at| Effect::Stamp { token, pods: alone(at) }).collect()
        }
        effect => vec![effect],
    }
}

/// The outcome of an effect whose jobs ended like this.
pub fn together(outcomes: Vec<Outcome>) -> Outcome {
    let failed = |outcome: &Outcome| !matches!(outcome, Outcome::Stripped | Outcome::Stamped(_));
    let of_strip = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stripped | Outcome::Rejected(_)));
    let problem = outcomes.iter().find(|outcome| failed(outcome)).cloned();
    if of_strip {
        return problem.unwrap_or(Outcome::Stripped);
    }
    let mut refused = Vec::new();
    for outcome in outcomes {
        if let Outcome::Stamped(pods) = outcome {
            refused.extend(pods);
        }
    }
    // A failed write of one pod does not hide the refusals of others.
    problem.filter(|_| refused.is_empty()).unwrap_or(Outcome::Stamped(refused))
}

/// A job in progress.
#[derive(Clone, Debug)]
pub struct Task {
    pub group: u32,
    pub session: Option<u32>,
    pub job: Job,
    /// The declared token, for a tombstone.
    floor: i64,
    stage: u8,
    attempts: u8,
    index: usize,
    found: Option<Pod>,
    /// The version that a write was bound to which the API server called invalid.
    bound: Option<u64>,
    declared: Option<Declaration>,
    row: Option<Row>,
    /// The first answer to a claim.
    claimed: Option<Claimed>,
    /// The pods that the group has stamped, to be cleared.
    stamped: Vec<PodAt>,
    /// The standbys that an admission policy refuses to stamp.
    refused: Vec<(PodRef, String)>,
    pub learned: Vec<Pod>,
    pub object: Option<GroupObject>,
}

fn number(version: &str) -> u64 {
    version.parse().expect("the model's versions are numbers")
}

fn ended(outcome: Outcome) -> Next {
    Next::End(End::Outcome(outcome))
}

fn server(call: Call) -> Next {
    Next::Ask(Request::Server(call))
}

fn database(statement: Statement) -> Next {
    Next::Ask(Request::Database(statement))
}

impl Request {
    /// Whether it is a write, so that a late arrival matters.
    pub fn writes(&self) -> bool {
        !matches!(
            self,
            Self::Server(Call::Pod(_) | Call::Try(..) | Call::Stamped(_) | Call::Group)
                | Self::Database(Statement::Row { .. })
        )
    }
}

impl Task {
    pub fn new(group: u32, session: Option<u32>, job: Job, floor: i64) -> Self {
        Self {
            group,
            session,
            job,
            floor,
            stage: 0,
            attempts: 0,
            index: 0,
            found: None,
            bound: None,
            declared: None,
            row: None,
            claimed: None,
            stamped: Vec::new(),
            refused: Vec::new(),
            learned: Vec::new(),
            object: None,
        }
    }

    pub fn ticket(&self) -> Option<Ticket> {
        match &self.job {
            Job::Effect(ticket, _) => Some(*ticket),
            Job::Claim => None,
        }
    }

    /// The next request, or the end.
    pub fn next(&self) -> Next {
        let effect = match &self.job {
            Job::Claim => {
                return match self.stage {
                    1 => server(Call::Group),
                    3 => database(Statement::Tombstone { group: self.group, floor: self.floor }),
                    stage => database(Statement::Claim {
                        group: self.group,
                        may_create: stage == 2,
                        supersedes: match &self.claimed {
                            Some(Claimed::Foreign(other)) => Some(*other),
                            _ => None,
                        },
                    }),
                };
            }
            Job::Effect(_, effect) => effect,
        };
        let next = match effect {
            Effect::Read if self.stage == 0 => database(Statement::Row { group: self.group }),
            Effect::Try { pod, .. } | Effect::Promote { pod, .. } if self.stage == 1 => {
                server(Call::Pod(pod.clone()))
            }
            Effect::Verify(pod) => server(Call::Pod(pod.clone())),
            Effect::Try { pod, from, .. } => server(Call::Try(pod.clone(), from.clone())),
            Effect::Grant(grant) => database(Statement::Grant { group: self.group, grant: grant.clone() }),
            Effect::Confirm { token } => database(Statement::Confirm { token: *token }),
            Effect::Vacate { token } => database(Statement::Vacate { token: *token }),
            Effect::Tombstone => database(Statement::Tombstone { group: self.group, floor: self.floor }),
            Effect::Declare { previous, next } if self.stage == 0 => {
                if !next.may_replace(previous) {
                    return ended(Outcome::Rejected(Rejection::Outdated));
                }
                let (previous, next) = (previous.clone(), next.clone());
                server(Call::Declare { uid: self.group, previous, next })
            }
            Effect::Read | Effect::Declare { .. } => server(Call::Group),
            Effect::Strip { token, pods } => self.demotion(*token, pods, Outcome::Stripped),
            Effect::Stamp { token, pods } => {
                self.demotion(*token, pods, Outcome::Stamped(self.refused.clone()))
            }
            Effect::Promote { token, pod, version } => {
                let (version, role) = (number(version), Some(Role::Active));
                let stamp = Some((self.group, *token));
                server(Call::Label { pod: pod.clone(), version, role, stamp })
            }
            Effect::Recheck(pod) => match self.stage {
                0 => server(Call::Pod(pod.clone())),
                1 => server(Call::Group),
                _ => database(Statement::Row { group: self.group }),
            },
            Effect::Clear { .. } if self.stage == 0 => server(Call::Stamped(self.group)),
            Effect::Clear { deletion_policy, pods } => match pods.iter().chain(&self.stamped).nth(self.index)
            {
                None => ended(Outcome::Cleared),
                Some(at) => match self.version(at) {
                    None => server(Call::Pod(at.pod.clone())),
                    Some(version) => {
                        let role = (*deletion_policy == DeletionPolicy::RemoveLabels).then_some(Role::None);
                        server(Call::Label { pod: at.pod.clone(), version, role, stamp: None })
                    }
                },
            },
            Effect::Unfinalize => match &self.object {
                None => server(Call::Group),
                Some(object) => server(Call::Unfinalize { uid: self.group, version: object.version }),
            },
            Effect::Tell { .. } => unreachable!("the model's groups have no hooks"),
            Effect::Delete(_) => unreachable!("the model's groups keep their pods"),
            Effect::Finished(_) => unreachable!("it is not carried out"),
        };
        match next {
            Next::Ask(Request::Database(_)) if self.session.is_none() => {
                ended(Outcome::Rejected(Rejection::NotOwner))
            }
            next => next,
        }
    }

    fn demotion(&self, token: i64, pods: &[PodAt], done: Outcome) -> Next {
        let Some(at) = pods.get(self.index) else { return ended(done) };
        match (self.version(at), self.stage) {
            (None, _) | (_, 3) => server(Call::Pod(at.pod.clone())),
            (Some(_), 1) => server(Call::Group),
            (Some(version), _) => server(Call::Label {
                pod: at.pod.clone(),
                version,
                role: Some(Role::Standby),
                stamp: Some((self.group, token)),
            }),
        }
    }

    /// The version that the next write to the pod is bound to: that of the watch at the first attempt, then one that
    /// was read.
    fn version(&self, at: &PodAt) -> Option<u64> {
        let known = at.version.as_deref().filter(|_| self.attempts == 0).map(number);
        self.found.as_ref().map(|found| found.version).or(known)
    }

    fn next_pod(&mut self) -> Option<End> {
        self.index += 1;
        (self.found, self.stage, self.attempts) = (None, 0, 0);
        None
    }

    fn again(&mut self) -> Option<End> {
        self.attempts += 1;
        (self.found, self.stage) = (None, 0);
        (self.attempts >= ATTEMPTS).then_some(End::Outcome(Outcome::Failed))
    }

    /// Not a pod that another group has stamped since. Anyone may remove a stamp; the label that was written with it is
    /// still ours.
    fn is_to_clear(&self, pod: &Pod) -> bool {
        pod.stamp.map_or(pod.role != Role::None, |(group, _)| group == self.group)
    }

    fn ours(&self, group: Option<GroupObject>) -> Option<GroupObject> {
        group.filter(|found| found.uid == self.group)
    }

    /// Processes an answer. Returns the end if it was the last one.
    pub fn absorb(&mut self, response: Response) -> Option<End> {
        let outcome = |outcome| Some(End::Outcome(outcome));
        let effect = match &self.job {
            Job::Claim => return self.absorb_claim(response),
            Job::Effect(_, effect) => effect.clone(),
        };
        match (effect, response) {
            (_, Response::Database(Reply::Rejected(refusal))) => outcome(Outcome::Rejected(refusal)),
            (Effect::Read, Response::Database(Reply::Row(row))) => {
                (self.row, self.stage) = (Some(row), 1);
                None
            }
            (Effect::Read, Response::Server(Answer::Group(group))) => {
                self.object = self.ours(group);
                let declared = self.object.as_ref().map(|object| object.declared.clone());
                outcome(Outcome::Read { row: self.row.take(), declared })
            }
            (Effect::Verify(_), Response::Server(Answer::Pod(found))) => {
                let against = match &found {
                    None => Some(Reason::PodDeleted),
                    Some(pod) if pod.deleting || !pod.selected => Some(Reason::PodDeleted),
                    Some(pod) => pod.crashed.then_some(Reason::ContainerTerminated),
                };
                self.learned.extend(found);
                outcome(Outcome::Verified(against))
            }
            // A read shows which it is: refused, or another object of the same name.
            (Effect::Declare { .. }, Response::Server(Answer::Patched(false)))
            | (Effect::Try { .. } | Effect::Promote { .. }, Response::Server(Answer::Invalid)) => {
                self.stage = 1;
                None
            }
            (Effect::Try { .. }, Response::Server(answer)) => outcome(match answer {
                Answer::Accepted => Outcome::Accepted,
                Answer::Refused | Answer::Pod(Some(_)) => Outcome::Refused("a policy".to_owned()),
                Answer::HolderRefused => Outcome::HolderRefused("a policy".to_owned()),
                Answer::Unclear => Outcome::Failed,
                _ => Outcome::Conflict,
            }),
            (Effect::Promote { .. }, Response::Server(Answer::Unclear)) => outcome(Outcome::Failed),
            (Effect::Promote { .. }, Response::Server(Answer::Refused)) => {
                outcome(Outcome::Refused("a policy".to_owned()))
            }
            (Effect::Promote { version, .. }, Response::Server(Answer::Pod(found))) => {
                let same = found.is_some_and(|found| found.version == number(&version));
                outcome(if same { Outcome::Refused("a policy".to_owned()) } else { Outcome::Conflict })
            }
            (Effect::Grant(_), Response::Database(Reply::Granted(token))) => {
                outcome(Outcome::Granted { token })
            }
            (Effect::Confirm { .. }, Response::Database(Reply::Done)) => outcome(Outcome::Confirmed),
            (Effect::Vacate { .. }, Response::Database(Reply::Done)) => outcome(Outcome::Vacated),
            (Effect::Tombstone, Response::Database(Reply::Done)) => outcome(Outcome::Tombstoned),
            (Effect::Declare { .. }, Response::Server(Answer::Patched(true))) => outcome(Outcome::Declared),
            (Effect::Declare { next, .. }, Response::Server(Answer::Group(group))) => {
                outcome(match self.ours(group) {
                    None => Outcome::Rejected(Rejection::GroupGone),
                    Some(found) if found.declared == next => Outcome::Declared,
                    Some(_) => Outcome::Rejected(Rejection::Outdated),
                })
            }
            (Effect::Promote { .. }, Response::Server(Answer::Labelled(pod))) => {
                let done = pod.is_some();
                self.learned.extend(pod);
                outcome(if done { Outcome::Promoted } else { Outcome::Conflict })
            }
            (Effect::Recheck(_), Response::Server(Answer::Pod(found))) => {
                self.learned.extend(found.clone());
                (self.found, self.stage) = (found, 1);
                None
            }
            (Effect::Recheck(_), Response::Server(Answer::Group(group))) => {
                self.declared = self.ours(group).map(|group| group.declared);
                self.stage = 2;
                None
            }
            (Effect::Recheck(_), Response::Database(Reply::Row(row))) => {
                let version = self.found.as_ref().map(|pod| pod.version.to_string());
                outcome(Outcome::Rechecked { version, declared: self.declared.take(), row: Some(row) })
            }
            (Effect::Strip { token, .. }, Response::Server(answer)) => self.demoted(token, true, answer),
            (Effect::Stamp { token, .. }, Response::Server(answer)) => self.demoted(token, false, answer),
            (Effect::Clear { pods, .. }, Response::Server(Answer::Pods(found))) => {
                (self.stamped, self.stage) = (found, 1);
                self.stamped.retain(|at| pods.iter().all(|known| known.pod != at.pod));
                None
            }
            (Effect::Clear { .. }, Response::Server(Answer::Pod(found))) => {
                match found.filter(|pod| self.is_to_clear(pod)) {
                    None => {
                        self.next_pod();
                        self.stage = 1;
                        None
                    }
                    Some(found) => {
                        self.found = Some(found);
                        None
                    }
                }
            }
            (Effect::Clear { .. }, Response::Server(Answer::Labelled(written))) => {
                let end = if written.is_some() { self.next_pod() } else { self.again() };
                self.stage = 1;
                end
            }
            (Effect::Unfinalize, Response::Server(Answer::Group(group))) => {
                self.object = self.ours(group);
                if self.object.is_some() { None } else { outcome(Outcome::Unfinalized) }
            }
            (Effect::Unfinalize, Response::Server(Answer::Patched(done))) => {
                self.object = None;
                if done { outcome(Outcome::Unfinalized) } else { self.again() }
            }
            (effect, response) => unreachable!("{response:?} does not answer {effect:?}"),
        }
    }

    fn demoted(&mut self, token: i64, all: bool, answer: Answer) -> Option<End> {
        match answer {
            Answer::Pod(found) if self.stage == 3 => {
                let same = found.is_some_and(|found| Some(found.version) == self.bound);
                if same { self.refused(all) } else { self.again() }
            }
            Answer::Pod(None) => self.next_pod(),
            Answer::Pod(Some(found)) => {
                if found.role == Role::Active && !all {
                    self.learned.push(found);
                    return self.next_pod();
                }
                let stamp = found.stamp.filter(|(group, _)| *group == self.group).map(|(_, token)| token);
                if stamp == Some(token) && found.role == Role::Standby {
                    self.learned.push(found);
                    return self.next_pod();
                }
                self.stage = if stamp.is_some_and(|stamp| stamp > token) { 1 } else { 2 };
                self.found = Some(found);
                None
            }
            Answer::Group(group) => {
                let declared = self.ours(group).map(|group| group.declared.token);
                if all && declared != Some(token) {
                    return Some(End::Outcome(Outcome::Rejected(Rejection::Outdated)));
                }
                if declared.is_none_or(|declared| declared > token) {
                    return self.next_pod();
                }
                self.stage = 2;
                None
            }
            Answer::Labelled(Some(written)) => {
                self.learned.push(written);
                self.next_pod()
            }
            Answer::Labelled(None) => self.again(),
            Answer::Invalid => {
                if let Job::Effect(_, Effect::Strip { pods, .. } | Effect::Stamp { pods, .. }) = &self.job {
                    (self.bound, self.stage) = (self.version(&pods[self.index]), 3);
                }
                None
            }
            Answer::Refused => self.refused(all),
            Answer::Accepted
            | Answer::HolderRefused
            | Answer::Unclear
            | Answer::Patched(_)
            | Answer::Pods(_) => unreachable!("it was not asked for"),
        }
    }

    /// An admission policy refuses the write of a label.
    fn refused(&mut self, all: bool) -> Option<End> {
        if all {
            return Some(End::Outcome(Outcome::Failed));
        }
        if let Job::Effect(_, Effect::Stamp { pods, .. }) = &self.job {
            self.refused.push((pods[self.index].pod.clone(), "a policy".to_owned()));
        }
        self.next_pod()
    }

    fn absorb_claim(&mut self, response: Response) -> Option<End> {
        match response {
            Response::Database(Reply::Claimed(
                claimed @ (Claimed::Missing | Claimed::Tombstone | Claimed::Foreign(_)),
            )) if self.stage == 0 => {
                (self.claimed, self.stage) = (Some(claimed), 1);
                None
            }
            Response::Database(Reply::Claimed(claimed)) => Some(End::Claimed(claimed)),
            Response::Server(Answer::Group(group)) => match self.ours(group) {
                None => Some(End::Unclaimed),
                Some(group) if !group.deleting => {
                    self.stage = 2;
                    None
                }
                Some(group) if self.claimed == Some(Claimed::Missing) => {
                    (self.floor, self.stage) = (group.declared.token, 3);
                    None
                }
                Some(_) => Some(End::Buried),
            },
            Response::Database(Reply::Done) => Some(End::Buried),
            Response::Database(Reply::Rejected(_)) => Some(End::Unclaimed),
            response => unreachable!("{response:?} does not answer a claim"),
        }
    }

    /// The end of the job if its answer does not arrive. It is unknown whether a statement without an answer was
    /// carried out. For a write to the API server this does not matter, because its preconditions show that later.
    pub fn unanswered(&self, silence: Silence) -> End {
        match (&self.job, self.next()) {
            (Job::Claim, _) => End::Unclaimed,
            (Job::Effect(..), Next::Ask(Request::Database(_))) if silence == Silence::Lost => {
                End::Outcome(Outcome::Unknown)
            }
            (Job::Effect(..), _) => End::Outcome(Outcome::Failed),
        }
    }
}
