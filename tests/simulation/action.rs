//! The actions of the model, and how often each may happen.

use crate::server::Health;

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
    /// The next request cannot be sent.
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
    Probe {
        replica: usize,
        pod: usize,
    },
    /// The evidence about a pod becomes stale: the replica was paused, or could not send.
    Stale {
        replica: usize,
        pod: usize,
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
    /// A user removes the role label, which is allowed.
    Unlabel {
        pod: usize,
    },
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
    pub wakes: u32,
    pub mark_dead: u32,
    pub stops: u32,
    pub ails: u32,
    pub crashes: u32,
    pub deletes: u32,
    pub unlabels: u32,
    pub rewinds: u32,
    pub empties: u32,
    pub pauses: u32,
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
            wakes: many,
            mark_dead: many,
            stops: many,
            ails: many,
            crashes: many,
            deletes: many,
            unlabels: many,
            rewinds: many,
            empties: many,
            pauses: many,
            group: many,
            outages: many,
        }
    }

    /// The pods stay healthy and the group unchanged: only parts of the system fail.
    pub fn components_only() -> Self {
        Self { ails: 0, crashes: 0, deletes: 0, unlabels: 0, group: 0, ..Self::all() }
    }

    /// The remaining number of actions of this kind.
    pub fn left(&mut self, action: &Action) -> Option<&mut u32> {
        Some(match action {
            Action::TimeOut { .. } | Action::Fail { .. } => &mut self.time_outs,
            Action::Stale { .. } => &mut self.stale,
            Action::Wake { .. } => &mut self.wakes,
            Action::MarkDead { .. } => &mut self.mark_dead,
            Action::Stop { .. } => &mut self.stops,
            Action::Ail { health: Health::Refusing | Health::Hung, .. } => &mut self.ails,
            Action::Crash { .. } => &mut self.crashes,
            Action::Delete { .. } => &mut self.deletes,
            Action::Unlabel { .. } => &mut self.unlabels,
            Action::Rewind { .. } => &mut self.rewinds,
            Action::Empty => &mut self.empties,
            Action::Pause { paused: true } => &mut self.pauses,
            Action::DeleteGroup => &mut self.group,
            Action::DatabaseDown => &mut self.outages,
            _ => return None,
        })
    }
}
