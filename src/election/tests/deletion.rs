//! The deletion of a group.

use super::*;

#[test]
fn a_deleted_group_goes_row_first_finalizer_last() {
    let mut world = settled();
    world.deleting = true;
    world.policy.deletion_policy = DeletionPolicy::Retain;
    let mut case = Case::stable(world);
    assert_eq!(case.effect(), Effect::Tombstone);
    case.answer(Outcome::Tombstoned);
    let pods = vec![known("a"), known("b"), known("c")];
    assert_eq!(case.effect(), Effect::Clear { deletion_policy: DeletionPolicy::Retain, pods });
    case.answer(Outcome::Cleared);
    assert_eq!(case.effect(), Effect::Unfinalize);
    case.answer(Outcome::Unfinalized);
    assert!(case.asked.is_empty() && *case.group.phase() == Phase::Retired);
}

#[test]
fn a_deletion_does_not_wait_for_the_database_for_ever() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world.clone());
    case.answer(Outcome::Failed);
    assert!(case.asked.is_empty());
    case.now += Duration::from_secs(5);
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Tombstone, "it tries again first");
    case.now += Duration::from_secs(6);
    case.answer(Outcome::Failed);
    assert!(matches!(case.effect(), Effect::Clear { .. }));
    // No replica is the owner, and none can become it.
    let mut case = Case { group: Group::new(world.clone()), now: NOW, asked: Vec::new(), tries: false };
    case.step(Event::Tick);
    assert!(case.asked.is_empty());
    world.lock_away = true;
    case.world(world);
    assert!(matches!(case.effect(), Effect::Clear { .. }));
}

#[test]
fn a_deletion_waits_no_longer_than_its_patience_however_long_the_pauses_are() {
    let mut world = settled();
    world.deleting = true;
    for (refused, begin) in [(Outcome::Failed, None), (Outcome::ClearRefused, Some(Outcome::Tombstoned))] {
        let mut case = Case::stable(world.clone());
        if let Some(outcome) = begin {
            case.answer(outcome);
        }
        let asked = case.effect();
        case.answer(refused.clone());
        let first = case.now;
        while case.asked.is_empty() {
            case.now = case.group.wake().expect("it tries again");
            case.step(Event::Tick);
            assert_eq!(case.effect(), asked);
            case.answer(refused.clone());
        }
        assert_eq!(case.now, first + Duration::from_secs(10), "{asked:?}");
    }
}

#[test]
fn a_deletion_does_not_wait_for_rights_to_the_pods_for_ever() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world);
    case.answer(Outcome::Tombstoned);
    case.answer(Outcome::ClearRefused);
    assert!(case.asked.is_empty());
    let mut retry = |after: u64, outcome: Outcome| {
        case.now += Duration::from_secs(after);
        case.step(Event::Tick);
        assert!(matches!(case.effect(), Effect::Clear { .. }), "it tries again first");
        case.answer(outcome);
        case.asked.first().map(|(_, effect)| effect.clone())
    };
    assert_eq!(retry(9, Outcome::ClearRefused), None);
    // It is unknown whether the write would be allowed now.
    assert_eq!(retry(6, Outcome::Failed), None);
    assert_eq!(retry(30, Outcome::Failed), None);
    assert_eq!(retry(6, Outcome::ClearRefused), None);
    assert_eq!(retry(9, Outcome::ClearRefused), None);
    assert_eq!(retry(6, Outcome::ClearRefused), Some(Effect::Unfinalize));
}

#[test]
fn a_deletion_leaves_labels_that_cannot_be_written_if_the_api_server_lets_the_finalizer_go() {
    let mut world = settled();
    world.deleting = true;
    let mut case = Case::stable(world);
    case.answer(Outcome::Tombstoned);
    let (mut clears, mut unfinalizes) = (0, Vec::new());
    for _ in 0..60 {
        match case.asked.first().map(|(_, effect)| effect.clone()) {
            None => {
                case.now = case.group.wake().expect("it tries again");
                case.step(Event::Tick);
            }
            Some(Effect::Clear { .. }) => {
                clears += 1;
                case.answer(Outcome::Failed);
            }
            // The API server does not answer at all: the labels are tried again, and in between there are pauses.
            Some(Effect::Unfinalize) => {
                unfinalizes.push((case.now.saturating_sub(NOW), clears));
                case.answer(Outcome::Failed);
            }
            other => panic!("{other:?}"),
        }
    }
    let (first, tried) = unfinalizes[0];
    assert!(first >= Duration::from_mins(1) && tried > 10, "{unfinalizes:?}");
    let pairs = unfinalizes.iter().zip(&unfinalizes[1..]);
    assert!(pairs.clone().count() > 3, "{unfinalizes:?}");
    assert!(
        pairs.clone().all(|(one, next)| next.1 == one.1 + 1 && next.0 >= one.0 + Duration::from_secs(1)),
        "{unfinalizes:?}"
    );
    // Once they are cleared, only the finalizer is left.
    while !matches!(case.asked.first(), Some((_, Effect::Clear { .. }))) {
        case.now = case.group.wake().unwrap_or(case.now);
        if case.asked.is_empty() { case.step(Event::Tick) } else { case.answer(Outcome::Failed) }
    }
    case.answer(Outcome::Cleared);
    assert_eq!(case.effect(), Effect::Unfinalize);
    case.answer(Outcome::Failed);
    case.now = case.group.wake().expect("it tries again");
    case.step(Event::Tick);
    assert_eq!(case.effect(), Effect::Unfinalize);
}
