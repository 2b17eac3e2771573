//! Faults of single pods.

use super::{Begun, Undo, done, lasts};
use crate::{network::Program, simulation::Simulation};

pub fn behaves(run: &mut Simulation, program: Program) -> Begun {
    let Some(pod) = run.any_pod() else { return Begun::Nothing };
    lasts(run.cluster.set_program(&pod, program, run.now), Undo::Program(pod))
}

pub fn delete(run: &mut Simulation, by_force: bool) -> Begun {
    let pod = run.any_pod();
    done(pod.is_some_and(|pod| run.cluster.delete_pod(&pod, by_force)))
}
