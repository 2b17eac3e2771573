use super::*;
use crate::contract::Run;

const OWN: Boot = Boot::new([1; 32]);
const OTHER: Boot = Boot::new([2; 32]);
const TOKEN: i64 = 7;
const SETTINGS: Settings = Settings { stop_timeout: s(3), lapse_timeout: s(2) };

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Moment {
    Moment { boottime: s(seconds), raw: s(seconds) }
}

fn run(boot: Boot) -> Run {
    Run { cleared: true, ..Run::uncleared(TOKEN, boot, s(10)) }
}

/// A read that was sent at this time, and is answered at once.
fn read(machine: &mut Machine, sent: u64, token: i64, run: Option<Run>) -> Vec<Effect> {
    let run = run.map(|run| Run { token, ..run });
    let event = Event::Read { sent_at: at(sent), shown: Some(Declared { token, run }) };
    machine.step(&event, at(sent))
}

fn started(token: i64) -> Machine {
    let mut machine = Machine::new(OWN, SETTINGS);
    assert_eq!(read(&mut machine, 100, token, Some(run(OWN))), [Effect::Start(token)]);
    machine
}

#[test]
fn a_program_starts_only_for_this_boot_once_the_former_one_is_over() {
    for not in [
        None,
        Some(run(OTHER)),
        Some(Run { cleared: false, ..run(OWN) }),
        Some(Run { stop: true, ..run(OWN) }),
        Some(Run { hold: Some("h".to_owned()), ..run(OWN) }),
    ] {
        let mut machine = Machine::new(OWN, SETTINGS);
        assert_eq!(read(&mut machine, 100, 7, not.clone()), [], "{not:?}");
        assert_eq!(machine.running(), None);
    }
    assert_eq!(started(7).running(), Some((7, at(110))));
}

#[test]
fn an_answer_that_took_long_gives_a_short_lease_and_one_that_took_too_long_gives_none() {
    let late = |seconds: u64| {
        let mut machine = Machine::new(OWN, SETTINGS);
        let shown = Some(Declared { token: 7, run: Some(run(OWN)) });
        let effects = machine.step(&Event::Read { sent_at: at(100), shown }, at(100 + seconds));
        (effects, machine.running())
    };
    assert_eq!(late(7), (vec![Effect::Start(7)], Some((7, at(110)))));
    assert_eq!(late(8), (vec![], None), "it would get SIGTERM at once");
}

#[test]
fn a_lease_counts_from_the_time_before_the_read_was_sent_and_is_never_shortened() {
    let mut machine = started(7);
    assert_eq!(read(&mut machine, 103, 7, Some(run(OWN))), []);
    assert_eq!(machine.running(), Some((7, at(113))));
    // Answers that overtake each other.
    assert_eq!(read(&mut machine, 102, 7, Some(run(OWN))), []);
    assert_eq!(machine.running(), Some((7, at(113))));
    let held = Run { hold: Some("h".to_owned()), ..run(OWN) };
    assert_eq!(read(&mut machine, 104, 7, Some(held)), []);
    assert_eq!(machine.running(), Some((7, at(113))), "held");
}

#[test]
fn no_lease_is_longer_than_a_new_group_waits() {
    let mut machine = Machine::new(OWN, SETTINGS);
    let run = Run { lease: LONGEST_LEASE * 2, ..run(OWN) };
    assert_eq!(read(&mut machine, 100, 7, Some(run)), [Effect::Start(7)]);
    assert_eq!(machine.running(), Some((7, at(100).after(LONGEST_LEASE))));
}

#[test]
fn a_program_whose_authority_cannot_be_read_ends_with_its_lease() {
    let mut machine = started(7);
    assert_eq!(machine.wake_after(at(100)), Some(s(8)));
    assert_eq!(machine.step(&Event::Woke, at(107)), []);
    assert_eq!(machine.step(&Event::Woke, at(108)), [Effect::Terminate(Why::Lapsed)]);
    assert_eq!(machine.wake_after(at(108)), Some(s(2)));
    assert_eq!(machine.step(&Event::Woke, at(109)), []);
    assert_eq!(machine.step(&Event::Woke, at(110)), [Effect::Kill(Why::Lapsed)]);
    assert_eq!(machine.wake_after(at(110)), None);
    assert!(!machine.promise().idle, "not before all processes were reaped");
    assert_eq!(machine.step(&Event::Ended, at(110)), []);
    assert!(machine.promise().idle);
    // A supervisor that did not run for a while catches up at once.
    let mut machine = started(7);
    let both = [Effect::Terminate(Why::Lapsed), Effect::Kill(Why::Lapsed)];
    assert_eq!(machine.step(&Event::Woke, at(111)), both);
}

#[test]
fn a_program_that_ends_while_its_lease_is_extended_is_killed_after_the_stop_timeout() {
    let mut machine = started(7);
    let stops = Run { stop: true, ..run(OWN) };
    assert_eq!(read(&mut machine, 109, 7, Some(stops.clone())), [Effect::Terminate(Why::Planned)]);
    assert_eq!(machine.running(), Some((7, at(119))), "it may end in order");
    assert_eq!(read(&mut machine, 111, 7, Some(stops)), []);
    assert_eq!(machine.step(&Event::Woke, at(112)), [Effect::Kill(Why::Planned)]);
}

#[test]
fn a_program_ends_if_another_term_is_declared_or_the_group_is_gone() {
    for (token, of, why) in [
        (8, Some(run(OWN)), Why::Superseded),
        (8, Some(run(OTHER)), Why::Superseded),
        (8, None, Why::Superseded),
        (7, None, Why::Gone),
        (6, Some(run(OWN)), Why::Gone),
    ] {
        let mut machine = started(7);
        assert_eq!(read(&mut machine, 103, token, of), [Effect::Terminate(why)]);
        assert_eq!(machine.running(), Some((7, at(110))), "its lease stays as it was");
    }
    let mut machine = started(7);
    let gone = Event::Read { sent_at: at(103), shown: None };
    assert_eq!(machine.step(&gone, at(103)), [Effect::Terminate(Why::Gone)]);
}

#[test]
fn no_term_starts_twice() {
    let mut machine = started(7);
    let _ = machine.step(&Event::Ended, at(101));
    assert_eq!(machine.promise(), Promise { boot: OWN, floor: 8, idle: true });
    assert_eq!(read(&mut machine, 102, 7, Some(run(OWN))), []);
    assert_eq!(read(&mut machine, 103, 8, Some(run(OWN))), [Effect::Start(8)]);
}

#[test]
fn the_floor_never_falls() {
    let mut machine = Machine::new(OWN, SETTINGS);
    assert_eq!(read(&mut machine, 100, 9, None), []);
    assert_eq!(machine.promise().floor, 9);
    assert_eq!(read(&mut machine, 101, 8, Some(run(OWN))), [], "another group of the same name");
    // A term that is to end before it began never begins.
    assert_eq!(read(&mut machine, 102, 9, Some(Run { stop: true, ..run(OWN) })), []);
    assert_eq!(machine.promise(), Promise { boot: OWN, floor: 10, idle: true });
    assert_eq!(read(&mut machine, 103, 9, Some(run(OWN))), []);
}
