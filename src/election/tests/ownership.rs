//! The beginning and the end of an ownership, and when the row is read again.

use super::*;

#[test]
fn an_owner_reads_nothing_if_the_claimed_row_and_the_watch_agree() {
    let adopt = |world: World, row: Row| {
        let mut case =
            Case { group: Group::new(World::default()), now: NOW, asked: Vec::new(), tries: false };
        case.step(Event::Owned { seed: Uuid::from_u128(1_000), row: Some(row), world });
        case
    };
    let adopted = adopt(settled(), row(5, Some("a"), true));
    assert_eq!((adopted.asked.len(), adopted.group.phase()), (0, &Phase::Stable));
    // A lost active is replaced at once.
    assert_eq!(adopt(with(Verdict::Silent), row(5, Some("a"), true)).grant().holder, pod("b"));
    // A term that is not finished, a watch that lags, and a row that lost commits.
    let other_grant = Row { grant: Some(Uuid::from_u128(8)), ..row(5, Some("a"), true) };
    for row in [row(5, Some("a"), false), row(6, Some("b"), true), row(4, Some("a"), true), other_grant] {
        assert_eq!(adopt(settled(), row).effect(), Effect::Read);
    }
}

#[test]
fn without_ownership_nothing_is_done() {
    let mut case =
        Case { group: Group::new(with(Verdict::Silent)), now: NOW, asked: Vec::new(), tries: false };
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    let mut case = Case::stable(with(Verdict::Silent));
    let late = case.asked[0].0;
    case.step(Event::Disowned);
    case.step(Event::Outcome(late, Outcome::Granted { token: 6 }, with(Verdict::Silent)));
    assert!(case.asked.is_empty() && !case.group.is_at_work());
    let mut case = Case::stable(with(Verdict::Silent));
    case.answer(Outcome::Rejected(Rejection::NotOwner));
    assert!(case.asked.is_empty() && !case.group.is_at_work());
}

#[test]
fn an_outcome_for_an_earlier_election_of_the_same_group_is_ignored() {
    let adopted = |seed| {
        let mut case =
            Case { group: Group::new(with(Verdict::Silent)), now: NOW, asked: Vec::new(), tries: false };
        let (row, world) = (Some(row(5, Some("a"), true)), with(Verdict::Silent));
        case.step(Event::Owned { seed: Uuid::from_u128(seed), row, world });
        assert!(matches!(case.effect(), Effect::Grant(_)));
        case
    };
    let (ticket, _) = adopted(1_000).asked[0];
    // The group disappeared from the cache and came back, and so a new election began.
    let mut after = adopted(2_000);
    after.step(Event::Outcome(ticket, Outcome::Granted { token: 6 }, with(Verdict::Silent)));
    assert!(matches!(after.group.phase(), Phase::Granting { .. }), "{:?}", after.group.phase());
}

#[test]
fn a_declaration_of_another_replica_triggers_a_read() {
    let mut case = Case::stable(settled());
    let mut world = settled();
    world.declared = declaration(6, Some("b"), &["a"]);
    case.world(world.clone());
    assert_eq!(case.effect(), Effect::Read);
    // A declaration that lags behind does not.
    let mut case = Case::stable(settled());
    world.declared = declaration(4, Some("b"), &[]);
    case.world(world);
    assert!(case.asked.is_empty());
}

#[test]
fn a_doubt_triggers_a_read_at_once_or_after_the_change() {
    let mut case = Case::stable(settled());
    case.step(Event::Doubt);
    assert_eq!(case.effect(), Effect::Read);
    let mut case = Case::stable(with(Verdict::Silent));
    let waiting = case.asked.clone();
    case.step(Event::Doubt);
    assert!(case.asked.is_empty());
    case.asked = waiting;
    for outcome in [Outcome::Granted { token: 6 }, Outcome::Declared, Outcome::Stripped, Outcome::Promoted] {
        case.answer(outcome);
    }
    case.answer(Outcome::Confirmed);
    assert!(case.asked.iter().any(|(_, effect)| *effect == Effect::Read), "{:?}", case.asked);
}
