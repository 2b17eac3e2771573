//! Faults of the operator's replicas.

use jiff::SignedDuration;

use super::{Begun, Undo, lasts};
use crate::{
    balance::busiest_node,
    simulation::{Cut, Lost, Simulation},
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

/// The machine of a replica is suspended: when it goes on, its clock has, too, and its timers have not.
pub fn suspend(run: &mut Simulation, _: &'static str) -> Begun {
    let place = run.any_replica();
    let replica = &mut run.replicas[place];
    lasts(replica.host.suspend(), Undo::Resume(replica.name.clone()))
}

/// Someone sets the time of day of a replica's machine, and later corrects it. It takes effect if the replica writes in
/// the meantime.
pub fn set_wall_clock(run: &mut Simulation, kind: &'static str) -> Begun {
    let place = run.any_replica();
    let by = set_by(run);
    let since = run.api.store().revision();
    let replica = &mut run.replicas[place];
    replica.wall_clock_off = by;
    Begun::Waits(Undo::WallClock { replica: replica.name.clone(), kind, since })
}

/// By how much someone sets a clock, forward or back.
pub fn set_by(run: &mut Simulation) -> SignedDuration {
    let by = [1, 5, 3_600, 24 * 3_600, 30 * 24 * 3_600][run.random.below(5)];
    SignedDuration::from_secs(if run.random.below(2) == 0 { by } else { -by })
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

pub fn cut(run: &mut Simulation, kind: &'static str, api: Lost, database: Lost) -> Begun {
    let place = run.any_replica();
    run.cut(place, Cut { kind, api, database, ..Cut::default() });
    Begun::Waits(Undo::Reach(run.replicas[place].name.clone()))
}
