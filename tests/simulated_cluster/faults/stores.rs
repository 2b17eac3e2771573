//! Faults of the API server and of the database.

use std::time::Duration;

use super::{Begun, Undo, done, lasts, replicas::set_by};
use crate::{
    api_server::Kind,
    simulation::{Simulation, Storm},
};

pub fn stop_api_server(run: &mut Simulation, _: &'static str) -> Begun {
    let is_orderly = run.random.below(2) == 0;
    lasts(run.api.stop(is_orderly), Undo::Server)
}

pub fn hold_a_watch(run: &mut Simulation, kind: &'static str) -> Begun {
    let watched = watched(run);
    let mut store = run.api.store();
    store.hold(watched, true);
    Begun::Waits(Undo::Hold(Since { kind, watched, revision: store.revision() }))
}

pub fn let_a_watch_lag(run: &mut Simulation, kind: &'static str) -> Begun {
    let watched = watched(run);
    let mut store = run.api.store();
    store.set_lag(watched, Duration::from_secs(2));
    Begun::Waits(Undo::Lag(Since { kind, watched, revision: store.revision() }))
}

pub fn compact(run: &mut Simulation, _: &'static str) -> Begun {
    run.api.store().compact();
    Begun::Done
}

pub fn stop_database(run: &mut Simulation, _: &'static str) -> Begun {
    run.database.stop();
    Begun::Lasts(Undo::Database(run.database.clone()))
}

pub fn restart_database(run: &mut Simulation, _: &'static str) -> Begun {
    run.database.restart();
    Begun::Done
}

/// Someone sets the clock of the database, or it is corrected. It stays so.
pub fn set_clock(run: &mut Simulation, _: &'static str) -> Begun {
    let by = set_by(run);
    run.database.set_clock_by(by);
    Begun::Done
}

pub fn lose_commits(run: &mut Simulation, _: &'static str) -> Begun {
    run.record_terms();
    let commits = run.random.below(4);
    let lost = run.database.fail_over_losing(commits);
    tracing::info!(lost);
    done(lost > 0)
}

/// A copy that lacks the last commits becomes the primary, while some of the replicas still reach the former one, which
/// does not know. Both have the same past.
pub fn two_primaries(run: &mut Simulation, kind: &'static str) -> Begun {
    let commits = run.random.below(4);
    if !run.split_database(commits) {
        return Begun::Nothing;
    }
    Begun::Waits(Undo::TwoPrimaries(kind))
}

pub fn refuse_writes(run: &mut Simulation, _: &'static str) -> Begun {
    run.database.set_read_only(true);
    Begun::Lasts(Undo::Writable(run.database.clone()))
}

pub fn storm(run: &mut Simulation, kind: &'static str, api: bool, database: bool) -> Begun {
    run.set_storm(Storm { kind, api, database });
    Begun::Waits(Undo::Storm)
}

/// Every second write to the API server arrives twice.
pub fn repeat_writes(run: &mut Simulation, kind: &'static str) -> Begun {
    run.repeat_writes(Some(kind));
    Begun::Waits(Undo::Repeats)
}

fn watched(run: &mut Simulation) -> Kind {
    let kinds = [Kind::Pod, Kind::LeaderGroup, Kind::Node, Kind::Lease, Kind::EndpointSlice];
    kinds[run.random.below(kinds.len())]
}

/// Since which revision the watches of a kind of objects have been disturbed, by which fault.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    kind: &'static str,
    pub watched: Kind,
    revision: u64,
}

impl Since {
    /// It took effect if there was something that the watches did not show, or showed late.
    pub fn note(self, run: &Simulation) {
        let store = run.api.store();
        let mut changes = store.since(self.revision);
        if changes.any(|change| change.object().kind == self.watched) {
            run.effects.note(self.kind);
        }
    }
}
