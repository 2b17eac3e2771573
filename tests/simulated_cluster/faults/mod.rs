//! What goes wrong in a run: the kinds of faults, by subject. [`plan`] decides which of them begin when, and [`undo`]
//! puts an end to them.

mod agents;
mod nodes;
pub mod plan;
mod programs;
mod replicas;
mod stores;
mod undo;
mod users;
mod webhooks;
mod workloads;

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    agents::Still,
    network::Program,
    services,
    simulation::{Lost, Simulation},
};
pub use undo::{Undo, undo};

/// What came of a fault.
#[derive(Debug)]
pub enum Begun {
    /// There was nothing to disturb, or it is disturbed already.
    Nothing,
    /// It has taken effect, and is over or stays.
    Done,
    /// It has taken effect, and lasts.
    Lasts(Undo),
    /// It lasts, and takes effect on what meets it: that notes it in [`Effects`].
    Waits(Undo),
}

/// A kind of faults.
struct Fault {
    name: &'static str,
    begin: fn(&mut Simulation, &'static str) -> Begun,
}

/// How often the faults of each kind took effect, by the kinds' names. Clones are the same.
#[derive(Clone, Default)]
pub struct Effects(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Effects {
    /// A fault of this kind has taken effect.
    pub fn note(&self, kind: &'static str) {
        *self.0.lock().entry(kind).or_default() += 1;
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u32> {
        self.0.lock().clone()
    }
}

/// The names of all kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

const fn fault(name: &'static str, begin: fn(&mut Simulation, &'static str) -> Begun) -> Fault {
    Fault { name, begin }
}

const KINDS: &[Fault] = &[
    fault("a program hangs", |run, _| programs::behaves(run, Program::Hangs)),
    fault("a program fails", |run, _| programs::behaves(run, Program::Fails)),
    fault("a program ends", |run, _| programs::behaves(run, Program::Ended)),
    fault("a pod is deleted", |run, _| programs::delete(run, false)),
    fault("a pod is deleted by force", |run, _| programs::delete(run, true)),
    fault("an agent is killed", agents::kill),
    fault("a network process stands still", |run, _| agents::stand_still(run, Still::Network)),
    fault("an agent and its program stand still", |run, _| agents::stand_still(run, Still::All)),
    fault("a program under an agent ends", agents::end_program),
    fault("a program ignores SIGTERM", agents::delete_stubborn),
    fault("a node is lost, and its pod deleted by force", agents::lose_node),
    fault("agents are turned off", agents::turn_off),
    fault("a lease is changed", agents::change_lease),
    fault("a node is frozen", nodes::freeze),
    fault("a node is suspended", nodes::suspend),
    fault("a kubelet is cut off", nodes::cut_kubelet_off),
    fault("two nodes are cut off from each other", nodes::cut),
    fault("a node is cordoned", nodes::cordon),
    fault("a node is drained", nodes::drain),
    fault("a rollout that adds pods first", |run, kind| workloads::roll_out(run, kind, true)),
    fault("a rollout that deletes pods first", |run, kind| workloads::roll_out(run, kind, false)),
    fault("a workload is scaled to zero", workloads::scale_to_zero),
    fault("a replica is killed", replicas::kill),
    fault("a replica is stopped", replicas::stop),
    fault("the machine of a replica is suspended", replicas::suspend),
    fault("the time of day of a replica is set", replicas::set_wall_clock),
    fault("a replica is asked to stop", replicas::ask_to_stop),
    fault("a replica is replaced during changes", replicas::replace),
    fault("a replica joins and sees nothing", replicas::join_blind),
    fault("a replica does not reach the API server", |run, kind| {
        replicas::cut(run, kind, Lost::All, Lost::None)
    }),
    fault("requests of a replica to the API server are lost", |run, kind| {
        replicas::cut(run, kind, Lost::Requests, Lost::None)
    }),
    fault("answers of the API server to a replica are lost", |run, kind| {
        replicas::cut(run, kind, Lost::Answers, Lost::None)
    }),
    fault("a replica does not reach the database", |run, kind| {
        replicas::cut(run, kind, Lost::None, Lost::All)
    }),
    fault("requests of a replica to the database are lost", |run, kind| {
        replicas::cut(run, kind, Lost::None, Lost::Requests)
    }),
    fault("answers of the database to a replica are lost", |run, kind| {
        replicas::cut(run, kind, Lost::None, Lost::Answers)
    }),
    fault("a replica reaches neither", |run, kind| replicas::cut(run, kind, Lost::All, Lost::All)),
    fault("the API server is stopped", stores::stop_api_server),
    fault("a watch shows nothing", stores::hold_a_watch),
    fault("a watch lags", stores::let_a_watch_lag),
    fault("compaction", stores::compact),
    fault("the database is stopped", stores::stop_database),
    fault("the database is restarted", stores::restart_database),
    fault("the database fails over and loses commits", stores::lose_commits),
    fault("two databases act as primary", stores::two_primaries),
    fault("the clock of the database is set", stores::set_clock),
    fault("the database is read-only", stores::refuse_writes),
    fault("calls to the API server fail", |run, kind| stores::storm(run, kind, true, false)),
    fault("calls to the database fail", |run, kind| stores::storm(run, kind, false, true)),
    fault("calls to both fail", |run, kind| stores::storm(run, kind, true, true)),
    fault("writes to the API server are repeated", stores::repeat_writes),
    fault("a switchover is requested", users::request_switchover),
    fault("a group is paused", users::pause),
    fault("a role is removed", users::remove_role),
    fault("a stamp is edited", users::edit_stamp),
    fault("a fencing token is edited", users::edit_fencing_token),
    fault("a declaration is edited", users::edit_declaration),
    fault("a silence timeout is changed", users::change_silence_timeout),
    fault("a group is deleted and created again", users::delete_group),
    fault("a second group selects the pods", users::add_second_group),
    fault("a webhook denies", webhooks::denies),
    fault("a webhook fails", webhooks::fails),
    fault("a webhook hangs", webhooks::hangs),
    fault("a selector is edited", services::edit_selector),
    fault("a foreign slice", services::add_foreign_slice),
    fault("Endpoints are copied", services::add_endpoints),
    fault("a webhook refuses slices", services::refuse),
    fault("answers to writes of slices are lost", services::lose_answers),
];

fn done(took_effect: bool) -> Begun {
    if took_effect { Begun::Done } else { Begun::Nothing }
}

fn lasts(took_effect: bool, undo: Undo) -> Begun {
    if took_effect { Begun::Lasts(undo) } else { Begun::Nothing }
}

fn waits(is_new: bool, undo: Undo) -> Begun {
    if is_new { Begun::Waits(undo) } else { Begun::Nothing }
}
