//! Faults of nodes and of the paths between them.

use super::{Begun, Undo, lasts, waits};
use crate::simulation::Simulation;

pub fn freeze(run: &mut Simulation, _: &'static str) -> Begun {
    let node = run.any_node();
    let was_on = run.cluster.power(&node, false);
    run.stop_replicas_on(&node);
    lasts(was_on, Undo::Power(node))
}

/// As a node that is frozen. But its clocks that stand still during suspend do not show that time afterwards.
pub fn suspend(run: &mut Simulation, _: &'static str) -> Begun {
    let node = run.any_node();
    let was_on = run.cluster.power(&node, false);
    run.suspend_replicas_on(&node);
    lasts(was_on, Undo::Power(node))
}

pub fn cut_kubelet_off(run: &mut Simulation, _: &'static str) -> Begun {
    let node = run.any_node();
    lasts(run.cluster.connect(&node, false), Undo::Kubelet(node))
}

pub fn cut(run: &mut Simulation, kind: &'static str) -> Begun {
    let nodes = run.cluster.nodes();
    let one = run.random.below(nodes.len());
    let other = (one + 1 + run.random.below(nodes.len() - 1)) % nodes.len();
    let (one, other) = (nodes[one].clone(), nodes[other].clone());
    waits(run.network.cut(&one, &other, kind), Undo::Link(one, other))
}

pub fn cordon(run: &mut Simulation, _: &'static str) -> Begun {
    let node = run.any_node();
    lasts(run.cluster.cordon(&node, true), Undo::Cordon(node))
}

/// A node is cordoned, and all its pods are evicted.
pub fn drain(run: &mut Simulation, _: &'static str) -> Begun {
    let node = run.any_node();
    let has_evicted = run.cluster.drain(&node);
    let cordon = Undo::Cordon(node);
    if has_evicted { Begun::Lasts(cordon) } else { Begun::Waits(cordon) }
}
