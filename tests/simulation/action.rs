//! What may happen in the model, and how often.

use crate::server::Health;

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A replica's job gets its next request carried out and answered.
    Answer {
        replica: usize,
        task: usize,
    },
    /// The replica gives up waiting; the request, if it writes, is still on its way.
    TimeOut {
        replica: usize,
        task: usize,
    },
    /// The next request cannot be sent, and nothing happens.
    Fail {
        replica: usize,
        task: usize,
    },
    /// A request takes effect whose sender has stopped waiting, or does no longer exist.
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
    /// Nothing fresh is known of a pod: the replica was paused, or could not send.
    Stale {
        replica: usize,
        pod: usize,
    },
    /// The clock reaches the time that the election asked to be woken at.
    Wake {
        replica: usize,
    },
    /// A heartbeat: registers, finds itself dead, or learns of a failover.
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
    /// A normal exit, with the session closed; or a kill.
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
    /// Somebody takes the role label off, which is allowed.
    Unlabel {
        pod: usize,
    },
    /// The database goes back to an earlier state and another history; replicas follow one by one.
    Rewind {
        steps: usize,
    },
    /// The database is replaced by an empty one.
    Empty,
    /// A replica reaches the present database, no longer the one that was the primary before.
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
    /// Everything, for as long as the schedule is.
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

    /// The pods stay well and the group as it is: whatever fails is a part of the system.
    pub fn components_only() -> Self {
        Self { ails: 0, crashes: 0, deletes: 0, unlabels: 0, group: 0, ..Self::all() }
    }

    /// How many are left of the kind that the action is of.
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
