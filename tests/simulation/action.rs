//! The actions of the model, and how often each may happen.

use leadergroup::api::Role;

use crate::server::{Health, Refusal};

/// What others write into a pod's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    Removed,
    OtherGroup,
    /// Of this group, with a token that was never granted.
    Ahead,
    /// Of this group, with an old token.
    Behind,
    /// Of this group, with a token that is too large to be real.
    Absurd,
}

impl Forgery {
    pub const ALL: [Self; 5] = [Self::Removed, Self::OtherGroup, Self::Ahead, Self::Behind, Self::Absurd];
}

/// An action of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next request of a replica's job is carried out and answered.
    Answer {
        replica: usize,
        task: usize,
    },
    /// The replica stops waiting; the request, if it writes, is still in flight.
    TimeOut {
        replica: usize,
        task: usize,
    },
    /// The next request cannot be sent, or the lock's row is busy.
    Fail {
        replica: usize,
        task: usize,
    },
    /// A request takes effect whose sender has stopped waiting or no longer exists.
    Arrive {
        packet: usize,
    },
    WatchPod {
        replica: usize,
    },
    WatchGroup {
        replica: usize,
    },
    /// The watch of the pods breaks, and the replica lists them again, from a cache that is `back` changes old. The
    /// watch goes on from there.
    RelistPods {
        replica: usize,
        back: usize,
    },
    /// The same for the group.
    RelistGroup {
        replica: usize,
        back: usize,
    },
    Probe {
        replica: usize,
        pod: usize,
    },
    /// The evidence about a pod becomes stale: the replica was paused, or could not send.
    Stale {
        replica: usize,
        pod: usize,
    },
    /// The network between a replica and a pod fails. Nothing is wrong with the pod.
    CutPath {
        replica: usize,
        pod: usize,
    },
    MendPath,
    /// The replica gives the group to one that hears the holder.
    HandOver {
        replica: usize,
    },
    /// The clock reaches the wake time of the election.
    Wake {
        replica: usize,
    },
    /// A heartbeat: registers, finds its session dead, or detects a failover of the database.
    Beat {
        replica: usize,
    },
    Claim {
        replica: usize,
    },
    /// The replica's session is marked dead: it was paused, or cut off from the database.
    MarkDead {
        replica: usize,
    },
    /// A normal exit, which closes the session, or a kill.
    Stop {
        replica: usize,
        clean: bool,
    },
    Start {
        replica: usize,
    },
    Ail {
        pod: usize,
        health: Health,
    },
    Crash {
        pod: usize,
    },
    Restarted {
        pod: usize,
    },
    Delete {
        pod: usize,
    },
    Gone {
        pod: usize,
    },
    Create {
        pod: usize,
    },
    /// The pod's node is cordoned.
    Cordon {
        pod: usize,
    },
    /// No longer.
    Uncordon {
        pod: usize,
    },
    /// A user edits the pod's labels, and the group's selector no longer matches it.
    Leave {
        pod: usize,
    },
    /// The selector matches it again.
    Rejoin {
        pod: usize,
    },
    /// Someone else sets the role, where no admission policy forbids it.
    Relabel {
        pod: usize,
        role: Role,
    },
    /// Someone else changes the stamp.
    Restamp {
        pod: usize,
        forgery: Forgery,
    },
    /// A user removes the role label, which is allowed.
    Unlabel {
        pod: usize,
    },
    /// An admission policy refuses writes to a pod from now on.
    Refuse {
        pod: usize,
        refusal: Refusal,
    },
    /// No more.
    Permit,
    /// The database returns to an earlier state with another history; replicas connect to it one by one.
    Rewind {
        steps: usize,
    },
    /// The database is replaced by an empty one.
    Empty,
    /// A replica connects to the current database instead of the previous primary.
    Follow {
        replica: usize,
    },
    Pause {
        paused: bool,
    },
    /// A user requests a switchover.
    Request,
    /// A user changes `election.delay`.
    Delay {
        on: bool,
    },
    /// A user lets the role go back to the preferred pod, or no longer.
    FailBack {
        on: bool,
    },
    /// A user changes `deletionPolicy`.
    Keep {
        keep: bool,
    },
    /// Another group begins, or ceases, to select the same pods.
    Contest {
        contested: bool,
    },
    /// The other group has this pod active: it was its own before this group selected it, too.
    Rival {
        pod: usize,
    },
    DeleteGroup,
    CreateGroup,
    DatabaseDown,
    DatabaseUp,
}

/// How many faults of each kind a schedule may have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub time_outs: u32,
    pub stale: u32,
    pub cuts: u32,
    pub relists: u32,
    pub wakes: u32,
    pub mark_dead: u32,
    pub stops: u32,
    pub ails: u32,
    pub crashes: u32,
    pub deletes: u32,
    pub cordons: u32,
    pub leaves: u32,
    pub unlabels: u32,
    pub edits: u32,
    pub refusals: u32,
    pub rewinds: u32,
    pub empties: u32,
    pub pauses: u32,
    pub requests: u32,
    pub policies: u32,
    pub contests: u32,
    pub group: u32,
    pub outages: u32,
}

impl Faults {
    /// No limits.
    pub fn all() -> Self {
        let many = u32::MAX;
        Self {
            time_outs: many,
            stale: many,
            cuts: many,
            relists: many,
            wakes: many,
            mark_dead: many,
            stops: many,
            ails: many,
            crashes: many,
            deletes: many,
            cordons: many,
            leaves: many,
            unlabels: many,
            edits: many,
            refusals: many,
            rewinds: many,
            empties: many,
            pauses: many,
            requests: many,
            policies: many,
            contests: many,
            group: many,
            outages: many,
        }
    }

    /// The pods stay healthy and the group unchanged: only parts of the system fail.
    pub fn components_only() -> Self {
        let pods = Self {
            ails: 0,
            crashes: 0,
            deletes: 0,
            cordons: 0,
            leaves: 0,
            unlabels: 0,
            edits: 0,
            refusals: 0,
            ..Self::all()
        };
        Self { group: 0, contests: 0, requests: 0, ..pods }
    }

    /// The database loses nothing.
    pub fn without_lost_commits() -> Self {
        Self { rewinds: 0, empties: 0, ..Self::all() }
    }

    /// The remaining number of actions of this kind.
    pub fn left(&mut self, action: &Action) -> Option<&mut u32> {
        Some(match action {
            Action::TimeOut { .. } | Action::Fail { .. } => &mut self.time_outs,
            Action::Stale { .. } => &mut self.stale,
            Action::CutPath { .. } => &mut self.cuts,
            Action::RelistPods { .. } | Action::RelistGroup { .. } => &mut self.relists,
            Action::Wake { .. } => &mut self.wakes,
            Action::MarkDead { .. } => &mut self.mark_dead,
            Action::Stop { .. } => &mut self.stops,
            Action::Ail { health: Health::Refusing | Health::Hung, .. } => &mut self.ails,
            Action::Crash { .. } => &mut self.crashes,
            Action::Delete { .. } => &mut self.deletes,
            Action::Cordon { .. } => &mut self.cordons,
            Action::Leave { .. } => &mut self.leaves,
            Action::Unlabel { .. } => &mut self.unlabels,
            Action::Relabel { .. } | Action::Restamp { .. } => &mut self.edits,
            Action::Refuse { .. } => &mut self.refusals,
            Action::Rewind { .. } => &mut self.rewinds,
            Action::Empty => &mut self.empties,
            Action::Pause { paused: true } => &mut self.pauses,
            Action::Request => &mut self.requests,
            Action::Delay { .. } | Action::FailBack { .. } | Action::Keep { .. } => &mut self.policies,
            Action::Contest { contested: true } => &mut self.contests,
            Action::DeleteGroup => &mut self.group,
            Action::DatabaseDown => &mut self.outages,
            _ => return None,
        })
    }
}
