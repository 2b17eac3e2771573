use std::collections::BTreeSet;

use leadergroup_lock::{
    Key, Token,
    controller::{LockRow, Peer},
};

use super::*;
use crate::{
    ownership::{Batches, Room, Sessions, deputy},
    phase_table::{Ways, documented},
};

const TTL: Duration = Duration::from_secs(4);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The sessions as seen by the first of these. All of them are alive, and the database has answered from the start.
fn sessions(living: &[SessionId]) -> Sessions {
    suspecting(living, &[])
}

fn suspecting(living: &[SessionId], suspects: &[SessionId]) -> Sessions {
    let mut sessions = Sessions::default();
    let peers = living.iter().map(|session| Peer { session: *session, place: None });
    sessions.beat(living[0], peers.collect(), suspects.to_vec(), (Duration::ZERO, Duration::ZERO));
    sessions
}

fn replica(sessions: &Sessions) -> Replica<'_> {
    Replica { sessions, ttl: TTL, stopping: false }
}

fn key() -> Key {
    Key::new("web").expect("a key")
}

/// The session that the group falls to, and the others.
fn chosen(living: &[SessionId]) -> (SessionId, Vec<SessionId>) {
    let chosen = owner(&key(), None, sessions(living).living().iter()).expect("one of them");
    (chosen, living.iter().copied().filter(|session| *session != chosen).collect())
}

fn row(session: SessionId) -> LockRow {
    LockRow {
        key: key(),
        holder: None,
        token: Token::new(5),
        grant: None,
        confirmed: true,
        session: Some(session),
        group: String::new(),
        pending: Vec::new(),
        tombstone: false,
    }
}

/// Whether the group is claimed at this time.
fn claims(group: &mut Group, deaf: bool, sessions: &Sessions, now: Duration) -> bool {
    let key = key();
    let seen = Outside { key: &key, holder_node: None, deaf };
    let effect = group.step(Event::Turn(seen), replica(sessions), now);
    assert!(matches!(effect, None | Some(Effect::Claim)));
    effect.is_some()
}

fn answered(group: &mut Group, claimed: Claimed, sessions: &Sessions, now: Duration) -> Option<Effect> {
    let own = sessions.own().expect("a session");
    let answer = Ok(Answer::Lock(Box::new(claimed)));
    group.step(Event::Answered(own, answer), replica(sessions), now)
}

fn give_up(group: &mut Group, sessions: &Sessions) {
    assert!(group.step(Event::GivenUp, replica(sessions), Duration::ZERO).is_none());
}

/// A group that this replica has known to be this session's since 100 s.
fn of_other(owner: SessionId, sessions: &Sessions) -> Group {
    let mut group = Group::default();
    let at = s(90);
    assert!(claims(&mut group, false, sessions, at) || claims(&mut group, false, sessions, at + TTL));
    assert_eq!(answered(&mut group, Claimed::By { session: owner }, sessions, s(100)), None);
    group
}

/// The facts about a group at rest whose status is up to date.
fn at_rest(key: &Key) -> Inside<'_> {
    let room = Batches::default().room(false, replica(&sessions(&[SessionId::new()])), s(1_000));
    Inside {
        key,
        holder_node: None,
        has_holder: true,
        held_since: Duration::ZERO,
        reported: true,
        unreportable: false,
        heard_elsewhere: false,
        blind: false,
        works: true,
        unheard: false,
        misses_candidates: false,
        room,
    }
}

#[test]
fn a_group_is_claimed_by_the_replica_that_it_falls_to_and_after_a_while_by_any() {
    let living = [SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let (of_chosen, of_other) = (sessions(&[chosen, others[0]]), sessions(&[others[0], chosen]));
    assert!(claims(&mut Group::default(), false, &of_chosen, s(100)));
    let mut group = Group::default();
    let mut due_at = |millis| claims(&mut group, false, &of_other, Duration::from_millis(millis));
    // Heartbeats follow each other closely while groups are given up.
    let beats = [100_000, 100_001, 100_002, 100_003, 101_999, 102_000];
    assert_eq!(beats.map(&mut due_at), [false, false, false, false, false, true]);
    assert!(!due_at(102_000), "a claim is on its way");
    assert_eq!(answered(&mut group, Claimed::By { session: chosen }, &of_other, s(102)), None);
    let due_at = |group: &mut Group, millis| claims(group, false, &of_other, Duration::from_millis(millis));
    assert!(!due_at(&mut group, 110_000), "it has an owner");
    // The owner may have given it up: it is asked for again, with the same patience.
    give_up(&mut group, &of_other);
    give_up(&mut group, &of_other);
    assert_eq!([113_000, 114_999, 115_000].map(|at| due_at(&mut group, at)), [false, false, true]);
    assert_eq!(group.owner(), Owner::Other(chosen), "until the answer says otherwise");
    answered(&mut group, Claimed::By { session: chosen }, &of_other, s(115));
    // This replica has offered to take it.
    let pod: Arc<str> = "b".into();
    let heard = Event::Heard { pod: pod.clone(), silence_timeout: s(3) };
    assert_eq!(group.step(heard, replica(&of_other), s(115)), Some(Effect::Vouch(pod)));
    assert!(!due_at(&mut group, 116_000), "the owner has not given it up");
    give_up(&mut group, &of_other);
    assert!(due_at(&mut group, 120_999));
    answered(&mut group, Claimed::By { session: chosen }, &of_other, s(121));
    give_up(&mut group, &of_other);
    assert!(!due_at(&mut group, 121_000), "the offer is over");
    // Its session is gone.
    assert!(claims(&mut group, false, &sessions(&[others[0]]), s(121)));
}

#[test]
fn a_deaf_replica_leaves_a_group_to_its_living_owner_and_a_suspect_is_not_counted_on() {
    let living = [SessionId::new(), SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let of_chosen = sessions(&[chosen, others[0], others[1]]);
    let mut group = of_other(others[0], &of_chosen);
    give_up(&mut group, &of_chosen);
    let now = s(100);
    assert!(
        !claims(&mut group, true, &of_chosen, now) && !claims(&mut group, true, &of_chosen, now + TTL / 2)
    );
    assert!(claims(&mut group, true, &of_chosen, now + TTL), "nobody took it");
    let mut group = of_other(others[0], &of_chosen);
    give_up(&mut group, &of_chosen);
    assert!(claims(&mut group, false, &of_chosen, now), "it hears the holder");
    // The holder and the owner were lost together.
    let mut group = of_other(others[0], &of_chosen);
    assert!(claims(&mut group, true, &sessions(&[chosen, others[1]]), now));
    // The one that it would fall to seems to have stopped.
    let rest = [others[0], others[1]];
    let next = owner(&key(), None, sessions(&rest).living().iter()).expect("one of two");
    let suspecting = suspecting(&[next, chosen, others[0], others[1]], &[chosen]);
    assert!(claims(&mut Group::default(), false, &suspecting, now));
    assert_eq!(deputy(&key(), None, chosen, &of_chosen), Some(next));
}

#[test]
fn the_giver_takes_a_group_back_that_nobody_claims_and_keeps_it_for_minutes() {
    let living = [SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let of_giver = sessions(&[others[0], chosen]);
    let (key, replica) = (key(), replica(&of_giver));
    let mut group = Group::default();
    assert!(!claims(&mut group, false, &of_giver, s(98)) && claims(&mut group, false, &of_giver, s(100)));
    let adopted = answered(&mut group, Claimed::Ours(row(others[0])), &of_giver, s(100));
    assert!(matches!(adopted, Some(Effect::Adopt(_))) && group.is_ours());
    let beat = |group: &mut Group, at| group.step(Event::Beat(at_rest(&key)), replica, at);
    assert_eq!(beat(&mut group, s(103)), None, "it has just taken it");
    assert_eq!(beat(&mut group, s(104)), Some(Effect::Give(Why::FallsElsewhere)));
    assert!(group.is_given() && !claims(&mut group, false, &of_giver, s(104)));
    assert!(claims(&mut group, false, &of_giver, s(106)), "nobody took it");
    // It is not known whether anybody did, until there is an answer that says so.
    let failure = Err(Failure { waits: false });
    assert_eq!(group.step(Event::Answered(others[0], failure), replica, s(106)), None);
    assert!(group.is_given() && claims(&mut group, false, &of_giver, s(106)));
    answered(&mut group, Claimed::Busy, &of_giver, s(106));
    assert!(group.is_given() && claims(&mut group, false, &of_giver, s(106)));
    answered(&mut group, Claimed::Ours(row(others[0])), &of_giver, s(106));
    assert!(group.is_ours() && !group.is_given());
    assert_eq!(beat(&mut group, s(405)), None);
    assert_eq!(beat(&mut group, s(406)), Some(Effect::Give(Why::FallsElsewhere)));
    claims(&mut group, false, &of_giver, s(406));
    claims(&mut group, false, &of_giver, s(408));
    let by = answered(&mut group, Claimed::By { session: chosen }, &of_giver, s(408));
    assert_eq!((by, group.owner()), (Some(Effect::Taken), Owner::Other(chosen)));
}

/// The next owner would count the silence anew, and the group would wait longer for another holder.
#[test]
fn a_group_whose_holder_has_just_not_answered_is_not_moved_to_the_replica_that_it_falls_to() {
    let living = [SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let (of_giver, key) = (sessions(&[others[0], chosen]), key());
    let moves = |seen| Group::ours().step(Event::Beat(seen), replica(&of_giver), s(1_000)).is_some();
    assert!(moves(at_rest(&key)));
    assert!(!moves(Inside { unheard: true, ..at_rest(&key) }));
    assert!(moves(Inside { unheard: true, has_holder: false, works: false, ..at_rest(&key) }));
}

#[test]
fn a_group_that_is_given_up_while_its_owner_is_asked_for_is_asked_for_again() {
    let (own, owner) = (SessionId::new(), SessionId::new());
    let lock = sessions(&[own, owner]);
    for given_up in [false, true] {
        let mut group = Group::default();
        claims(&mut group, false, &lock, s(90));
        claims(&mut group, false, &lock, s(100));
        if given_up {
            give_up(&mut group, &lock);
        }
        assert_eq!(answered(&mut group, Claimed::By { session: owner }, &lock, s(100)), None);
        // At once or after the patience, depending on whom it falls to.
        assert!(!claims(&mut group, false, &lock, s(100)) || given_up);
        let claimed = claims(&mut group, false, &lock, s(102));
        assert_eq!(claimed || matches!(group.phase(), Phase::Claiming(_)), given_up);
    }
}

#[test]
fn a_group_whose_claim_is_refused_or_hangs_is_claimed_again_after_a_pause() {
    let own = SessionId::new();
    let lock = sessions(&[own]);
    let foreign = || Answer::Lock(Box::new(Claimed::Foreign { group: "other".to_owned() }));
    let newer = || Answer::Lock(Box::new(Claimed::ProtocolNewer { protocol: 9 }));
    for (answer, pause) in [
        (Ok(foreign()), 5),
        (Ok(newer()), 5),
        (Ok(Answer::Refused("no".into())), 5),
        (Ok(Answer::Buried), 5),
        (Ok(Answer::Lock(Box::new(Claimed::Missing))), 5),
        (Ok(Answer::Lock(Box::new(Claimed::Busy))), 0),
        (Err(Failure { waits: true }), 5),
        (Err(Failure { waits: false }), 0),
    ] {
        let mut group = Group::default();
        assert!(claims(&mut group, false, &lock, s(100)));
        let text = format!("{answer:?}");
        group.step(Event::Answered(own, answer), replica(&lock), s(100));
        let early = pause > 0 && claims(&mut group, false, &lock, s(99 + pause));
        assert!(!early && claims(&mut group, false, &lock, s(100 + pause)), "{text}");
    }
    // A session that shares no groups with this one is not asked about at each heartbeat.
    let mut group = of_other(SessionId::new(), &lock);
    assert_eq!([100, 104, 105].map(|at| claims(&mut group, false, &lock, s(at))), [false, false, true]);
}

#[test]
fn a_replica_that_stops_or_has_no_session_claims_nothing() {
    let own = SessionId::new();
    let (lock, key) = (sessions(&[own]), key());
    let mut lost = sessions(&[own]);
    lost.lost();
    let mut away = sessions(&[own]);
    assert!(!away.down(TTL, s(1)) && away.down(TTL, s(4)), "the session may have expired");
    let stops = Replica { stopping: true, ..replica(&lock) };
    for replica in [stops, replica(&lost), replica(&away)] {
        let seen = Outside { key: &key, holder_node: None, deaf: false };
        assert_eq!(Group::default().step(Event::Turn(seen), replica, s(100)), None);
    }
}

fn name_of(phase: &Phase) -> &'static str {
    match phase {
        Phase::Unowned { .. } => "Unowned",
        Phase::Claiming(_) => "Claiming",
        Phase::Ours { .. } => "Ours",
        Phase::Given(_) => "Given",
        Phase::Elsewhere { .. } => "Elsewhere",
        Phase::Yielded { .. } => "Yielded",
        Phase::Foreign { .. } => "Foreign",
        Phase::Refused { .. } => "Refused",
    }
}

#[test]
fn a_replica_whose_session_outlives_an_outage_claims_at_once_what_it_owned() {
    let living = [SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let before = sessions(&[others[0], chosen]);
    let mut owned = Group::default();
    assert!(!claims(&mut owned, false, &before, s(100)) && claims(&mut owned, false, &before, s(102)));
    answered(&mut owned, Claimed::Ours(row(others[0])), &before, s(102));
    // The database was away for a ttl, so that the session may have expired.
    let again = |sessions: &Sessions, event| {
        let mut group = owned.clone();
        group.step(event, replica(sessions), s(106));
        let times = [106_000, 107_999, 108_000].map(Duration::from_millis);
        times.into_iter().find(|at| claims(&mut group, false, sessions, *at))
    };
    assert_eq!(again(&before, Event::SessionEnded), Some(s(106)), "it has not");
    // Another session does not own the row. Neither does this one, if a call has shown that.
    let with = |new| sessions(&[new, chosen]);
    let falls_elsewhere = |new: &SessionId| owner(&key(), None, with(*new).living().iter()) == Some(chosen);
    let newer = std::iter::repeat_with(SessionId::new).find(falls_elsewhere).expect("one of many");
    assert_eq!(again(&with(newer), Event::SessionEnded), Some(s(108)));
    assert_eq!(again(&before, Event::Lost), Some(s(108)));
    assert_eq!(again(&before, Event::PassOn), Some(s(108)));
}

/// Phases of every kind, with the data that makes a difference.
fn phases(other: SessionId) -> Vec<Phase> {
    let vacancy = Vacancy::default();
    let claiming = |from| [false, true].map(|again| Phase::Claiming(Claim { from, vacancy, again }));
    let gone = SessionId::new();
    let mut all = vec![
        Phase::Ours { session: SessionId::new(), since: Duration::ZERO },
        Phase::Given(vacancy),
        Phase::Foreign { group: "other".into(), vacancy },
        Phase::Refused { reason: "no".into(), vacancy },
    ];
    for flag in [false, true] {
        all.push(Phase::Unowned { vacancy, ours_before: flag });
        all.extend(claiming(Origin::Unowned { ours_before: flag }));
        let session = if flag { other } else { gone };
        let not_before = if flag { Duration::ZERO } else { s(1_000) };
        all.push(Phase::Elsewhere { session, not_before: Duration::ZERO });
        all.push(Phase::Elsewhere { session, not_before });
        all.push(Phase::Yielded { session, vacancy });
        all.push(Phase::Yielded { session, vacancy: Vacancy { not_before, ..vacancy } });
        all.extend(claiming(Origin::Yielded(session)));
    }
    all.extend(claiming(Origin::Given));
    all
}

/// Events of every kind, with the data that makes a difference.
fn events(key: &Key, own: SessionId, other: SessionId) -> Vec<(&'static str, Event<'_>)> {
    let pod: Arc<str> = "b".into();
    let mut all = vec![
        ("GivenUp", Event::GivenUp),
        ("SessionEnded", Event::SessionEnded),
        ("Lost", Event::Lost),
        ("PassOn", Event::PassOn),
        ("NotGiven", Event::NotGiven),
        ("Unheard", Event::Unheard { pod: pod.clone(), blind: false }),
        ("Heard", Event::Heard { pod: pod.clone(), silence_timeout: s(5) }),
        ("HeardElsewhere", Event::HeardElsewhere(pod)),
    ];
    for deaf in [false, true] {
        all.push(("Turn", Event::Turn(Outside { key, holder_node: None, deaf })));
    }
    for bits in 0..=u8::MAX {
        let bit = |at: u8| bits & (1 << at) != 0;
        let inside = Inside {
            has_holder: bit(0),
            reported: bit(1),
            unreportable: bit(2),
            heard_elsewhere: bit(3),
            blind: bit(4),
            works: bit(5),
            misses_candidates: bit(6),
            unheard: bit(7),
            ..at_rest(key)
        };
        all.push(("Beat", Event::Beat(inside)));
    }
    let lock = |claimed| Ok(Answer::Lock(Box::new(claimed)));
    for session in [own, SessionId::new()] {
        for answer in [
            lock(Claimed::Ours(row(own))),
            lock(Claimed::By { session: other }),
            lock(Claimed::Busy),
            lock(Claimed::Foreign { group: "other".to_owned() }),
            lock(Claimed::Missing),
            lock(Claimed::ProtocolNewer { protocol: 9 }),
            Ok(Answer::Provisional(Box::new(Claimed::Missing))),
            Ok(Answer::Buried),
            Ok(Answer::Refused("no".into())),
            Err(Failure { waits: true }),
        ] {
            all.push(("Answered", Event::Answered(session, answer)));
        }
    }
    all
}

/// All changes of phase that are possible: the phase, the event, and the phases after it.
fn possible() -> BTreeSet<(&'static str, &'static str, &'static str)> {
    let living = [SessionId::new(), SessionId::new()];
    let (chosen, others) = chosen(&living);
    let key = key();
    let mut found = BTreeSet::new();
    for (own, other) in [(chosen, others[0]), (others[0], chosen)] {
        let lock = sessions(&[own, other]);
        let count = phases(other).len();
        for (index, stopping, now) in (0..count)
            .flat_map(|index| [false, true].map(|stopping| (index, stopping)))
            .flat_map(|(index, stopping)| [s(500), s(2_000)].map(|now| (index, stopping, now)))
        {
            for (kind, event) in events(&key, own, other) {
                let phase = phases(other).swap_remove(index);
                let before = name_of(&phase);
                let mut group = Group { phase, ..Group::default() };
                // The second look is after the patience.
                let replica = Replica { stopping, ..replica(&lock) };
                let again = if let Event::Turn(seen) = &event { Some(*seen) } else { None };
                group.step(event, replica, now);
                if let Some(seen) = again.filter(|_| name_of(group.phase()) == before) {
                    group.step(Event::Turn(seen), replica, now + TTL);
                }
                let after = name_of(group.phase());
                if after != before {
                    found.insert((before, kind, after));
                }
            }
        }
    }
    found
}

#[test]
fn the_table_of_phases_says_what_the_machine_does() {
    let mut actual = Ways::new();
    for (before, event, after) in possible() {
        actual.entry(before.to_owned()).or_default().insert((event.to_owned(), after.to_owned()));
    }
    assert_eq!(documented(include_str!("../mod.rs")), actual);
}

/// The room for groups is not exceeded.
#[test]
fn only_so_many_groups_are_given_away_at_a_heartbeat() {
    let lock = sessions(&[SessionId::new()]);
    let mut room: Room = Batches::default().room(false, replica(&lock), s(100));
    for _ in 0..50 {
        assert!(room.has(Why::HeardElsewhere));
        room.take(Why::HeardElsewhere);
    }
    assert!(
        !room.has(Why::HeardElsewhere) && room.has(Why::MissesCandidates) && room.has(Why::FallsElsewhere)
    );
}

#[test]
fn a_group_without_a_working_holder_is_given_away_if_ready_pods_are_not_heard_here() {
    let (alone, two) = ([SessionId::new()], [SessionId::new(), SessionId::new()]);
    let (key, (own, others)) = (key(), chosen(&two));
    let two = sessions(&[own, others[0]]);
    let gives = |of: &Sessions, works, misses_candidates| {
        let seen = Inside { has_holder: works, works, misses_candidates, ..at_rest(&key) };
        Group::ours().step(Event::Beat(seen), replica(of), s(1_000))
    };
    assert!(matches!(gives(&two, false, true), Some(Effect::Give(Why::MissesCandidates))));
    assert_eq!(gives(&two, true, true), None, "the holder stays what it is");
    assert_eq!(gives(&two, false, false), None, "this replica can find a holder");
    assert_eq!(gives(&sessions(&alone), false, true), None, "no other replica could take it");
}

/// The holder is silent for both replicas, so the other one waits for a whole ttl.
#[test]
fn a_group_whose_candidates_the_owner_misses_goes_to_a_replica_that_does_not_hear_the_holder_either() {
    let living = [SessionId::new(), SessionId::new()];
    let key = key();
    for (own, other) in [(living[0], living[1]), (living[1], living[0])] {
        let (of_own, of_other) = (sessions(&[own, other]), sessions(&[other, own]));
        for phase in [0, 300, 700] {
            let mut owner = Group::ours();
            let mut next = self::of_other(own, &of_other);
            let seen = Inside { works: false, misses_candidates: true, ..at_rest(&key) };
            let given = owner.step(Event::Beat(seen), replica(&of_own), s(1_000));
            assert_eq!(given, Some(Effect::Give(Why::MissesCandidates)));
            give_up(&mut next, &of_other);
            let taker = (1..).find_map(|tick| {
                let now = s(1_000) + Duration::from_millis(phase + tick * 100);
                let turn = || Event::Turn(Outside { key: &key, holder_node: None, deaf: true });
                let takes = next.step(turn(), replica(&of_other), now).is_some();
                let takes_back = owner.step(turn(), replica(&of_own), now).is_some();
                (takes || takes_back).then_some(takes)
            });
            assert_eq!(taker, Some(true), "the former owner claimed it first");
        }
    }
}

/// Another replica made a pod active meanwhile, so it heard what this one did not. It can do so again.
#[test]
fn an_owner_that_hears_no_candidate_gives_the_group_away_again_once_the_holder_has_changed() {
    let living = [SessionId::new(), SessionId::new()];
    let (own, others) = chosen(&living);
    let (of_own, key) = (sessions(&[own, others[0]]), key());
    let mut group = Group::ours();
    let gives = |group: &mut Group, has_holder, held_since, now| {
        let seen = Inside { has_holder, held_since, works: false, misses_candidates: true, ..at_rest(&key) };
        let gives = group.step(Event::Beat(seen), replica(&of_own), now).is_some();
        if gives {
            claims(group, false, &of_own, now + TTL * 2);
            answered(group, Claimed::Ours(row(own)), &of_own, now + TTL * 2);
            assert!(group.is_ours());
        }
        gives
    };
    assert!(gives(&mut group, true, s(0), s(1_000)));
    assert!(!gives(&mut group, true, s(0), s(1_012)), "the holder is the same");
    assert!(!gives(&mut group, false, s(1_002), s(1_012)), "the former one was only replaced by none");
    assert!(gives(&mut group, true, s(1_002), s(1_012)));
    assert!(!gives(&mut group, true, s(1_002), s(1_311)));
    assert!(gives(&mut group, true, s(1_002), s(1_312)));
}

#[test]
fn the_deputy_probes_the_holder_and_all_pods_once_the_owner_seems_to_have_stopped() {
    let replicas = ["n1", "n2", "n3"];
    let replicas = replicas.map(|node| Peer { session: SessionId::new(), place: Some(node.to_owned()) });
    let [own, owner, third] = [0, 1, 2].map(|index: usize| replicas[index].session);
    let view = |suspects: &[SessionId]| {
        let (mut sessions, at) = (Sessions::default(), (Duration::ZERO, Duration::ZERO));
        sessions.beat(own, replicas.to_vec(), suspects.to_vec(), at);
        sessions
    };
    let of = |phase: Phase| Group { phase, ..Group::default() };
    let by_owner = of(Phase::Elsewhere { session: owner, not_before: Duration::ZERO });
    // On the third one's node only this replica is elsewhere, beside the owner.
    let probing = |group: &Group, node, suspects: &[SessionId]| group.probing(&key(), node, &view(suspects));
    assert_eq!(probing(&by_owner, Some("n3"), &[]), Probing::Holder);
    assert_eq!(
        probing(&by_owner, Some("n1"), &[]),
        Probing::None,
        "the third one is on another node than the holder"
    );
    assert_eq!(probing(&by_owner, Some("n1"), &[third]), Probing::Holder, "the third one is not counted on");
    assert_eq!(probing(&by_owner, Some("n3"), &[owner]), Probing::All);
    assert_eq!(probing(&Group::ours(), None, &[]), Probing::All);
    let foreign = of(Phase::Foreign { group: "other".into(), vacancy: Vacancy::default() });
    assert_eq!(probing(&foreign, None, &[]), Probing::None);
    assert_eq!(by_owner.probing(&key(), None, &Sessions::default()), Probing::None);
}
