//! Faults of agents and of the programs that they run. Most concern the pod whose program runs.

use super::{Begun, Undo, done, lasts};
use crate::{agents::Still, network::Program, simulation::Simulation};

/// Any pod with an agent: in three of four cases one whose program runs.
fn any(run: &mut Simulation) -> Option<String> {
    let pods = run.cluster.supervised_pods();
    let at_work: Vec<&String> = pods.iter().filter(|(_, works)| *works).map(|(name, _)| name).collect();
    let all: Vec<&String> = pods.iter().map(|(name, _)| name).collect();
    let of = if run.random.below(4) > 0 && !at_work.is_empty() { at_work } else { all };
    of.get(run.random.below(of.len())).map(|name| (*name).clone())
}

/// One whose program runs.
fn at_work(run: &mut Simulation) -> Option<String> {
    let pods = run.cluster.supervised_pods();
    let of: Vec<String> = pods.into_iter().filter(|(_, works)| *works).map(|(name, _)| name).collect();
    of.get(run.random.below(of.len())).cloned()
}

/// Any group whose pods have agents.
fn any_group(run: &mut Simulation) -> Option<String> {
    let groups = run.cluster.supervised_groups().to_vec();
    groups.get(run.random.below(groups.len())).cloned()
}

/// All processes of the container are killed, and the kubelet starts it again.
pub fn kill(run: &mut Simulation, _: &'static str) -> Begun {
    let Some(pod) = any(run) else { return Begun::Nothing };
    lasts(run.cluster.set_program(&pod, Program::Ended, run.now), Undo::Program(pod))
}

/// Processes of the container stand still for a while.
pub fn stand_still(run: &mut Simulation, still: Still) -> Begun {
    let Some(pod) = any(run) else { return Begun::Nothing };
    lasts(run.cluster.stand_still(&pod, still, run.now), Undo::Program(pod))
}

/// A program ends by itself, and its container with it.
pub fn end_program(run: &mut Simulation, _: &'static str) -> Begun {
    let Some(pod) = at_work(run) else { return Begun::Nothing };
    lasts(run.cluster.end_program(&pod, run.now), Undo::Program(pod))
}

/// A pod is deleted whose program ignores SIGTERM.
pub fn delete_stubborn(run: &mut Simulation, _: &'static str) -> Begun {
    let Some(pod) = at_work(run) else { return Begun::Nothing };
    run.cluster.ignore_sigterm(&pod);
    done(run.cluster.delete_pod(&pod, false))
}

/// The node of a pod is cut off from everything, and somebody deletes the pod by force. Its program runs on.
pub fn lose_node(run: &mut Simulation, _: &'static str) -> Begun {
    let Some((pod, node)) = at_work(run).and_then(|pod| Some((pod.clone(), run.cluster.node_of(&pod)?)))
    else {
        return Begun::Nothing;
    };
    let was_on = run.cluster.power(&node, false);
    run.stop_replicas_on(&node);
    run.cluster.delete_pod(&pod, true);
    lasts(was_on, Undo::Power(node))
}

/// A user turns the agents of a group off, and on again.
pub fn turn_off(run: &mut Simulation, _: &'static str) -> Begun {
    let Some(group) = any_group(run) else { return Begun::Nothing };
    lasts(run.cluster.set_agents(&group, None), Undo::AgentsOff(group))
}

/// A user sets another lease, which counts from the next term on.
pub fn change_lease(run: &mut Simulation, _: &'static str) -> Begun {
    let Some(group) = any_group(run) else { return Begun::Nothing };
    let lease = ["2s", "6s"][run.random.below(2)];
    lasts(run.cluster.set_agents(&group, Some(lease)), Undo::Lease(group))
}
