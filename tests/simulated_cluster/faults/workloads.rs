//! What users do to the Deployments of the groups.

use super::{Begun, Undo};
use crate::simulation::Simulation;

/// A user changes the template of the pods. An active pod of a former one may be replaced from then on, as long as it
/// is there.
pub fn roll_out(run: &mut Simulation, kind: &'static str, surges: bool) -> Begun {
    let group = run.any_group();
    let old = run.cluster.of_group(&group);
    if old.is_empty() || !run.cluster.roll_out(&group, surges) {
        return Begun::Nothing;
    }
    run.fault(old, &["Rollout"]);
    Begun::Waits(Undo::RolledOut(group, kind))
}

/// A user scales a Deployment to no pod, and later to as many as before.
pub fn scale_to_zero(run: &mut Simulation, kind: &'static str) -> Begun {
    let group = run.any_group();
    if !run.cluster.scale(&group, 0) {
        return Begun::Nothing;
    }
    Begun::Waits(Undo::Scaled(group, kind))
}
