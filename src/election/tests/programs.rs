//! The programs that agents run.

use super::*;
use crate::api::{Boot, Former, FormerRun, LONGEST_LEASE, Promise, Promised, Run};

const LEASE: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn boot(name: &str) -> Boot {
    Boot::new([name.as_bytes()[0]; 32])
}

/// What the agent of this pod says: nothing starts below the floor.
pub(super) fn says(name: &str, floor: i64, idle: bool) -> Promised {
    Promise { boot: boot(name), floor, idle }.into()
}

fn cleared(token: i64, name: &str) -> Run {
    Run { cleared: true, ..Run::uncleared(token, boot(name), LEASE) }
}

/// a is active with token 5, and its program runs.
pub(super) fn supervised() -> World {
    let mut world = settled();
    world.policy.agent = Some(AgentPolicy { lease: LEASE, stop_timeout: STOP_TIMEOUT });
    world.declared.run = Some(cleared(5, "a"));
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        world.members[at].agent = Some(says(name, 5, name != "a"));
    }
    world
}

pub(super) fn silent() -> World {
    let mut world = supervised();
    world.members[0].verdict = Verdict::Silent;
    world
}

fn requested() -> World {
    let switchover = Some(SwitchoverRequest { id: "one".to_owned(), to: Some("b".to_owned()) });
    World { switchover, ..supervised() }
}

/// The program of a has ended, by the word of its agent.
fn over(mut world: World) -> World {
    world.members[0].agent = Some(says("a", 6, true));
    world
}

fn run_of(declaration: &Declaration) -> Run {
    declaration.run.clone().expect("a program")
}

impl Case {
    /// The declaration that is being made.
    fn next(&self) -> Declaration {
        match self.effect() {
            Effect::Declare { previous, next } => {
                assert_ne!(previous, next);
                next
            }
            other => panic!("not a declaration: {other:?}"),
        }
    }

    /// Grants term 6 and declares it. Returns the declaration.
    fn declared(&mut self) -> Declaration {
        self.grant();
        self.answer(Outcome::Granted { token: 6 });
        let next = self.next();
        self.answer(Outcome::Declared);
        next
    }

    /// Answers the read of a declaration that seems to leave its holder without a program, if it is read.
    fn reads_again(&mut self) {
        if matches!(self.asked.as_slice(), [(_, Effect::Read)]) {
            let declared = self.group.world().declared.clone();
            let row = row(declared.token, Some("a"), true);
            self.answer(Outcome::Read { row: Some(row), declared: Some(declared) });
        }
    }

    /// Waits as long as nothing is asked for and this holds.
    fn wait(&mut self, before: Duration) {
        while self.asked.is_empty() && self.group.wake().is_some_and(|wake| wake < before) {
            self.now = self.group.wake().expect("it was there");
            self.step(Event::Tick);
        }
    }

    /// Whether the program of the new term was cleared now.
    fn clears(&self) -> bool {
        matches!(self.asked.as_slice(), [(_, Effect::Declare { next, .. })] if run_of(next).cleared)
    }
}

/// A silent holder is replaced; the labels are right, and the next program may not start yet.
fn failed_over() -> Case {
    let mut case = Case::stable(silent());
    let next = case.declared();
    let run = Run::uncleared(6, boot("b"), LEASE);
    assert_eq!(next.run, Some(run), "it does not start yet");
    assert_eq!(next.former, Some(FormerRun::from(&cleared(5, "a"))));
    assert_eq!(case.effect(), Effect::Strip { token: 6, pods: vec![known("a")] });
    case.answer(Outcome::Stripped);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert!(matches!(case.group.phase(), Phase::Clearing { .. }));
    case
}

#[test]
fn after_a_failover_the_program_starts_when_the_lease_of_the_former_one_is_over() {
    let mut case = failed_over();
    let over_at = NOW + Former::One(FormerRun::from(&cleared(5, "a"))).wait();
    assert!(over_at > NOW + LEASE, "clocks differ");
    case.wait(over_at);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    case.now = over_at;
    case.step(Event::Tick);
    let next = case.next();
    assert_eq!((next.run, next.former), (Some(cleared(6, "b")), None));
    assert_eq!(next.token, 6);
    case.answer(Outcome::Declared);
    assert_eq!(case.effect(), Effect::Promote { token: 6, pod: pod("b"), version: "11".to_owned() });
}

#[test]
fn the_word_of_the_agent_or_the_kubelet_ends_the_wait() {
    let mut word = silent();
    word.members[0].agent = Some(says("a", 6, true));
    let mut ended = silent();
    ended.members[0].ended = vec![boot("z"), boot("a")];
    for world in [word, ended] {
        let mut case = failed_over();
        case.world(World { declared: case.group.declared().clone(), ..world });
        assert!(case.clears(), "{:?}", case.asked);
    }
}

/// Two databases act as primary: a change of this replica's waits while another one completes a later term.
#[test]
fn a_change_that_another_replica_has_overtaken_does_not_go_on_waiting() {
    let later = Declaration { token: 7, ..declaration(7, Some("b"), &["a"]) };
    let mut case = failed_over();
    case.world(World { declared: later.clone(), ..silent() });
    assert_eq!(case.effect(), Effect::Read);
    let other_grant =
        Declaration { grant: Some("another".to_owned()), ..failed_over().group.declared().clone() };
    let mut case = failed_over();
    case.world(World { declared: other_grant, ..silent() });
    assert_eq!(case.effect(), Effect::Read);
    let mut case = Case::stable(requested());
    case.next();
    case.answer(Outcome::Declared);
    case.world(World { declared: later, ..requested() });
    assert_eq!(case.effect(), Effect::Read);
}

#[test]
fn no_other_word_ends_the_wait() {
    let mut low = silent();
    low.members[0].agent = Some(says("a", 5, true));
    let mut runs = silent();
    runs.members[0].agent = Some(says("a", 7, false));
    let mut restarted = silent();
    restarted.members[0].agent = Some(says("z", 9, true));
    let mut other_ended = silent();
    other_ended.members[0].ended = vec![boot("z")];
    let mut gone = silent();
    gone.members.remove(0);
    for world in [low, runs, restarted, other_ended, gone] {
        let mut case = failed_over();
        case.world(World { declared: case.group.declared().clone(), ..world.clone() });
        assert!(case.asked.is_empty(), "{:?} after {world:?}", case.asked);
    }
}

#[test]
fn what_was_said_of_a_program_counts_although_its_pod_is_gone() {
    let obstacle = Some(Reason::InvalidSpec);
    let mut case = Case::stable(World { obstacle, ..over(supervised()) });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    let mut gone = supervised();
    gone.members.remove(0);
    case.world(gone);
    assert!(case.verified(Reason::PodDeleted));
    assert!(run_of(&case.declared()).cleared);
}

#[test]
fn a_planned_change_stops_the_program_before_anything_else() {
    let mut case = Case::stable(requested());
    let next = case.next();
    assert_eq!(
        next,
        Declaration { run: Some(Run { stop: true, ..cleared(5, "a") }), ..supervised().declared }
    );
    case.answer(Outcome::Declared);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert_eq!(case.group.awaits_answer_of(), Some("uid-a"));
    assert_eq!(case.group.waits_for_program(), Some(STOP_TIMEOUT));
    case.world(World { declared: next, ..over(requested()) });
    let next = case.declared();
    assert_eq!((next.run, next.former), (Some(cleared(6, "b")), None), "it starts at once");
    case.answer(Outcome::Stripped);
    assert!(matches!(case.effect(), Effect::Promote { .. }));
}

#[test]
fn a_planned_change_whose_program_does_not_end_in_time_goes_on_as_a_failover() {
    let mut case = Case::stable(requested());
    let stopped = case.next();
    case.answer(Outcome::Declared);
    case.wait(NOW + STOP_TIMEOUT);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    case.now = NOW + STOP_TIMEOUT;
    case.step(Event::Tick);
    let next = case.declared();
    assert!(!run_of(&next).cleared);
    assert_eq!(next.former, Some(FormerRun::from(&run_of(&stopped))));
}

#[test]
fn if_the_next_pod_fails_while_the_program_stops_the_former_one_stays_or_another_one_follows() {
    for (former, next, reason) in
        [(Verdict::Eligible, "a", Reason::Resumed), (Verdict::Silent, "c", Reason::Switchover)]
    {
        let mut case = Case::stable(requested());
        let declared = case.next();
        case.answer(Outcome::Declared);
        let mut world = World { declared, ..over(requested()) };
        (world.members[0].verdict, world.members[1].verdict) = (former, Verdict::Silent);
        case.world(world);
        assert_eq!((case.grant().holder, case.grant().reason), (pod(next), reason));
        assert!(run_of(&case.declared()).cleared);
    }
}

#[test]
fn a_holder_whose_program_cannot_run_gets_a_new_term() {
    let with_run = |run: Option<Run>| {
        let mut world = supervised();
        world.declared.run = run;
        world
    };
    let mut restarted = supervised();
    restarted.members[0].agent = Some(says("z", 0, true));
    let left_behind = Run { stop: true, ..cleared(5, "a") };
    let worlds = [
        ("its container was restarted", restarted),
        ("its program has ended", over(supervised())),
        ("a replica was lost after it had stopped the program", with_run(Some(left_behind))),
        ("it was not cleared", with_run(Some(Run { cleared: false, ..cleared(5, "a") }))),
        ("the run is of an earlier term", with_run(Some(cleared(4, "a")))),
        ("agents are new", with_run(None)),
    ];
    for (why, world) in worlds {
        let mut case = Case::stable(world);
        case.reads_again();
        assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::ProgramEnded), "{why}");
        let next = case.declared();
        assert_eq!(run_of(&next).token, 6, "{why}");
    }
    assert!(Case::stable(supervised()).asked.is_empty());
}

#[test]
fn a_pause_or_an_obstacle_does_not_leave_the_holder_without_its_program() {
    let mut paused = over(supervised());
    paused.policy.paused = true;
    let contested = World { obstacle: Some(Reason::SelectedByOtherGroup), ..over(supervised()) };
    for world in [paused, contested] {
        assert_eq!(Case::stable(world).grant().holder, pod("a"));
    }
    let invalid = World { obstacle: Some(Reason::InvalidSpec), ..over(supervised()) };
    assert!(Case::stable(invalid).asked.is_empty());

    let mut case = Case::stable(requested());
    let declared = case.next();
    case.answer(Outcome::Declared);
    let mut world = World { declared, ..over(requested()) };
    (world.policy.paused, world.members[1].verdict) = (true, Verdict::Silent);
    case.world(world);
    assert_eq!(case.grant().holder, pod("a"), "its program was stopped already");
}

/// The pod alone cannot reach the API server.
#[test]
fn a_holder_that_cannot_run_a_program_any_more_is_replaced() {
    let mut ended = over(supervised());
    ended.members[0].verdict = Verdict::Unknown;
    let case = Case::stable(ended);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::ProgramEnded));

    let mut late = supervised();
    late.members[0].agent = Some(says("a", 4, true));
    let mut case = Case::stable(late);
    case.wait(NOW + LEASE);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    let mut world = case.group.world().clone();
    world.members[0].asked_at = Some(NOW + LEASE);
    case.now = NOW + LEASE;
    case.world(world);
    assert_eq!((case.grant().holder, case.grant().reason), (pod("b"), Reason::ProgramEnded));
}

/// The path to the pod fails, or this replica stands still.
#[test]
fn a_program_is_not_late_because_its_agent_was_not_heard_since_it_may_have_started() {
    let mut unheard = supervised();
    unheard.members[0].agent = Some(says("a", 4, true));
    unheard.members[0].asked_at = Some(NOW + LEASE / 2);
    let mut case = Case::stable(unheard.clone());
    case.now = NOW + LEASE + Duration::from_millis(500);
    case.step(Event::Tick);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    assert!(case.group.wake().is_some(), "the answer is awaited");
    unheard.members[0].agent = Some(says("a", 5, false));
    case.world(unheard);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
}

#[test]
fn a_pod_whose_program_is_starting_is_not_passed_over() {
    let mut case = Case::stable(requested());
    let stopped = case.next();
    case.answer(Outcome::Declared);
    case.world(World { declared: stopped, ..over(requested()) });
    let declared = case.declared();
    assert!(run_of(&declared).cleared);
    // The kubelet reports that b is not ready, which is no evidence against a holder.
    let mut world = World { declared, ..over(requested()) };
    world.members[1].verdict = Verdict::Unknown;
    let (ticket, _) = case.asked[0];
    case.step(Event::Outcome(ticket, Outcome::Stripped, world));
    assert!(matches!(case.effect(), Effect::Promote { pod: promoted, .. } if promoted == pod("b")));
}

#[test]
fn a_pod_that_claims_to_have_seen_an_absurd_token_does_not_become_the_holder() {
    let mut world = silent();
    world.members[1].agent = Some(says("b", 1 << 50, true));
    assert_eq!(Case::stable(world).grant().holder, pod("c"));
}

#[test]
fn without_agents_the_next_term_has_no_program_and_carries_the_former_one_on() {
    let mut world = supervised();
    world.policy.agent = None;
    let mut case = Case::stable(world);
    case.reads_again();
    let next = case.declared();
    assert_eq!((next.run, next.former), (None, Some(FormerRun::from(&cleared(5, "a")))));
}

/// A user turns the agents on before the pods have any.
#[test]
fn an_active_pod_without_an_agent_keeps_its_role_until_one_with_an_agent_can_follow() {
    let mut world = supervised();
    world.declared.run = None;
    for member in &mut world.members {
        member.agent = None;
    }
    let mut case = Case::stable(world.clone());
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    // Nothing listens on the agents' port.
    for member in &mut world.members {
        member.verdict = Verdict::Failing(Reason::ProbeRefused);
    }
    case.world(world.clone());
    case.reads_again();
    assert!(case.asked.is_empty(), "nobody can follow: {:?}", case.asked);
    // A pod of the rollout, with an agent.
    (world.members[1].verdict, world.members[1].agent) = (Verdict::Eligible, Some(says("b", 0, true)));
    case.world(world);
    case.reads_again();
    assert_eq!(case.grant().holder, pod("b"));
    let next = case.declared();
    assert_eq!((run_of(&next), next.former), (Run::uncleared(6, boot("b"), LEASE), None));
}

#[test]
fn a_holder_without_its_label_that_another_group_selects_too_is_not_labelled_again_although_its_program_may_run()
 {
    let mut world = supervised();
    (world.members[0].role, world.members[0].verdict) = (Role::None, Verdict::Contested);
    let mut case = Case::new(world, row(5, Some("a"), true));
    case.reads_again();
    assert_eq!(case.effect(), Effect::Verify(pod("a")));
    case.answer(Outcome::Verified(None));
    assert_ne!(case.grant().holder, pod("a"));
}

#[test]
fn when_agents_are_turned_off_and_on_again_the_program_of_before_counts_as_the_former_one() {
    let off = |run: Option<Run>| {
        let mut world = supervised();
        world.policy.agent = None;
        world.declared.run = run;
        world
    };
    let mut case = Case::stable(off(Some(cleared(5, "a"))));
    case.reads_again();
    assert_eq!((case.grant().holder, case.grant().reason), (pod("a"), Reason::ProgramEnded));
    let without = case.declared();
    assert_eq!((&without.run, &without.former), (&None, &Some(FormerRun::from(&cleared(5, "a")))));

    // On again, in another replica. The agent of a has not said that its program is over.
    for (agent, is_over) in
        [(says("a", 5, false), false), (says("a", 6, false), false), (says("a", 6, true), true)]
    {
        let mut world = supervised();
        world.declared = Declaration { holder: Some(pod("a")), ..without.clone() };
        for member in &mut world.members {
            member.stamp = Some(6);
        }
        world.members[0].agent = Some(agent);
        let mut case = Case::new(world, row(6, Some("a"), true));
        case.reads_again();
        assert_eq!(case.grant().holder, pod("a"));
        case.answer(Outcome::Granted { token: 7 });
        let next = case.next();
        assert_eq!((run_of(&next).cleared, next.former.is_none()), (is_over, is_over), "{agent:?}");
    }
}

#[test]
fn a_term_that_was_not_cleared_leaves_the_former_program_to_the_next_one() {
    let former = FormerRun::from(&cleared(4, "z"));
    let mut world = silent();
    world.declared.run = Some(Run::uncleared(5, boot("a"), LEASE));
    world.declared.former = Some(former.clone());
    let next = Case::stable(world).declared();
    assert_eq!(next.former, Some(former));
}

#[test]
fn the_first_program_of_a_group_waits_for_one_of_a_group_of_the_same_name() {
    let mut world = supervised();
    (world.declared, world.members[0].role) = (Declaration::default(), Role::Standby);
    let mut case = Case::new(world, row(5, None, true));
    let next = case.declared();
    assert_eq!((run_of(&next).cleared, next.former), (false, None));
    if matches!(case.effect(), Effect::Strip { .. }) {
        case.answer(Outcome::Stripped);
    }
    let over_at = NOW + Former::Anyone.wait();
    assert!(over_at > NOW + LONGEST_LEASE);
    case.wait(over_at);
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    case.now = over_at;
    case.step(Event::Tick);
    assert!(case.clears());
}

/// Its program may run for a lease after that, also on a node where nobody sees it.
#[test]
fn when_somebody_has_removed_the_declaration_the_next_program_waits_for_any_that_may_have_run() {
    let long_after = NOW + Former::Anyone.wait() * 2;
    for watched in [supervised().declared, Declaration::default()] {
        let mut world = World { declared: watched.clone(), ..supervised() };
        let mut group = Group::new(world.clone());
        group.step(Event::World(world.clone()), NOW);
        world.declared = Declaration::default();
        world.members.remove(0);
        let mut case = Case { group, now: long_after, asked: Vec::new(), tries: false };
        case.step(Event::Owned { seed: Uuid::from_u128(1_000), row: None, world });
        let declared = Some(Declaration::default());
        case.answer(Outcome::Read { row: Some(row(5, Some("a"), true)), declared });
        case.verified(Reason::PodDeleted);
        let next = case.declared();
        assert_eq!((run_of(&next).cleared, next.former), (false, None), "{watched:?}");
        if matches!(case.effect(), Effect::Strip { .. }) {
            case.answer(Outcome::Stripped);
        }
        let over_at = long_after + Former::Anyone.wait();
        case.wait(over_at);
        assert!(case.asked.is_empty(), "{:?}", case.asked);
        case.now = over_at;
        case.step(Event::Tick);
        assert!(case.clears());
    }
}

#[test]
fn a_term_is_above_what_the_agent_has_seen_and_none_begins_without_an_answer() {
    let mut world = silent();
    world.members[1].agent = Some(says("b", 40, true));
    let mut case = Case::stable(world.clone());
    assert_eq!(case.grant().floor, 39);
    // It has seen a larger token in the meantime.
    world.members[1].agent = Some(says("b", 50, true));
    let (ticket, _) = case.asked[0];
    case.step(Event::Outcome(ticket, Outcome::Granted { token: 41 }, world.clone()));
    assert!(case.asked.is_empty(), "{:?}", case.asked);
    case.now = case.group.wake().expect("it waits");
    case.step(Event::Tick);
    let mut row = row(41, Some("b"), false);
    row.grant = Some(OWN);
    row.pending = vec![pod("a"), pod("b")];
    case.answer(Outcome::Read { row: Some(row), declared: Some(world.declared.clone()) });
    assert_eq!((case.grant().holder, case.grant().floor), (pod("b"), 49), "under a larger token");

    world.members[1].agent = None;
    let mut case = Case::stable(world);
    case.grant();
    case.answer(Outcome::Granted { token: 6 });
    assert!(case.asked.is_empty(), "{:?}", case.asked);
}

#[test]
fn a_replica_that_takes_over_counts_from_what_it_has_seen_itself() {
    let former = FormerRun::from(&cleared(5, "a"));
    let declared = Declaration {
        run: Some(Run::uncleared(6, boot("b"), LEASE)),
        former: Some(former.clone()),
        ..declaration(6, Some("b"), &["a"])
    };
    let mut world = World { declared, ..silent() };
    world.members[1].stamp = Some(6);
    // It has watched the group for long enough before it becomes the owner.
    let mut group = Group::new(world.clone());
    group.step(Event::World(world.clone()), NOW);
    let now = NOW + Former::One(former).wait();
    let mut row = row(6, Some("b"), false);
    row.pending = vec![pod("a"), pod("b")];
    let seed = Uuid::from_u128(1_000);
    let mut case = Case { group, now, asked: Vec::new(), tries: false };
    case.step(Event::Owned { seed, row: None, world: world.clone() });
    case.answer(Outcome::Read { row: Some(row), declared: Some(world.declared) });
    let Effect::Grant(_) = case.effect() else { panic!("{:?}", case.asked) };
    case.answer(Outcome::Granted { token: 7 });
    while !matches!(case.effect(), Effect::Declare { .. }) {
        case.answer(match case.effect() {
            Effect::Stamp { .. } => Outcome::Stamped(Vec::new()),
            Effect::Strip { .. } => Outcome::Stripped,
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(run_of(&case.next()), cleared(7, "b"), "no other program can run any more");
}
