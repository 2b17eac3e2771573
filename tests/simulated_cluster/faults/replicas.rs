//! Faults of the operator's replicas.

use super::{Begun, Undo, lasts};
use crate::{
    balance::busiest_node,
    simulation::{Cut, Simulation},
};

pub fn kill(run: &mut Simulation, _: &'static str) -> Begun {
    let place = run.any_replica();
    run.kill_replica(place);
    Begun::Done
}

pub fn stop(run: &mut Simulation, _: &'static str) -> Begun {
    let place = run.any_replica();
    let replica = &mut run.replicas[place];
    lasts(replica.host.stop(), Undo::Resume(replica.name.clone()))
}

/// Another one takes its place when the fault is undone.
pub fn ask_to_stop(run: &mut Simulation, _: &'static str) -> Begun {
    let place = run.any_replica();
    let replica = &run.replicas[place];
    let was_asked = replica.is_stopping();
    replica.ask_to_stop();
    lasts(!was_asked, Undo::Resume(replica.name.clone()))
}

/// As in a rollout of the operator: another replica starts, and the former one is asked to stop. Shortly before, the
/// active pods of all groups are deleted. The replica owns as many groups as any other.
pub fn replace(run: &mut Simulation, kind: &'static str) -> Begun {
    let Some(node) = busiest_node(run) else { return Begun::Nothing };
    let mut of_node = run.replicas.iter().filter(|it| it.node == node && !it.is_stopping());
    let Some(name) = of_node.next().map(|it| it.name.clone()) else { return Begun::Nothing };
    run.start_replica(&node);
    let active = run.active_pods();
    let deleted = active.iter().filter(|pod| run.cluster.delete_pod(pod, false)).count();
    tracing::info!(name, deleted, "it is about to be asked to stop");
    Begun::Waits(Undo::Drain { former: name, node, kind })
}

/// A replica starts, and is a peer of the others. But its lists and watches get no answer. Later it sees, and takes the
/// place of the other one on its node.
pub fn join_blind(run: &mut Simulation, kind: &'static str) -> Begun {
    let node = run.any_node();
    let Some(former) = run.replicas.iter().find(|it| it.node == node).map(|it| it.name.clone()) else {
        return Begun::Nothing;
    };
    run.start_replica(&node);
    let place = run.replicas.len() - 1;
    run.cut(place, Cut { kind, watches: true, ..Cut::default() });
    Begun::Waits(Undo::Blind { joined: run.replicas[place].name.clone(), former, node })
}

pub fn cut(run: &mut Simulation, kind: &'static str, api: bool, database: bool) -> Begun {
    let place = run.any_replica();
    run.cut(place, Cut { kind, api, database, ..Cut::default() });
    Begun::Waits(Undo::Reach(run.replicas[place].name.clone()))
}
