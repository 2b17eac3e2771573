//! What puts an end to faults, and for how long the operator may have a reason because of them.

use std::{ops::Range, time::Duration};

use jiff::SignedDuration;
use leadergroup_lock::memory::MemoryDatabase;

use super::stores::Since;
use crate::{
    api_server::Kind,
    cluster::NAMESPACE,
    edits::Edited,
    network::Program,
    services,
    simulation::{Simulation, Storm},
};

/// For how long a request may be carried out: each replica that gets the group lets it wait for 30 s.
const REQUEST: Duration = Duration::from_secs(90);
/// For how long a replica may not see that a node is no longer cordoned: a watch that hangs fails after 30 s, and the
/// next one may hang, too.
const UNSEEN: Duration = Duration::from_mins(1);
/// A replica that is replaced during changes is asked to stop within this part of the time of other faults.
const DURING_CHANGES: u32 = 800;

/// What puts an end to a fault.
#[derive(Clone, Debug)]
pub enum Undo {
    Program(String),
    Power(String),
    Kubelet(String),
    Link(String, String),
    Resume(String),
    Reach(String),
    /// The time of day is corrected.
    WallClock {
        replica: String,
        kind: &'static str,
        since: u64,
    },
    /// A replica is asked to stop, and leaves the other one to its node.
    Drain {
        former: String,
        node: String,
        kind: &'static str,
    },
    /// A replica that joined sees, and the former one of its node leaves.
    Blind {
        joined: String,
        former: String,
        node: String,
    },
    Server,
    Lag(Since),
    Hold(Since),
    Database(MemoryDatabase),
    Writable(MemoryDatabase),
    /// The former database is turned off, and all replicas reach the present one.
    TwoPrimaries(&'static str),
    Storm,
    Repeats,
    Cordon(String),
    Paused(String),
    Requested(String),
    /// Nothing but a look at what came of it.
    RolledOut(String, &'static str),
    Scaled(String, &'static str),
    SilenceTimeout(String),
    /// The agents of a group are turned on again.
    AgentsOff(String),
    /// The lease of a group's agents is as at first.
    Lease(String),
    /// Nothing but a look: the operator corrects it.
    Corrected(Edited),
    /// The same.
    Recreated {
        group: String,
        kind: &'static str,
        since: u64,
    },
    /// A second group is deleted.
    Second {
        second: String,
        kind: &'static str,
    },
    /// The webhooks that stand in the way of changes of this pod.
    Hooks(String),
    Endpoints(services::Disturbed),
}

impl Undo {
    /// Whether a user undoes it through the API server.
    pub fn needs_server(&self) -> bool {
        matches!(
            self,
            Self::Endpoints(_)
                | Self::Second { .. }
                | Self::Cordon(_)
                | Self::Paused(_)
                | Self::SilenceTimeout(_)
                | Self::AgentsOff(_)
                | Self::Lease(_)
        )
    }

    /// For how long the fault lasts, if others would last for this time.
    pub fn lasts(&self, usual: Duration) -> Duration {
        match self {
            Self::Requested(_) => REQUEST,
            Self::Drain { .. } => usual / DURING_CHANGES,
            _ => usual,
        }
    }

    /// Against which pods it is a reason, by UID, and for which changes.
    pub fn counts_against(&self, run: &Simulation) -> (Vec<String>, &'static [&'static str]) {
        const PROBED: &[&str] = &["Silent", "ProbeRefused", "ProgramEnded"];
        const ENDED_PROGRAM: &[&str] = &["ProbeRefused", "ProgramEnded"];
        match self {
            Self::Program(pod) => (run.cluster.uid(pod).map(str::to_owned).into_iter().collect(), PROBED),
            Self::Power(node) => (run.cluster.on_node(node), PROBED),
            // Agents that cannot read end their programs, and say so.
            Self::Kubelet(node) => {
                let mut there = run.cluster.on_node(node);
                let supervised = supervised(run);
                there.retain(|pod| supervised.contains(pod));
                (there, ENDED_PROGRAM)
            }
            Self::Server | Self::Storm => (supervised(run), ENDED_PROGRAM),
            // No program of such a group may run. Its agents say that they are not ready.
            Self::AgentsOff(group) => (run.cluster.of_group(group), ENDED_PROGRAM),
            Self::Link(one, other) => {
                ([run.cluster.on_node(one), run.cluster.on_node(other)].concat(), &["Silent"])
            }
            Self::Cordon(node) => (run.cluster.on_node(node), &["NodeCordoned"]),
            Self::Requested(group) => (run.cluster.of_group(group), &["Switchover"]),
            // It has lost its label, and cannot get it back.
            Self::Hooks(pod) => {
                (run.cluster.uid(pod).map(str::to_owned).into_iter().collect(), &["LabelLost"])
            }
            _ => (Vec::new(), &[]),
        }
    }
}

/// The UIDs of the pods of groups with agents.
fn supervised(run: &Simulation) -> Vec<String> {
    run.cluster.supervised_groups().iter().flat_map(|group| run.cluster.of_group(group)).collect()
}

/// Undoes a fault that was to last until `at`.
pub fn undo(run: &mut Simulation, what: Undo, at: Duration, recorded: Range<usize>) {
    tracing::info!(?what, at = ?run.now, "a fault is undone");
    match &what {
        // A request cannot be taken back, and it is also one to pods that came after it.
        Undo::Requested(group) => {
            let pods = run.cluster.of_group(group);
            run.fault_since(recorded.start, pods, at);
            run.fault_is_over(recorded, at);
        }
        // It counts against pods that came after it, too.
        Undo::AgentsOff(group) => {
            run.fault_since(recorded.start, run.cluster.of_group(group), run.now);
            run.fault_is_over(recorded, run.now);
        }
        Undo::Cordon(_) => run.fault_is_over(recorded, run.now + UNSEEN),
        _ => run.fault_is_over(recorded, run.now),
    }
    end(run, what);
}

fn end(run: &mut Simulation, what: Undo) {
    match what {
        Undo::Requested(_) => {}
        Undo::Program(pod) => {
            run.cluster.set_program(&pod, Program::Serves, run.now);
        }
        Undo::Power(node) => {
            run.cluster.power(&node, true);
            run.resume_replicas_on(&node);
        }
        Undo::Kubelet(node) => {
            run.cluster.connect(&node, true);
        }
        Undo::Link(one, other) => run.network.join(&one, &other),
        Undo::Resume(name) => run.resume_or_replace(&name),
        Undo::Reach(name) => run.reach(&name),
        Undo::Drain { former, node, kind } => run.drain_replica(&former, &node, Some(kind)),
        Undo::Blind { joined, former, node } => {
            run.reach(&joined);
            run.drain_replica(&former, &node, None);
        }
        Undo::Server => run.api.start(),
        Undo::Lag(since) => {
            since.note(run);
            run.api.store().set_lag(since.watched, Duration::ZERO);
        }
        Undo::Hold(since) => {
            since.note(run);
            run.api.store().hold(since.watched, false);
        }
        Undo::Database(database) => database.start(),
        Undo::Storm => run.set_storm(Storm::default()),
        Undo::Repeats => run.repeat_writes(None),
        Undo::Cordon(node) => {
            run.cluster.cordon(&node, false);
        }
        Undo::Paused(group) => {
            run.cluster.pause(&group, false);
        }
        Undo::SilenceTimeout(group) => {
            run.cluster.set_silence_timeout(&group, "5s");
        }
        Undo::AgentsOff(group) | Undo::Lease(group) => {
            run.cluster.set_agents_back(&group);
        }
        Undo::Hooks(_) => run.api.hooks().clear(),
        Undo::Endpoints(disturbed) => disturbed.undo(run),
        Undo::Writable(database) => database.set_read_only(false),
        what => end_and_look(run, what),
    }
}

/// Ends those that have taken effect only if something came of them.
fn end_and_look(run: &mut Simulation, what: Undo) {
    match what {
        Undo::TwoPrimaries(kind) => {
            let both_acted = run.join_databases();
            note_if(run, kind, both_acted);
        }
        Undo::RolledOut(group, kind) => {
            let (old, young) = run.cluster.pods_by_age(&group);
            note_if(run, kind, old == 0 && young > 0);
        }
        Undo::Scaled(group, kind) => {
            note_if(run, kind, run.cluster.pods_by_age(&group) == (0, 0));
            run.cluster.scale(&group, 3);
        }
        Undo::WallClock { replica, kind, since } => {
            let client = format!("{replica}/");
            let has_written = run.api.store().since(since).any(|change| change.by.starts_with(&client));
            note_if(run, kind, has_written);
            for replica in run.replicas.iter_mut().filter(|it| it.name == replica) {
                replica.wall_clock_off = SignedDuration::ZERO;
            }
        }
        Undo::Corrected(edited) => note_if(run, edited.kind, edited.is_corrected(&run.api.store())),
        Undo::Recreated { group, kind, since } => {
            let was_created = {
                let store = run.api.store();
                let mut created = store.since(since).filter(|change| change.old.is_none());
                created.any(|change| {
                    (change.object().kind, &change.object().key.name) == (Kind::LeaderGroup, &group)
                })
            };
            note_if(run, kind, was_created);
        }
        Undo::Second { second, kind } => {
            let was_judged = {
                let store = run.api.store();
                let found = store.get(Kind::LeaderGroup, NAMESPACE, &second);
                found.is_some_and(|group| group.value()["status"]["conditions"].is_array())
            };
            note_if(run, kind, was_judged);
            run.cluster.delete_group(&second);
        }
        _ => {}
    }
}

fn note_if(run: &Simulation, kind: &'static str, took_effect: bool) {
    if took_effect {
        run.effects.note(kind);
    }
}
