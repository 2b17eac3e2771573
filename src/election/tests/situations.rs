//! Phases, outcomes and circumstances of every kind that makes a difference, for the test of the table of phases.

use super::{
    programs::{boot, says, supervised},
    *,
};
use crate::{
    api::Run,
    election::{group::Group, refusal::Refusal},
};

fn change(holder: &str, reason: Reason, from: &str) -> Change {
    Change { holder: pod(holder), reason, from: Some(pod(from)), began: NOW }
}

/// Row and declaration in a combination that occurs, and the phases in which it does.
pub(super) struct Known {
    pub(super) row: Row,
    pub(super) declared: Declaration,
    pub(super) phases: Vec<Phase>,
}

/// The first attempt, a repeated one, and one that is to be repeated.
fn attempts() -> [Attempt; 3] {
    [(false, None), (true, None), (true, Some(NOW))]
        .map(|(in_doubt, retry_at)| Attempt { in_doubt, retry_at })
}

fn granting(change: &Change) -> [Phase; 3] {
    let request =
        GrantRequest { expected: 5, floor: 5, holder: change.holder.clone(), id: OWN, reason: change.reason };
    attempts().map(|attempt| Phase::Granting { change: change.clone(), request: request.clone(), attempt })
}

/// a holds a confirmed term, or the lock is free.
pub(super) fn settled_terms() -> Vec<Known> {
    let declared = || declaration(5, Some("a"), &[]);
    let verifying = |certain| Phase::Verifying { holder: pod("a"), reason: Reason::PodNotReady, certain };
    let mut held = vec![
        Phase::Stable,
        Phase::Repairing,
        Phase::Relabelling { holder: pod("a") },
        verifying(false),
        verifying(true),
        Phase::BackingOff { until: NOW },
    ];
    held.extend(attempts().map(Phase::Vacating));
    let reasons = [Reason::Silent, Reason::Switchover, Reason::NodeCordoned, Reason::LabelLost];
    let changes = reasons.map(|reason| change("b", reason, "a"));
    held.extend(changes.iter().cloned().map(Phase::Trying));
    held.extend(changes.iter().flat_map(granting));
    let first = Change { from: None, ..change("b", Reason::FirstHolder, "a") };
    let mut free = vec![Phase::Stable, Phase::Repairing, Phase::Trying(first.clone())];
    free.extend(granting(&first));
    vec![
        Known { row: row(5, Some("a"), true), declared: declared(), phases: held },
        Known { row: row(5, None, true), declared: declared(), phases: free },
        supervised_term(),
    ]
}

/// a holds a confirmed term, and its agent runs a program.
fn supervised_term() -> Known {
    let declared = supervised().declared;
    let change = || change("b", Reason::Switchover, "a");
    let mut phases = vec![Phase::Stable, Phase::Trying(change())];
    for declaring in [None, Some(declared.clone())] {
        phases.extend([NOW, NOW + Duration::from_secs(1)].map(|until| Phase::Stopping {
            change: change(),
            declaring: declaring.clone(),
            until,
        }));
    }
    Known { row: row(5, Some("a"), true), declared, phases }
}

/// The program of b, whose term is declared, waits for the end of the one of a.
fn waiting_term() -> Known {
    let mut row = row(6, Some("b"), false);
    row.pending = vec![pod("a"), pod("b")];
    let (mut declared, row) = own(declaration(6, Some("b"), &["a"]), row);
    let former = supervised().declared.run.expect("it has a program");
    declared.run = Some(Run::uncleared(6, boot("b"), former.lease));
    declared.former = Some((&former).into());
    let change = || change("b", Reason::Silent, "a");
    let mut cleared = declared.clone();
    cleared.run.as_mut().expect("it was set").cleared = true;
    let mut phases = Vec::new();
    for witness in [None, Some("11".to_owned())] {
        phases.push(Phase::Stripping { change: change(), witness: witness.clone() });
        for declaring in [None, Some(cleared.clone())] {
            phases.push(Phase::Clearing { change: change(), witness: witness.clone(), declaring });
        }
    }
    Known { row, declared, phases }
}

/// b was granted a term after a, which is not confirmed; by this replica or by another one.
pub(super) fn unfinished_terms() -> Vec<Known> {
    let mut all = Vec::new();
    for (is_declared, is_own) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut row = row(6, Some("b"), false);
        row.pending = vec![pod("a"), pod("b")];
        let declared = if is_declared { declaration(6, Some("b"), &["a"]) } else { settled().declared };
        let (declared, row) = match (is_own, is_declared) {
            (true, true) => own(declared, row),
            (true, false) => (declared, own(Declaration::default(), row).1),
            (false, _) => (declared, row),
        };
        let failing = Reason::PodNotReady;
        let mut phases: Vec<Phase> = [NOW, NOW + Duration::from_secs(1)]
            .map(|until| Phase::Resuming { holder: pod("b"), until })
            .into();
        phases.extend([false, true].map(|certain| Phase::Verifying {
            holder: pod("b"),
            reason: failing,
            certain,
        }));
        phases.push(Phase::Trying(change("c", Reason::Silent, "a")));
        phases.extend(granting(&change("c", Reason::Silent, "a")));
        phases.extend(attempts().map(Phase::Vacating));
        let change = || change("b", Reason::Silent, "a");
        let next = declaration(6, Some("b"), &["a"]);
        if is_own && is_declared {
            let witness = || Some("11".to_owned());
            phases.push(Phase::Stripping { change: change(), witness: witness() });
            phases.push(Phase::Stripping { change: change(), witness: None });
            phases.extend([0, 8].map(|conflicts| Phase::Promoting { change: change(), conflicts }));
            phases.push(Phase::Rechecking { change: change(), conflicts: 0 });
            phases.extend(telling());
            phases.extend([None, Some(NOW)].map(|retry_at| Phase::Confirming { change: change(), retry_at }));
        } else if is_own {
            phases.push(Phase::Fencing(change()));
            phases.push(Phase::Declaring { change: change(), next, witness: None });
        }
        all.push(Known { row, declared, phases });
    }
    all.push(waiting_term());
    // c is to follow b, whose term was declared, and perhaps carried out. Or b itself is to have a new term.
    for holder in ["b", "c"] {
        let mut row = row(7, Some(holder), false);
        row.pending = vec![pod("a"), pod("b"), pod(holder)];
        let declared = declaration(6, Some("b"), &["a"]);
        let phases = vec![Phase::Fencing(change(holder, Reason::Silent, "a"))];
        all.push(Known { row, declared, phases });
    }
    all
}

fn telling() -> Vec<Phase> {
    let mut phases = Vec::new();
    for (role, witness) in
        [(Role::Standby, None), (Role::Active, None), (Role::Active, Some("11".to_owned()))]
    {
        for reason in [Reason::Silent, Reason::Switchover] {
            let (change, witness) = (change("b", reason, "a"), witness.clone());
            phases.push(Phase::Telling { change, witness, role });
        }
    }
    phases
}

/// The row is behind the declaration.
pub(super) fn lost_commits() -> Known {
    let row = Row { token: 4, pending: vec![pod("c")], ..Row::default() };
    Known { row, declared: settled().declared, phases: vec![Phase::Stable, Phase::Regaining] }
}

pub(super) fn retirements() -> Known {
    let mut phases = vec![Phase::Observing, Phase::Retired];
    for step in [Removal::Tombstone, Removal::Labels, Removal::Finalizer] {
        for give_up_at in [None, Some(NOW)] {
            let begun = Retirement::at(step);
            phases.push(Phase::Retiring(Retirement { give_up_at, labels_by: give_up_at, ..begun }));
        }
    }
    Known { row: row(5, Some("a"), true), declared: settled().declared, phases }
}

/// What has happened before.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Past {
    Nothing,
    /// The API server has refused to change any pod just now, or long ago.
    RefusedNow,
    RefusedBefore,
    /// b was granted a term, and nothing was written under it.
    Unused,
    /// The row was behind just now.
    Regained,
    /// The API server would let b be made active.
    Accepted,
}

impl Past {
    const ALL: [Self; 5] =
        [Self::Nothing, Self::RefusedNow, Self::RefusedBefore, Self::Unused, Self::Regained];

    /// A group with this past and this knowledge, which has evidence against its holder.
    pub(super) fn group(self, known: &Known, world: &World) -> Group {
        let mut group = Group::new(world.clone());
        (group.known.row, group.known.declared) = (known.row.clone(), known.declared.clone());
        (group.calls.seed, group.calls.last) = (OWN.as_u128(), 1);
        group.delays.lost = known.row.holder.as_ref().map(|holder| pacing::Lost {
            uid: holder.uid.clone(),
            since: NOW,
            down: NOW,
        });
        match self {
            Self::Nothing => {}
            Self::RefusedNow => group.refusals.set_time(NOW),
            Self::RefusedBefore => group.refusals.set_time(Duration::ZERO),
            Self::Unused => group.unused.granted(OWN.to_string(), "uid-b", true),
            Self::Accepted => {
                group.trials.accepted = Some(("uid-b".to_owned(), NOW + Duration::from_secs(1)));
            }
            Self::Regained => group.pacing.regains = NOW + Duration::from_secs(1),
        }
        if matches!(self, Self::RefusedNow | Self::RefusedBefore) {
            for member in &world.members {
                group.refusals.promotion(member, Refusal::by_api_server("a policy".to_owned()));
            }
        }
        group.refusals.set_time(NOW);
        group.see_programs(NOW);
        group
    }
}

/// Pods and circumstances of every kind that makes a difference, and what has happened before.
pub(super) fn worlds() -> Vec<(World, Past)> {
    let seen = |name, role, verdict, stamp: Option<i64>| {
        let stamped_by_us = stamp.is_some();
        Some(Member { stamp, stamped_by_us, ..member(name, role, verdict) })
    };
    let gone = Verdict::Ended(Reason::PodDeleted);
    let a = [
        seen("a", Role::Active, Verdict::Eligible, Some(5)),
        seen("a", Role::Active, Verdict::Silent, Some(5)),
        seen("a", Role::Active, Verdict::Failing(Reason::PodNotReady), Some(5)),
        seen("a", Role::Standby, Verdict::Eligible, Some(5)),
        seen("a", Role::Standby, gone, Some(5)),
        None,
    ];
    let b = [
        seen("b", Role::Standby, Verdict::Eligible, Some(5)),
        seen("b", Role::Standby, Verdict::Eligible, Some(6)),
        seen("b", Role::Standby, Verdict::Unknown, Some(5)),
        seen("b", Role::Standby, Verdict::Silent, Some(5)),
        seen("b", Role::None, Verdict::Eligible, None),
        seen("b", Role::Active, Verdict::Eligible, Some(6)),
        seen("b", Role::Active, Verdict::Eligible, Some(9)),
        None,
    ];
    let c = |stamp| seen("c", Role::Standby, Verdict::Eligible, stamp);
    let circumstances = [
        |world: &mut World| world.policy.paused = true,
        |world: &mut World| world.obstacle = Some(Reason::SelectedByOtherGroup),
        |world: &mut World| world.deleting = true,
        |world: &mut World| (world.deleting, world.lock_away) = (true, true),
        |world: &mut World| world.declared = declaration(9, Some("c"), &[]),
        |world: &mut World| with_agents(world, false),
        |world: &mut World| with_agents(world, true),
        |world: &mut World| {
            let abort = Some(crate::api::OnHookFailure::Abort);
            world.policy.hooks = HookPolicy { promote: abort, demote: abort };
        },
        |world: &mut World| {
            with_agents(world, false);
            world.members.iter_mut().for_each(|member| member.leaving = member.pod.name == "a");
        },
    ];
    let mut all = Vec::new();
    for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
        let with = |c: &Option<Member>| World {
            members: [a, b, c].into_iter().flatten().cloned().collect(),
            ..World::default()
        };
        for c in [c(Some(5)), c(None), None] {
            all.extend(Past::ALL.map(|past| (with(&c), past)));
        }
        for change in circumstances {
            let mut world = with(&c(Some(5)));
            change(&mut world);
            all.extend([Past::Nothing, Past::Accepted].map(|past| (world.clone(), past)));
        }
    }
    all
}

/// The pods have agents. `over` says whether that of a has ended its program.
fn with_agents(world: &mut World, over: bool) {
    world.policy.agent = supervised().policy.agent;
    for member in &mut world.members {
        let idle = member.pod.name != "a" || over;
        member.agent = Some(says(&member.pod.name, 6, idle));
    }
}

/// Outcomes of every kind, with the data that makes a difference, that the phase may have.
pub(super) fn outcomes(phase: &Phase, known: &Known) -> Vec<Outcome> {
    let mut all: Vec<Outcome> =
        [Rejection::NotOwner, Rejection::Outdated, Rejection::GroupGone].map(Outcome::Rejected).into();
    all.extend([Outcome::Failed, Outcome::Unknown]);
    let refused = || "a policy".to_owned();
    let (row, declared) = (|| Some(known.row.clone()), || Some(known.declared.clone()));
    let rechecked = || {
        let version = || Some("12".to_owned());
        [
            Outcome::Rechecked { version: version(), declared: declared(), row: row() },
            Outcome::Rechecked { version: version(), declared: None, row: row() },
            Outcome::Rechecked { version: None, declared: declared(), row: row() },
        ]
    };
    match phase {
        Phase::Reading => {
            all.extend(
                [(row(), declared()), (None, None), (row(), None)]
                    .map(|(row, declared)| Outcome::Read { row, declared }),
            );
        }
        Phase::Verifying { .. } | Phase::Relabelling { .. } | Phase::Regaining => {
            all.extend([None, Some(Reason::PodDeleted), Some(Reason::PodNotReady)].map(Outcome::Verified));
        }
        Phase::Trying(change) => {
            all.extend([Outcome::Accepted, Outcome::Refused(refused())]);
            // Only before a planned change the holder is tried as well.
            all.extend(change.reason.is_planned().then(|| Outcome::HolderRefused(refused())));
        }
        Phase::Granting { .. } => all.push(Outcome::Granted { token: known.row.token + 1 }),
        Phase::Fencing(_) => {
            all.extend([Outcome::Stripped, Outcome::Promoted, Outcome::Stamped(Vec::new())]);
            all.extend([Outcome::Conflict, Outcome::Refused(refused())]);
            all.extend(rechecked());
        }
        Phase::Declaring { .. } | Phase::Stopping { .. } | Phase::Clearing { .. } => {
            all.push(Outcome::Declared);
        }
        Phase::Stripping { .. } | Phase::Repairing => all.push(Outcome::Stripped),
        Phase::Telling { .. } => {
            all.push(Outcome::Told(Vec::new()));
            all.extend(["a", "b"].map(|name| Outcome::Told(vec![(pod(name), refused())])));
        }
        Phase::Promoting { .. } => {
            all.extend([Outcome::Promoted, Outcome::Conflict, Outcome::Refused(refused())]);
        }
        Phase::Rechecking { .. } => all.extend(rechecked()),
        Phase::Confirming { .. } => all.push(Outcome::Confirmed),
        Phase::Vacating(_) => all.push(Outcome::Vacated),
        Phase::Retiring(Retirement { step, .. }) => match step {
            Removal::Tombstone => all.push(Outcome::Tombstoned),
            Removal::Labels => all.extend([Outcome::Cleared, Outcome::ClearRefused]),
            Removal::Finalizer => all.push(Outcome::Unfinalized),
        },
        Phase::Observing
        | Phase::BackingOff { .. }
        | Phase::Resuming { .. }
        | Phase::Stable
        | Phase::Retired => {}
    }
    all
}
