//! The plan of `leadergroup explain`.

use super::*;

/// What the plan does for a, b and c, in words.
fn planned(world: &World, row: Row) -> (Vec<&'static str>, Option<String>, Rest) {
    let declared = world.declared.clone();
    let plan = Plan::new(world, row, declared, |_| Some(Reason::PodDeleted), NOW);
    let steps = plan.steps.iter().map(|effect| match effect {
        Effect::Verify(_) => "verify",
        Effect::Grant(_) => "grant",
        Effect::Declare { .. } => "declare",
        Effect::Strip { .. } => "strip",
        Effect::Promote { .. } => "promote",
        Effect::Confirm { .. } => "confirm",
        Effect::Vacate { .. } => "vacate",
        Effect::Stamp { .. } => "stamp",
        Effect::Tombstone => "tombstone",
        Effect::Clear { .. } => "clear",
        Effect::Unfinalize => "unfinalize",
        Effect::Recheck(_) => "recheck",
        other => panic!("{other:?}"),
    });
    let to = plan.change.and_then(|change| change.to).map(|pod| pod.name);
    (steps.collect(), to, plan.rest)
}

#[test]
fn a_plan_ends_where_a_program_has_to_be_over_first() {
    let (steps, to, rest) = planned(&programs::silent(), row(5, Some("a"), true));
    let limit = Duration::from_millis(11_600);
    assert_eq!(
        (&steps[..], to, rest),
        (&["grant", "declare", "strip"][..], None, Rest::FormerProgram { limit })
    );
}

#[test]
fn a_plan_is_what_the_group_would_do() {
    let held = || row(5, Some("a"), true);
    let change = ["grant", "declare", "strip", "promote", "confirm"];
    assert_eq!(planned(&settled(), held()), (vec![], None, Rest::HolderWorks));
    let unproven = with(Verdict::Unknown);
    assert_eq!(planned(&unproven, held()), (vec![], None, Rest::HolderUnproven));

    let (steps, to, rest) = planned(&with(Verdict::Silent), held());
    assert_eq!((&steps[..5], to.as_deref(), rest), (&change[..], Some("b"), Rest::HolderWorks));
    let (steps, to, _) = planned(&with(Verdict::Ended(Reason::PodFinished)), held());
    assert_eq!((steps[0], &steps[1..6], to.as_deref()), ("verify", &change[..], Some("b")));

    let mut alone = with(Verdict::Silent);
    alone.members.truncate(1);
    let against = Some(Reason::Silent);
    assert_eq!(planned(&alone, held()), (vec![], None, Rest::NoCandidate { against }));
    let mut paused = with(Verdict::Silent);
    paused.policy.paused = true;
    assert_eq!(planned(&paused, held()), (vec![], None, Rest::Paused { against }));
    let mut delayed = with(Verdict::Silent);
    delayed.policy.delay = Duration::from_secs(9);
    let rest = Rest::Waiting { remaining: Duration::from_secs(9) };
    assert_eq!(planned(&delayed, held()), (vec![], None, rest));
    let mut blocked = with(Verdict::Silent);
    blocked.obstacle = Some(Reason::InvalidSpec);
    assert_eq!(planned(&blocked, held()), (vec![], None, Rest::Blocked(Reason::InvalidSpec)));
    let mut deleting = settled();
    deleting.deleting = true;
    let steps = vec!["tombstone", "clear", "unfinalize"];
    assert_eq!(planned(&deleting, held()), (steps, None, Rest::NotOwned));
}

#[test]
fn a_plan_finishes_what_was_begun() {
    let mut world = with(Verdict::Silent);
    world.declared = declaration(6, Some("b"), &["a"]);
    let (steps, to, rest) = planned(&world, row(6, Some("b"), false));
    let expected = ["grant", "stamp", "declare", "strip", "promote", "confirm"];
    assert_eq!(steps[..6], expected, "{steps:?}");
    assert_eq!((to.as_deref(), rest), (Some("b"), Rest::HolderWorks));
    // A pod that is active already gets the stamp of the unfinished term before the next one is declared.
    let mut world = settled();
    world.declared = declaration(6, Some("a"), &["b"]);
    let (steps, to, rest) = planned(&world, row(6, Some("a"), false));
    assert_eq!(steps[..5], ["grant", "stamp", "strip", "recheck", "promote"], "{steps:?}");
    assert_eq!((to.as_deref(), rest), (Some("a"), Rest::HolderWorks));
}
