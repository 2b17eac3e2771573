//! What users do to groups, and to what only the operator should write.

use leadergroup::api::{FENCING_ANNOTATION, STAMP_ANNOTATION};
use serde_json::{Value, json};

use super::{Begun, Undo, done, lasts};
use crate::{
    api_server::{Kind, Object},
    cluster::NAMESPACE,
    edits::Edited,
    simulation::Simulation,
};

pub fn request_switchover(run: &mut Simulation, _: &'static str) -> Begun {
    let group = run.any_group();
    lasts(run.cluster.request_switchover(&group), Undo::Requested(group))
}

pub fn pause(run: &mut Simulation, _: &'static str) -> Begun {
    let group = run.any_group();
    lasts(run.cluster.pause(&group, true), Undo::Paused(group))
}

pub fn remove_role(run: &mut Simulation, _: &'static str) -> Begun {
    match run.any_pod() {
        Some(pod) => done(run.cluster.remove_role(&pod)),
        None => Begun::Nothing,
    }
}

/// Someone removes the stamp of a pod, or writes one of a later or an earlier term, of another group, or none at all.
pub fn edit_stamp(run: &mut Simulation, kind: &'static str) -> Begun {
    edit_annotation(run, kind, STAMP_ANNOTATION)
}

/// The same with the fencing token. It may be that of a pod that is not active.
pub fn edit_fencing_token(run: &mut Simulation, kind: &'static str) -> Begun {
    edit_annotation(run, kind, FENCING_ANNOTATION)
}

/// A stamp that is so far ahead is not that of the declared term, which may be ahead of the pod's. The operator could
/// not tell that one from its own.
const AHEAD: i64 = 1_000;

fn edit_annotation(run: &mut Simulation, kind: &'static str, annotation: &'static str) -> Begun {
    let Some(pod) = run.any_pod() else { return Begun::Nothing };
    let found = {
        let store = run.api.store();
        let found = store.get(Kind::Pod, NAMESPACE, &pod);
        found.map(|pod| pod.value()["metadata"]["annotations"][annotation].clone()).unwrap_or_default()
    };
    let text = found.as_str().unwrap_or("9c4e1c9a-0000-4000-8000-000000000000/7");
    let (of, token) = text.rsplit_once('/').unwrap_or((text, "7"));
    let token: i64 = token.parse().unwrap_or(7);
    let edited = match run.random.below(5) {
        0 => None,
        1 => Some(format!("{of}/{}", token + AHEAD)),
        2 => Some(format!("{of}/{}", token - 1)),
        3 => Some(format!("9c4e1c9a-0000-4000-8000-000000000000/{token}")),
        _ => Some("nothing of the kind".to_owned()),
    };
    edit(run, kind, (Kind::Pod, pod.clone()), annotation, |run| {
        run.cluster.annotate(&pod, annotation, edited)
    })
}

/// Someone edits the declaration of a term: removes it, alone or with all of the status, or gives it another grant.
/// With another token the operator would stamp the active pod with that one: it takes the declaration for its own.
pub fn edit_declaration(run: &mut Simulation, kind: &'static str) -> Begun {
    let group = run.any_group();
    let how = run.random.below(3);
    let change = |status: &mut Value| match how {
        0 => status["declaration"] = Value::Null,
        1 => *status = Value::Null,
        _ => status["declaration"]["grant"] = json!("9c4e1c9a-0000-4000-8000-000000000000"),
    };
    let token = run.api.store().get(Kind::LeaderGroup, NAMESPACE, &group).and_then(|it| declared(it));
    // If the database has lost this term, too, nothing is left of its token.
    let declares = token.is_some_and(|token| run.remembers(&group, token));
    let object = (Kind::LeaderGroup, group.clone());
    edit(run, kind, object, "declaration", |run| declares && run.cluster.edit_status(&group, change))
}

/// Someone edits a field that only the operator should write. It takes effect if the operator corrects it.
fn edit(
    run: &mut Simulation,
    kind: &'static str,
    object: (Kind, String),
    field: &'static str,
    edit: impl FnOnce(&Simulation) -> bool,
) -> Begun {
    if !edit(run) {
        return Begun::Nothing;
    }
    let store = run.api.store();
    run.edits.add(store.revision());
    let edited = Edited::of(&store, kind, object, field);
    drop(store);
    Begun::Waits(Undo::Corrected(edited))
}

fn declared(group: &Object) -> Option<i64> {
    group.value()["status"]["declaration"]["token"].as_i64().filter(|token| *token > 0)
}

pub fn change_silence_timeout(run: &mut Simulation, _: &'static str) -> Begun {
    let group = run.any_group();
    let time = ["3s", "8s"][run.random.below(2)];
    lasts(run.cluster.set_silence_timeout(&group, time), Undo::SilenceTimeout(group))
}

/// A user deletes a group, and creates it again when it is gone.
pub fn delete_group(run: &mut Simulation, kind: &'static str) -> Begun {
    let group = run.any_group();
    if !run.api.is_running() || !run.cluster.delete_group(&group) {
        return Begun::Nothing;
    }
    Begun::Waits(Undo::Recreated { group, kind, since: run.api.store().revision() })
}

/// A user creates another group with the same selector, and deletes it later.
pub fn add_second_group(run: &mut Simulation, kind: &'static str) -> Begun {
    let group = run.any_group();
    if !run.api.is_running() {
        return Begun::Nothing;
    }
    match run.cluster.add_second_group(&group) {
        Some(second) => Begun::Waits(Undo::Second { second, kind }),
        None => Begun::Nothing,
    }
}
