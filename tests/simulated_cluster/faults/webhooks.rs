//! Webhooks that stand in the way of the changes of one pod.

use super::{Begun, Undo};
use crate::{
    api_server::{Hook, Kind, Review, Verdict},
    simulation::Simulation,
};

pub fn denies(run: &mut Simulation, kind: &'static str) -> Begun {
    hook(run, kind, || Verdict::Deny(403, "it is forbidden".to_owned()))
}

pub fn fails(run: &mut Simulation, kind: &'static str) -> Begun {
    hook(run, kind, || Verdict::Fail("it is broken".to_owned()))
}

pub fn hangs(run: &mut Simulation, kind: &'static str) -> Begun {
    hook(run, kind, || Verdict::Hang)
}

/// A webhook behaves so towards all changes of one pod. The pod has also lost its role: otherwise the operator would
/// hardly ever write to it in that time.
fn hook(run: &mut Simulation, kind: &'static str, verdict: fn() -> Verdict) -> Begun {
    let Some(pod) = run.any_pod() else { return Begun::Nothing };
    run.cluster.remove_role(&pod);
    let effects = run.effects.clone();
    let barred = pod.clone();
    let review = move |review: &Review<'_>| {
        let concerned = review.request.kind == Kind::Pod && review.request.name == barred;
        if !concerned || !review.verb.writes() {
            return Verdict::Allow;
        }
        effects.note(kind);
        verdict()
    };
    run.api.hooks().push(Hook::webhook("check.example.com", review));
    Begun::Waits(Undo::Hooks(pod))
}
