//! The checks themselves: each notices what it is there for.

use leadergroup::{
    api::{PodRef, Role},
    election::Effect,
};

use crate::{
    action::{Action, Faults},
    model::{Model, NAMES},
    next_in_line,
    replica::Replica,
    server::{Call, Granted, Health, Pod},
    settled,
    task::Job,
};

fn active(model: &Model) -> usize {
    let active = model.server.actives()[0].pod.name.clone();
    NAMES.iter().position(|name| *name == active).unwrap()
}

/// A write of a pod's marks as if a replica had sent it.
fn write(model: &mut Model, pod: usize, role: Role, token: i64) {
    let Pod { pod, version, .. } = model.server.pods[NAMES[pod]].clone();
    let stamp = model.server.group.as_ref().map(|group| (group.uid, token));
    model.server.serve(&Call::Label { pod, version, role: Some(role), stamp });
}

fn token(model: &Model) -> i64 {
    model.server.group.as_ref().unwrap().declared.token
}

#[track_caller]
fn violates(model: &Model, invariant: &str) {
    let found = model.server.violation.clone().unwrap_or_default();
    assert!(found.starts_with(invariant), "not {invariant}, but {found:?}");
}

#[test]
fn two_active_pods_are_noticed() {
    let mut model = settled(Faults::all());
    let (pod, token) = (next_in_line(&model), token(&model));
    write(&mut model, pod, Role::Active, token);
    violates(&model, "I1");
}

#[test]
fn a_promotion_of_a_pod_that_is_not_declared_is_noticed() {
    let mut model = settled(Faults::all());
    let (former, next, token) = (active(&model), next_in_line(&model), token(&model));
    model.apply(Action::Ail { pod: former, health: Health::Hung });
    write(&mut model, former, Role::Standby, token);
    assert_eq!(model.server.violation, None, "there is evidence against it");
    write(&mut model, next, Role::Active, token);
    violates(&model, "I2");
}

#[test]
fn a_declaration_without_a_grant_and_one_with_an_old_token_are_noticed() {
    let model = settled(Faults::all());
    let group = model.server.group.clone().unwrap();
    for (more, invariant) in [(1, "I2"), (0, "I3"), (-1, "I3")] {
        let mut model = model.clone();
        let mut next = group.declared.clone();
        next.token += more;
        model.server.serve(&Call::Declare { uid: group.uid, previous: group.declared.clone(), next });
        violates(&model, invariant);
    }
}

#[test]
fn a_late_promotion_is_noticed() {
    let mut model = settled(Faults::all());
    let (former, earlier) = (active(&model), token(&model));
    model.apply(Action::Ail { pod: former, health: Health::Hung });
    model.work();
    let (next, later) = (active(&model), token(&model));
    assert!(next != former && later > earlier);
    model.apply(Action::Ail { pod: next, health: Health::Hung });
    write(&mut model, next, Role::Standby, later);
    assert_eq!(model.server.violation, None, "there is evidence against it");
    write(&mut model, former, Role::Active, earlier);
    violates(&model, "I4");
}

/// Evidence against any pod is over when everything has settled, also if a database has lost commits before.
#[test]
fn a_pod_that_loses_its_role_without_evidence_is_noticed_also_after_lost_commits() {
    for loses in [None, Some(Action::Rewind { steps: 0 }), Some(Action::Empty)] {
        let mut model = settled(Faults::all());
        let failed = active(&model);
        model.apply(Action::Ail { pod: failed, health: Health::Hung });
        model.work();
        if let Some(loses) = loses {
            model.apply(loses);
            model.heal();
        }
        model.apply(Action::Ail { pod: failed, health: Health::Well });
        model.work();
        assert_eq!(model.unsettled(), None, "{loses:?}");
        let (pod, token) = (active(&model), token(&model));
        write(&mut model, pod, Role::Standby, token);
        violates(&model, "I5");
    }
}

/// Otherwise the exploration would merge two states, and miss the one that violates an invariant later.
#[test]
fn states_that_differ_in_what_the_checks_read_are_different() {
    let model = settled(Faults::default());
    let uid = model.uid(0).unwrap();
    let grant = Granted { token: 1_000, id: uuid::Uuid::nil(), owner: uid.clone(), active: None };
    for change in [
        |model: &mut Model, _: &str, grant: &Granted| model.server.ledger.push(grant.clone()),
        |model, uid, _| model.server.declared.push((1, 1_000, None, uid.to_owned())),
        |model, uid, _| assert!(model.server.released.insert(uid.to_owned())),
        |model, uid, _| assert!(model.server.fulfilled.insert(uid.to_owned())),
        |model, uid, _| assert!(model.server.kept.insert(uid.to_owned())),
        |model, uid, _| assert!(model.server.blemished.insert(uid.to_owned())),
        |model, _, _| model.server.forgot = true,
        |model, _, _| model.server.divided = true,
        |model, _, _| model.server.revision += 1,
    ] as [fn(&mut Model, &str, &Granted); 9]
    {
        let mut other = model.clone();
        change(&mut other, &uid, &grant);
        assert_ne!(format!("{model:?}"), format!("{other:?}"));
    }
}

/// Several pods are stripped at the same time, and the first failure ends the strip, as in the operator.
#[test]
fn what_was_sent_of_a_strip_that_failed_may_still_arrive() {
    let mut model = settled(Faults::all());
    let replica = model.replicas.iter().position(Replica::is_owner).unwrap();
    let holder = active(&model);
    for pod in (0..NAMES.len()).filter(|pod| *pod != holder) {
        model.apply(Action::Relabel { pod, role: Role::Active });
    }
    let strips = |model: &Model| {
        let is_strip = |job: &Job| matches!(job, Job::Effect(_, Effect::Strip { .. }));
        model.replicas[replica].tasks.iter().filter(|task| is_strip(&task.job)).count()
    };
    while strips(&model) < 2 {
        model.catch_up_one(replica);
        if strips(&model) < 2 {
            model.apply(Action::Answer { replica, task: 0 });
        }
    }
    let standbys = |model: &Model| model.server.pods.values().filter(|pod| pod.role == Role::Standby).count();
    assert_eq!((strips(&model), standbys(&model)), (2, 0));
    model.apply(Action::TimeOut { replica, task: 0 });
    assert_eq!((strips(&model), model.packets.len(), standbys(&model)), (0, 2, 0));
    model.apply(Action::Arrive { packet: 0 });
    model.apply(Action::Arrive { packet: 0 });
    assert_eq!(standbys(&model), 2);
    model.work();
    assert_eq!(model.unsettled(), None);
}

/// The API server answers a write that a policy refuses like one to another pod of the same name. A read tells.
#[test]
fn a_refused_write_is_told_from_one_to_another_pod_by_a_read() {
    use crate::server::{Answer, Refusal};
    let mut model = settled(Faults::all());
    let pod = next_in_line(&model);
    model.apply(Action::Refuse { pod, refusal: Refusal::Role });
    let Pod { pod, version, .. } = model.server.pods[NAMES[pod]].clone();
    let mut label = |pod: &PodRef, version| {
        let role = Some(Role::Standby);
        model.server.serve(&Call::Label { pod: pod.clone(), version, role, stamp: Some((1, 1_000)) })
    };
    assert!(matches!(label(&pod, version), Answer::Invalid));
    assert!(matches!(label(&pod, version - 1), Answer::Labelled(None)), "versions are compared first");
}
