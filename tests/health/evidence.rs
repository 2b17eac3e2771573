//! Tests of the verdict after each event, and properties that hold for every order of events.

use std::time::Duration;

use leadergroup::{
    api::{LeaderGroupSpec, Reason, Verdict},
    health::{
        JudgedAs, NodeLease, NodeLeases, PodEvidence, PodFacts, PodPhase, ProbeFailure, ProbeKind,
        ProbeOutcome, Readiness, ResolvedProbe, Restarts, Thresholds, VoidCause,
    },
};
use proptest::prelude::*;

const R: u64 = 1_000;
const T: u64 = 5_000;
const TIMEOUT: u64 = 1_000;
const N: u32 = 2;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn thresholds() -> Thresholds {
    Thresholds { silence_timeout: ms(T), interval: ms(R), timeout: ms(TIMEOUT), failure_threshold: N }
}

fn facts() -> PodFacts {
    PodFacts {
        name: "web-0".into(),
        namespace: "default".into(),
        uid: "u0".into(),
        resource_version: "1".into(),
        created: None,
        node: Some("n1".into()),
        ip: Some([198, 18, 0, 1].into()),
        deleting: false,
        phase: PodPhase::Running,
        disruption_target: false,
        readiness: Readiness::Ready,
        container_problem: None,
        restarts: Some(restarts(0)),
        ended_agents: Vec::new(),
        role: None,
        stamp: None,
        probe: Ok(Some(ResolvedProbe { kind: ProbeKind::TcpSocket, port: 80, timeout: ms(TIMEOUT) })),
    }
}

fn restarts(count: i32) -> Restarts {
    Restarts { container: "web".into(), count }
}

fn ready() -> PodEvidence {
    let mut evidence = PodEvidence::new(thresholds());
    evidence.kubelet(&facts(), ms(0));
    evidence
}

#[test]
fn the_program_of_a_supervised_holder_may_need_time_to_start() {
    let probe = ResolvedProbe { kind: ProbeKind::Agent, port: 9470, timeout: ms(TIMEOUT) };
    for (kind, counts) in [(ProbeKind::Agent, false), (ProbeKind::TcpSocket, true)] {
        let mut evidence = PodEvidence::new(thresholds());
        let facts = PodFacts { probe: Ok(Some(ResolvedProbe { kind, ..probe.clone() })), ..facts() };
        evidence.kubelet(&facts, ms(0));
        evidence.kubelet(&PodFacts { readiness: Readiness::NotReady, ..facts }, ms(1));
        let against = Verdict::Failing(Reason::PodNotReady);
        assert_eq!(of_holder(&evidence, 2) == against, counts);
        let candidate = evidence.verdict(JudgedAs::Candidate, &NodeLease::default(), ms(2));
        assert_eq!(candidate, against, "a standby that was ready could start before");
    }
}

fn of_holder(evidence: &PodEvidence, now: u64) -> Verdict {
    evidence.verdict(JudgedAs::Holder, &NodeLease::default(), ms(now))
}

/// Sends probe number `at / R` at `at`, with this outcome.
fn probe(evidence: &mut PodEvidence, at: u64, outcome: ProbeOutcome) {
    evidence.probe_sent(at / R, ms(at));
    evidence.probe_answered(at / R, ms(at), outcome);
}

/// A probe that could not be sent.
fn void(evidence: &mut PodEvidence, at: u64, cause: VoidCause) {
    evidence.probe_answered(at / R, ms(at), ProbeOutcome::Void(cause));
}

#[test]
fn a_replica_whose_probes_fail_for_half_a_silence_timeout_says_why_and_asks_the_others() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in [2_000, 3_000, 4_000] {
        void(&mut evidence, at, VoidCause::Crowded);
        assert_eq!(evidence.hindrance(ms(at)), None, "at {at}");
        assert!(!evidence.asks_others(ms(at)), "at {at}");
    }
    void(&mut evidence, 5_000, VoidCause::Descriptors);
    assert_eq!(evidence.hindrance(ms(5_000)), Some(VoidCause::Descriptors));
    assert!(evidence.asks_others(ms(5_000)));
    assert!(!evidence.asks_others(ms(6_000)), "it has just asked");
    // The answer of another replica is believed once this one has not judged the pod for a silence timeout.
    evidence.vouched_for(ms(5_500));
    assert_eq!(of_holder(&evidence, 6_999), Verdict::Unknown);
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(6_000)), Some(ms(7_000)));
    assert_eq!(of_holder(&evidence, 7_000), Verdict::HeardElsewhere);
    // Any evidence ends it.
    for outcome in [ProbeOutcome::Success, ProbeOutcome::Unanswered] {
        let mut judged = evidence.clone();
        probe(&mut judged, 7_000, outcome);
        assert_eq!(judged.hindrance(ms(7_000)), None, "{outcome:?}");
    }
    assert_eq!(evidence.hindrance(ms(9_000)), None, "it no longer tries");
}

#[test]
fn neither_a_single_stall_nor_what_comes_out_of_turn_hinders_a_replica() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    void(&mut evidence, 8_000, VoidCause::Stalled);
    assert_eq!(evidence.hindrance(ms(8_000)), None);
    assert!(!evidence.asks_others(ms(8_000)));
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in [2_000, 3_000, 4_000, 5_000] {
        void(&mut evidence, at, VoidCause::OutOfTurn);
    }
    assert_eq!((evidence.hindrance(ms(5_000)), evidence.asks_others(ms(5_000))), (None, false));
}

/// A container that ends and is restarted within a second may never be reported as ended or not ready.
#[test]
fn a_restart_counts_once_until_the_new_run_has_proved_itself() {
    let restarted = |count| PodFacts { restarts: Some(restarts(count)), ..facts() };
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    evidence.kubelet(&restarted(1), ms(1_500));
    let failing = Verdict::Failing(Reason::ContainerRestarted);
    for judged_as in [JudgedAs::Holder, JudgedAs::Candidate] {
        assert_eq!(evidence.verdict(judged_as, &NodeLease::default(), ms(1_500)), failing);
    }
    evidence.kubelet(&restarted(1), ms(1_600));
    assert_eq!(of_holder(&evidence, 1_999), failing, "the success was the former run's");
    let mut proved = evidence.clone();
    probe(&mut proved, 2_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&proved, 2_010), Verdict::Eligible);
    // What happens to the new run later is no longer about the restart.
    probe(&mut proved, 3_000, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    assert_eq!(of_holder(&proved, 3_010), Verdict::Unknown);
    // Neither is what a new probe has yet to show.
    proved.retarget(1 << 32);
    assert_eq!(of_holder(&proved, 3_020), Verdict::Unknown);
    // A replica that does not probe the pod sees no success, which must not count against the pod later.
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(1_600)), Some(ms(4_000)));
    assert_eq!(of_holder(&evidence, 4_499), failing);
    assert_eq!(of_holder(&evidence, 4_500), Verdict::Unknown);
}

/// While the API server was unavailable, the container crashed and came back; since then every probe has succeeded.
#[test]
fn a_restart_seen_late_does_not_count_after_a_later_success() {
    let restarted = |count| PodFacts { restarts: Some(restarts(count)), ..facts() };
    let mut evidence = ready();
    evidence.news_late_until(ms(30_000));
    evidence.news_late_until(ms(20_000));
    probe(&mut evidence, 25_000, ProbeOutcome::Success);
    evidence.kubelet(&restarted(1), ms(25_500));
    assert_eq!(of_holder(&evidence, 25_500), Verdict::Eligible);
    // Negative evidence counts as always.
    let mut refused = evidence.clone();
    probe(&mut refused, 26_000, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    probe(&mut refused, 27_000, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    assert_eq!(of_holder(&refused, 27_000), Verdict::Failing(Reason::ProbeRefused));
    // The same count in a fresh report is still the old restart; a larger count is a new one.
    evidence.kubelet(&restarted(1), ms(30_000));
    assert_eq!(of_holder(&evidence, 26_000), Verdict::Eligible);
    evidence.kubelet(&restarted(2), ms(30_000));
    assert_eq!(of_holder(&evidence, 30_000), Verdict::Failing(Reason::ContainerRestarted));
}

#[test]
fn only_a_count_that_grows_is_a_restart() {
    let of = |container: &str, count| Some(Restarts { container: container.into(), ..restarts(count) });
    let mut evidence = PodEvidence::new(thresholds());
    for (restarts, what) in [
        (of("web", 3), "what happened before it was first seen"),
        (of("web", 3), "the same again"),
        (of("web", 1), "an older version of the pod"),
        (of("web", 3), "and back"),
        (None, "no report"),
        (of("sidecar", 9), "another container is the main one now"),
    ] {
        evidence.kubelet(&PodFacts { restarts, ..facts() }, ms(10));
        assert_eq!(of_holder(&evidence, 10), Verdict::Unknown, "{what}");
    }
    evidence.kubelet(&PodFacts { restarts: of("sidecar", 10), ..facts() }, ms(20));
    assert_eq!(of_holder(&evidence, 20), Verdict::Failing(Reason::ContainerRestarted));
}

#[test]
fn a_pod_is_eligible_by_a_fresh_success_and_the_kubelets_report() {
    let mut evidence = ready();
    assert_eq!(
        of_holder(&evidence, 0),
        Verdict::Unknown,
        "the kubelet's report is not sufficient if there is a probe"
    );
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 1_010), Verdict::Eligible);
    assert_eq!(of_holder(&evidence, 3_999), Verdict::Eligible);
    assert_eq!(
        of_holder(&evidence, 4_000),
        Verdict::Unknown,
        "two intervals and a timeout later it is stale"
    );
    probe(&mut evidence, 4_000, ProbeOutcome::Unanswered);
    probe(&mut evidence, 5_000, ProbeOutcome::Success);
    let mut unready = facts();
    unready.readiness = Readiness::Unknown;
    evidence.kubelet(&unready, ms(5_001));
    assert_eq!(
        of_holder(&evidence, 5_001),
        Verdict::Unknown,
        "a success is not sufficient without the kubelet's report"
    );
}

#[test]
fn the_last_result_must_be_good() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    probe(&mut evidence, 2_000, ProbeOutcome::Unanswered);
    assert_eq!(of_holder(&evidence, 3_000), Verdict::Unknown);
    probe(&mut evidence, 3_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 3_000), Verdict::Eligible);
}

#[test]
fn refusals_in_a_row_fail_a_pod_and_one_does_not() {
    let refused = ProbeOutcome::Refused(ProbeFailure::HttpStatus(503));
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    probe(&mut evidence, 2_000, refused);
    assert_eq!(of_holder(&evidence, 2_000), Verdict::Unknown);
    probe(&mut evidence, 3_000, ProbeOutcome::Success);
    probe(&mut evidence, 4_000, refused);
    assert_eq!(of_holder(&evidence, 4_000), Verdict::Unknown, "the success in between resets the count");
    probe(&mut evidence, 5_000, ProbeOutcome::Refused(ProbeFailure::ConnectionRefused));
    assert_eq!(of_holder(&evidence, 5_000), Verdict::Failing(Reason::ProbeRefused));
    probe(&mut evidence, 6_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 6_000), Verdict::Eligible);
}

#[test]
fn refusals_with_a_gap_in_our_own_sending_are_not_in_a_row() {
    let refused = ProbeOutcome::Refused(ProbeFailure::Reset);
    let mut evidence = ready();
    probe(&mut evidence, 1_000, refused);
    probe(&mut evidence, 9_000, refused);
    assert_eq!(of_holder(&evidence, 9_000), Verdict::Unknown);
    probe(&mut evidence, 10_000, refused);
    assert_eq!(of_holder(&evidence, 10_000), Verdict::Failing(Reason::ProbeRefused));
}

#[test]
fn refusals_grow_stale_like_everything_else() {
    let refused = ProbeOutcome::Refused(ProbeFailure::HttpStatus(500));
    let mut evidence = ready();
    probe(&mut evidence, 1_000, refused);
    probe(&mut evidence, 2_000, refused);
    assert_eq!(of_holder(&evidence, 3_999), Verdict::Failing(Reason::ProbeRefused));
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(2_000)), Some(ms(4_000)));
    assert_eq!(of_holder(&evidence, 4_000), Verdict::Unknown, "no probe was sent for two intervals");
}

#[test]
fn silence_begins_when_the_last_answered_probe_was_sent() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in [2_000, 3_000, 4_000, 5_000] {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
    }
    assert_eq!(of_holder(&evidence, 5_999), Verdict::Unknown);
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(5_000)), Some(ms(6_000)));
    assert_eq!(of_holder(&evidence, 6_000), Verdict::Silent);
}

#[test]
fn others_are_asked_half_a_silence_timeout_before_the_silence_and_their_answer_counts_for_a_silence_timeout()
{
    let mut evidence = ready();
    let lost = |evidence: &mut PodEvidence, at| probe(evidence, at, ProbeOutcome::Unanswered);
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    assert!(!evidence.asks_others(ms(3_900)), "no later probe was lost");
    lost(&mut evidence, 2_000);
    assert!(!evidence.asks_others(ms(3_000)), "one lost probe is no reason");
    lost(&mut evidence, 3_000);
    assert!(evidence.asks_others(ms(4_000)));
    assert!(!evidence.asks_others(ms(5_000)), "the question was just asked");
    lost(&mut evidence, 4_000);
    evidence.vouched_for(ms(4_100));
    assert_eq!(of_holder(&evidence, 5_999), Verdict::Unknown, "it may still answer");
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(5_000)), Some(ms(6_000)));
    for at in [5_000, 6_000, 7_000, 8_000] {
        lost(&mut evidence, at);
    }
    assert_eq!([6_000, 9_099].map(|at| of_holder(&evidence, at)), [Verdict::HeardElsewhere; 2]);
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(9_000)), Some(ms(9_100)));
    assert_eq!(of_holder(&evidence, 9_100), Verdict::Silent, "no replica hears it any more");
    assert!(evidence.asks_others(ms(9_100)));
    // While this replica is cut off, nobody is silent, but others may hear the pod.
    evidence.vouched_for(ms(9_200));
    evidence.cut_off_until(ms(9_300));
    assert_eq!(of_holder(&evidence, 9_400), Verdict::HeardElsewhere);
    probe(&mut evidence, 9_500, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 9_600), Verdict::Eligible);
}

#[test]
fn a_replica_vouches_for_a_pod_that_answered_after_the_question_and_once_for_each() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    assert!(!evidence.vouches(false, ms(3_000)), "nobody has asked");
    evidence.asked(false, ms(1_500));
    assert!(!evidence.vouches(true, ms(3_000)), "it may have failed after the last answer");
    probe(&mut evidence, 2_000, ProbeOutcome::Success);
    assert!(evidence.vouches(false, ms(3_000)) && !evidence.vouches(false, ms(3_000)));
    assert!(evidence.asked(false, ms(2_500)));
    evidence.probe_answered_late(5, ms(2_500));
    assert!(evidence.vouches(false, ms(3_000)), "a late answer proves that it lives");
    assert!(evidence.asked(true, ms(3_500)));
    assert!(!evidence.vouches(false, ms(3_500)));
    assert!(evidence.vouches(true, ms(3_500)), "the one that asks is blind, and this one is not");
    assert!(evidence.asked(true, ms(4_500)));
    assert!(!evidence.vouches(true, ms(9_501)), "the question has expired");
}

#[test]
fn of_many_questions_one_in_an_interval_counts_and_is_answered() {
    let mut evidence = ready();
    let (mut probed, mut vouched) = (0, 0);
    for at in (1_000..11_000).step_by(10) {
        // A program under another user of the database asks all the time.
        probed += usize::from(evidence.asked(false, ms(at)));
        if at % 1_000 == 500 {
            evidence.probe_sent(at / 1_000, ms(at));
        }
        if at % 1_000 == 530 {
            evidence.probe_answered(at / 1_000, ms(at - 30), ProbeOutcome::Success);
        }
        vouched += usize::from(evidence.vouches(false, ms(at)));
    }
    assert_eq!((probed, vouched), (10, 10));
    let mut evidence = ready();
    assert!(evidence.asked(false, ms(1_000)) && !evidence.asked(true, ms(1_100)));
    assert!(evidence.vouches(true, ms(1_200)), "one of the two is blind");
}

/// The owner is told all the time that another replica hears the pod, and that replica does not take the group.
#[test]
fn answers_of_others_are_relied_on_for_some_minutes_by_the_owner_and_without_limit_by_others() {
    for (owner, silent_at) in [(true, Some(122_000)), (false, None)] {
        let mut evidence = ready();
        probe(&mut evidence, 1_000, ProbeOutcome::Success);
        let mut verdicts = Vec::new();
        for at in (2_000..400_000).step_by(1_000) {
            probe(&mut evidence, at, ProbeOutcome::Unanswered);
            evidence.vouched_for(ms(at));
            if owner {
                evidence.relies_on_others(ms(at));
            }
            verdicts.push((at, of_holder(&evidence, at)));
        }
        let silent = |verdict: &Verdict| matches!(verdict, Verdict::Silent);
        assert_eq!(verdicts.iter().find(|(_, verdict)| silent(verdict)).map(|(at, _)| *at), silent_at);
        let after = verdicts.iter().filter(|(at, _)| silent_at.is_some_and(|from| *at >= from));
        assert!(after.clone().all(|(_, verdict)| silent(verdict)), "until the pod is heard");
    }
}

#[test]
fn reliance_on_others_begins_again_when_the_pod_was_heard_and_after_some_minutes_without_it() {
    let lost = |evidence: &mut PodEvidence, from: u64, to: u64| {
        for at in (from..to).step_by(1_000) {
            probe(evidence, at, ProbeOutcome::Unanswered);
            evidence.vouched_for(ms(at));
        }
    };
    let elsewhere = |evidence: &PodEvidence, at| of_holder(evidence, at) == Verdict::HeardElsewhere;
    // It was heard, while others said all the time that they hear it, too.
    let mut evidence = ready();
    for at in (1_000..300_000).step_by(1_000) {
        probe(&mut evidence, at, ProbeOutcome::Success);
        evidence.vouched_for(ms(at + 500));
        evidence.relies_on_others(ms(at + 500));
    }
    lost(&mut evidence, 300_000, 400_000);
    assert!(elsewhere(&evidence, 400_000));
    // Another replica has owned the group for some minutes, since this one relied on it.
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    lost(&mut evidence, 2_000, 10_000);
    evidence.relies_on_others(ms(10_000));
    lost(&mut evidence, 10_000, 300_000);
    assert!(elsewhere(&evidence, 300_000));
    evidence.relies_on_others(ms(300_000));
    lost(&mut evidence, 300_000, 400_000);
    assert!(elsewhere(&evidence, 400_000));
}

#[test]
fn a_pod_that_never_answered_us_is_silent_a_silence_timeout_after_we_began_to_ask() {
    let mut evidence = ready();
    for at in [3_000, 4_000, 5_000, 6_000, 7_000] {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
    }
    assert_eq!(of_holder(&evidence, 7_999), Verdict::Unknown);
    assert_eq!(of_holder(&evidence, 8_000), Verdict::Silent);
}

#[test]
fn a_silence_counts_from_the_last_answer_or_from_the_first_probe_of_a_pod_that_never_answered() {
    let since = |evidence: &PodEvidence| evidence.silent_since(&NodeLease::default(), ms(9_000));
    let mut evidence = ready();
    for at in [3_000, 4_000, 5_000, 6_000, 7_000, 8_000] {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
    }
    assert_eq!((of_holder(&evidence, 9_000), since(&evidence)), (Verdict::Silent, Some(ms(3_000))));
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in [2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000] {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
    }
    assert_eq!((of_holder(&evidence, 9_000), since(&evidence)), (Verdict::Silent, Some(ms(1_000))));
    // An answer that came too late is one.
    evidence.probe_answered_late(2, ms(2_000));
    assert_eq!((of_holder(&evidence, 9_000), since(&evidence)), (Verdict::Silent, Some(ms(2_000))));
}

#[test]
fn probes_that_may_still_be_answered_are_no_silence() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Unanswered);
    probe(&mut evidence, 2_000, ProbeOutcome::Unanswered);
    probe(&mut evidence, 3_000, ProbeOutcome::Success);
    for n in 4..=9 {
        evidence.probe_sent(n, ms(n * R));
    }
    assert_eq!(of_holder(&evidence, 9_000), Verdict::Unknown, "no later probe has ended yet");
    evidence.probe_answered(4, ms(4_000), ProbeOutcome::Unanswered);
    assert_eq!(of_holder(&evidence, 9_000), Verdict::Unknown, "one lost probe is no silence");
    evidence.probe_answered(6, ms(6_000), ProbeOutcome::Unanswered);
    assert_eq!(of_holder(&evidence, 9_000), Verdict::Silent);
    evidence.probe_answered(5, ms(5_000), ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 9_000), Verdict::Unknown, "a late answer is an answer");
}

#[test]
fn no_proof_is_older_than_the_silence_timeout() {
    let mut evidence = ready();
    evidence.set_thresholds(Thresholds { timeout: ms(T), ..thresholds() });
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 5_999), Verdict::Eligible);
    assert_eq!(of_holder(&evidence, 6_000), Verdict::Unknown, "two intervals and a timeout would be 8 s");
}

#[test]
fn a_stop_of_this_process_restarts_the_silence() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    probe(&mut evidence, 2_000, ProbeOutcome::Unanswered);
    probe(&mut evidence, 3_000, ProbeOutcome::Unanswered);
    assert_eq!(of_holder(&evidence, 100_000), Verdict::Unknown, "no probe was sent for long");
    for at in [100_000, 101_000, 102_000, 103_000, 104_000] {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
        assert_eq!(of_holder(&evidence, at), Verdict::Unknown);
    }
    assert_eq!(of_holder(&evidence, 105_000), Verdict::Silent);
    assert_eq!(of_holder(&evidence, 106_000), Verdict::Unknown, "again no probe was sent for long");
}

#[test]
fn silence_begins_anew_when_another_node_is_reached_unless_the_pod_was_silent_before_none_was() {
    // In the last case others were reached until shortly before: a node is lost, and two of its pods are probed.
    let cases =
        [(1_500, 9_300, Verdict::Unknown), (3_500, 9_300, Verdict::Silent), (1_500, 3_400, Verdict::Silent)];
    for (reached_none_since, reached_at, expected) in cases {
        let mut evidence = ready();
        probe(&mut evidence, 1_000, ProbeOutcome::Success);
        for at in (2_000..=9_000).step_by(1_000) {
            probe(&mut evidence, at, ProbeOutcome::Unanswered);
        }
        assert_eq!(of_holder(&evidence, 9_300), Verdict::Silent);
        evidence.unreached_between(ms(reached_none_since), ms(reached_at));
        assert_eq!(of_holder(&evidence, 9_300), expected, "since {reached_none_since}");
    }
}

#[test]
fn silence_begins_anew_once_until_the_pod_is_heard_again() {
    let mut evidence = ready();
    let silent = |evidence: &mut PodEvidence, from: u64| {
        for at in (from..from + 8_000).step_by(1_000) {
            probe(evidence, at, ProbeOutcome::Unanswered);
        }
        of_holder(evidence, from + 7_300)
    };
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    assert_eq!(silent(&mut evidence, 2_000), Verdict::Silent);
    evidence.unreached_between(ms(1_500), ms(9_300));
    assert_eq!(of_holder(&evidence, 9_300), Verdict::Unknown);
    assert_eq!(silent(&mut evidence, 10_000), Verdict::Silent);
    evidence.unreached_between(ms(10_500), ms(17_300));
    assert_eq!(of_holder(&evidence, 17_300), Verdict::Silent, "others are reached now and then");
    probe(&mut evidence, 18_000, ProbeOutcome::Success);
    assert_eq!(silent(&mut evidence, 19_000), Verdict::Silent);
    evidence.unreached_between(ms(18_500), ms(26_300));
    assert_eq!(of_holder(&evidence, 26_300), Verdict::Unknown);
}

#[test]
fn time_without_a_network_is_not_silence() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in (2_000..=11_000).step_by(1_000) {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
    }
    evidence.probe_sent(12, ms(12_000));
    assert_eq!(of_holder(&evidence, 12_300), Verdict::Silent);
    evidence.cut_off_until(ms(12_300));
    assert_eq!(of_holder(&evidence, 12_300), Verdict::Unknown);
    evidence.probe_answered(12, ms(12_000), ProbeOutcome::Unanswered);
    // Sent before the network was back: it does not count, and does not start a silence.
    assert_eq!(of_holder(&evidence, 17_000), Verdict::Unknown);
    for at in (13_000..=18_000).step_by(1_000) {
        probe(&mut evidence, at, ProbeOutcome::Unanswered);
        let expected = if at < 18_000 { Verdict::Unknown } else { Verdict::Silent };
        assert_eq!(of_holder(&evidence, at), expected, "at {at}");
    }
    probe(&mut evidence, 19_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 19_000), Verdict::Eligible);
}

#[test]
fn probes_that_could_not_be_sent_count_for_nothing() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    for at in 2..30 {
        evidence.probe_answered(at, ms(at * R), ProbeOutcome::Void(VoidCause::Stalled));
        assert!(
            evidence.verdict(JudgedAs::Holder, &NodeLease::default(), ms(at * R + 999)).against().is_none()
        );
    }
}

#[test]
fn probes_of_a_former_address_count_for_nothing() {
    let mut evidence = ready();
    probe(&mut evidence, 1_000, ProbeOutcome::Success);
    evidence.retarget(1 << 32);
    assert_eq!(of_holder(&evidence, 1_001), Verdict::Unknown);
    probe(&mut evidence, 2_000, ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 2_001), Verdict::Unknown, "it was sent to the previous address");
    evidence.probe_answered(1 << 32, ms(2_500), ProbeOutcome::Success);
    assert_eq!(of_holder(&evidence, 2_501), Verdict::Eligible);
}

#[test]
fn the_end_of_a_pod_overrides_all_other_evidence() {
    type End = fn(&mut PodFacts);
    let ends: [(End, Reason); 4] = [
        (|f| f.deleting = true, Reason::PodDeleted),
        (|f| f.phase = PodPhase::Failed, Reason::PodFinished),
        (|f| f.phase = PodPhase::Succeeded, Reason::PodFinished),
        (|f| f.disruption_target = true, Reason::DisruptionTarget),
    ];
    for (end, reason) in ends {
        let mut evidence = ready();
        probe(&mut evidence, 1_000, ProbeOutcome::Success);
        let mut ended = facts();
        end(&mut ended);
        evidence.kubelet(&ended, ms(1_001));
        for judged_as in [JudgedAs::Holder, JudgedAs::Candidate] {
            assert_eq!(evidence.verdict(judged_as, &NodeLease::default(), ms(1_001)), Verdict::Ended(reason));
        }
    }
}

#[test]
fn not_ready_counts_against_a_pod_that_has_been_ready() {
    let mut unready = facts();
    unready.readiness = Readiness::NotReady;
    let mut evidence = PodEvidence::new(thresholds());
    evidence.kubelet(&unready, ms(0));
    let of_candidate =
        |evidence: &PodEvidence| evidence.verdict(JudgedAs::Candidate, &NodeLease::default(), ms(1));
    assert_eq!(of_candidate(&evidence), Verdict::Unknown, "it is still starting");
    assert_eq!(of_holder(&evidence, 1), Verdict::Failing(Reason::PodNotReady), "a holder has been ready");
    evidence.kubelet(&facts(), ms(1));
    evidence.kubelet(&unready, ms(1));
    assert_eq!(of_candidate(&evidence), Verdict::Failing(Reason::PodNotReady));
}

#[test]
fn the_control_planes_report_of_a_silent_node_needs_time_or_confirmation() {
    let mut unheard = facts();
    unheard.readiness = Readiness::NodeUnheard;
    let mut evidence = ready();
    evidence.kubelet(&unheard, ms(60_000));
    let (mut at, mut leases) = (60_000, NodeLeases::default());
    while at < 100_000 {
        probe(&mut evidence, at, ProbeOutcome::Success);
        assert_eq!(of_holder(&evidence, at), Verdict::Unknown, "it answers, yet must not be promoted");
        at += R;
    }
    assert_eq!(evidence.next_deadline(&NodeLease::default(), ms(at - 1)), Some(ms(100_000)));
    assert_eq!(of_holder(&evidence, 100_000), Verdict::Failing(Reason::PodNotReady));

    leases.seen("n1", None, ms(20_000));
    for at in [30_000, 40_000, 50_000, 60_000] {
        leases.alive(ms(at));
    }
    let verdict = evidence.verdict(JudgedAs::Holder, &leases.of("n1"), ms(60_001));
    assert_eq!(verdict, Verdict::Failing(Reason::PodNotReady), "we observed that the lease did not change");
}

#[test]
fn without_a_probe_the_lease_of_the_node_must_move() {
    let mut unprobed = facts();
    unprobed.probe = Ok(None);
    let mut evidence = PodEvidence::new(thresholds());
    evidence.kubelet(&unprobed, ms(0));
    let renewed = |n: i64| Some(jiff::Timestamp::from_second(n).unwrap());
    let mut leases = NodeLeases::default();
    let of_candidate = |evidence: &PodEvidence, leases: &NodeLeases, now| {
        evidence.verdict(JudgedAs::Candidate, &leases.of("n1"), ms(now))
    };
    leases.seen("n1", renewed(1), ms(0));
    assert_eq!(of_candidate(&evidence, &leases, 1), Verdict::Unknown);
    leases.seen("n1", renewed(11), ms(10_000));
    assert_eq!(of_candidate(&evidence, &leases, 10_000), Verdict::Eligible);
    for at in [20_000, 30_000, 40_000, 50_000] {
        leases.alive(ms(at));
    }
    assert_eq!(of_candidate(&evidence, &leases, 49_999), Verdict::Eligible);
    assert_eq!(of_candidate(&evidence, &leases, 50_000), Verdict::Silent);
    evidence.set_thresholds(Thresholds { silence_timeout: ms(45_000), ..thresholds() });
    assert_eq!(
        of_candidate(&evidence, &leases, 54_999),
        Verdict::Unknown,
        "a longer silence timeout is kept"
    );
    assert_eq!(evidence.next_deadline(&leases.of("n1"), ms(54_000)), Some(ms(55_000)));
    assert_eq!(of_candidate(&evidence, &leases, 55_000), Verdict::Silent);
}

#[test]
fn the_thresholds_are_the_groups() {
    let spec: LeaderGroupSpec = serde_json::from_value(serde_json::json!({
        "selector": { "matchLabels": { "app": "web" } },
        "health": { "silenceTimeout": "9s", "interval": "2s", "failureThreshold": 3 },
    }))
    .unwrap();
    let expected = Thresholds {
        silence_timeout: ms(9_000),
        interval: ms(2_000),
        timeout: ms(700),
        failure_threshold: 3,
    };
    assert_eq!(Thresholds::of(&spec, Some(ms(700))), expected);
}

/// An event of the operator or the pod, after some time.
#[derive(Clone, Debug)]
enum Step {
    /// The prober sends a probe with this outcome.
    Probe(ProbeOutcome),
    /// The process is stopped.
    Stop,
}

fn outcome() -> impl Strategy<Value = ProbeOutcome> {
    prop_oneof![
        3 => Just(ProbeOutcome::Success),
        2 => Just(ProbeOutcome::Refused(ProbeFailure::HttpStatus(503))),
        6 => Just(ProbeOutcome::Unanswered),
        1 => Just(ProbeOutcome::Void(VoidCause::Crowded)),
    ]
}

/// Probes at about the right rate, with interruptions.
fn history() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let probe = (200..1_900_u64, outcome()).prop_map(|(pause, outcome)| (pause, Step::Probe(outcome)));
    let stop = (1_500..20_000_u64).prop_map(|pause| (pause, Step::Stop));
    proptest::collection::vec(prop_oneof![12 => probe, 1 => stop], 0..60)
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u64,
    at: u64,
    outcome: ProbeOutcome,
}

/// The probes sent in a history, and its end.
fn sends(history: &[(u64, Step)]) -> (Vec<Sent>, u64) {
    let (mut now, mut sends) = (0, Vec::new());
    for (pause, step) in history {
        now += pause;
        if let Step::Probe(outcome) = step {
            sends.push(Sent { seq: sends.len() as u64 + 1, at: now, outcome: *outcome });
        }
    }
    (sends, now)
}

/// The rule for silence, computed literally from the whole history.
fn is_silent(sends: &[Sent], now: u64) -> bool {
    let sends: Vec<_> = sends.iter().filter(|s| !matches!(s.outcome, ProbeOutcome::Void(_))).collect();
    let Some(last) = sends.last() else { return false };
    let begins_anew = |i: usize| i == 0 || sends[i].at >= sends[i - 1].at + 2 * R;
    let run = (0..sends.len()).rev().find(|i| begins_anew(*i)).map_or(0, |i| sends[i].at);
    let success = sends.iter().rev().find(|s| s.outcome == ProbeOutcome::Success).map_or(0, |s| s.at);
    let since = run.max(success);
    let unanswered = sends.iter().filter(|s| s.outcome == ProbeOutcome::Unanswered && s.at >= since).count();
    now < last.at + 2 * R && now >= since + T && unanswered >= N as usize
}

fn fed(sends: &[Sent]) -> PodEvidence {
    let mut evidence = ready();
    for s in sends {
        if !matches!(s.outcome, ProbeOutcome::Void(_)) {
            evidence.probe_sent(s.seq, ms(s.at));
        }
        evidence.probe_answered(s.seq, ms(s.at), s.outcome);
    }
    evidence
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The verdict of silence agrees with the rule at any time, for every history.
    #[test]
    fn silence_is_what_the_rule_says(history in history(), after in 0..12_000_u64) {
        let (sends, end) = sends(&history);
        let (evidence, now) = (fed(&sends), end + after);
        if evidence.verdict(JudgedAs::Holder, &NodeLease::default(), ms(now)) != Verdict::Failing(Reason::ProbeRefused) {
            prop_assert_eq!(of_holder(&evidence, now) == Verdict::Silent, is_silent(&sends, now));
        }
    }

    /// A pod that answers is never considered broken, whenever and for however long this process was stopped.
    #[test]
    fn a_healthy_pod_is_never_replaced(history in history(), after in 0..100_000_u64) {
        let (mut sends, end) = sends(&history);
        for sent in &mut sends {
            sent.outcome = ProbeOutcome::Success;
        }
        for upto in 0..=sends.len() {
            let evidence = fed(&sends[..upto]);
            let next = sends.get(upto).map_or(end + after, |s| s.at);
            for now in [sends[..upto].last().map_or(0, |s| s.at), next.saturating_sub(1), next] {
                let verdict = of_holder(&evidence, now);
                prop_assert!(verdict.against().is_none(), "{verdict:?} at {now}");
            }
        }
    }

    /// No pod is silent right after a stop of this process, whatever its length and the probes in flight.
    #[test]
    fn nothing_is_silent_right_after_a_stop(history in history(), stop in 2 * R..1_000_000) {
        let (sends, _) = sends(&history);
        let mut evidence = fed(&sends);
        let woken = sends.last().map_or(0, |s| s.at) + stop;
        let is_silent = |evidence: &PodEvidence, now| matches!(of_holder(evidence, now), Verdict::Silent);
        prop_assert!(!is_silent(&evidence, woken));
        // Whatever the outcomes of the first probes after it, a full silence timeout must pass.
        for n in 0..T / R {
            let at = woken + n * R;
            prop_assert!(!is_silent(&evidence, at));
            evidence.probe_sent(1_000 + n, ms(at));
            evidence.probe_answered(1_000 + n, ms(at), ProbeOutcome::Unanswered);
            prop_assert!(!is_silent(&evidence, at), "after {n} probes");
        }
    }

    /// Late, repeated and reordered answers give the same verdict.
    #[test]
    fn the_order_of_answers_makes_no_difference(
        history in history(),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..80),
        after in 0..12_000_u64,
    ) {
        let (sends, end) = sends(&history);
        let mut shuffled = ready();
        for s in sends.iter().filter(|s| !matches!(s.outcome, ProbeOutcome::Void(_))) {
            shuffled.probe_sent(s.seq, ms(s.at));
        }
        let some = order.iter().filter(|_| !sends.is_empty()).map(|index| index.get(&sends));
        for s in some.chain(sends.iter().rev()) {
            shuffled.probe_answered(s.seq, ms(s.at), s.outcome);
        }
        prop_assert_eq!(of_holder(&shuffled, end + after), of_holder(&fed(&sends), end + after));
    }

    /// Without events, the verdict changes only at `next_deadline`.
    #[test]
    fn nothing_changes_before_the_deadline(
        history in history(),
        unheard in proptest::option::of(0..60_000_u64),
        probed: bool,
        renewals in proptest::collection::vec(0..30_000_u64, 0..5),
        after in 0..50_000_u64,
    ) {
        let (sends, end) = sends(&history);
        let mut evidence = fed(&sends);
        let mut pod = facts();
        if !probed {
            pod.probe = Ok(None);
        }
        evidence.kubelet(&pod, ms(0));
        if let Some(at) = unheard {
            pod.readiness = Readiness::NodeUnheard;
            evidence.kubelet(&pod, ms(at));
        }
        let (mut leases, mut at) = (NodeLeases::default(), 0);
        for (n, pause) in renewals.iter().enumerate() {
            at += pause;
            let renewed = jiff::Timestamp::from_second(i64::try_from(n / 2).unwrap()).unwrap();
            leases.seen("n1", Some(renewed), ms(at));
        }
        let lease = leases.of("n1");
        let start = ms(end.max(at).max(unheard.unwrap_or(0)));
        let (mut now, horizon) = (start, start + ms(after));
        while now < horizon {
            let until = evidence.next_deadline(&lease, now).map_or(horizon, |deadline| deadline.min(horizon));
            let verdict = evidence.verdict(JudgedAs::Holder, &lease, now);
            for part in 0..8_u32 {
                let between = now + until.saturating_sub(now) * part / 8;
                prop_assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, between), verdict);
            }
            let just_before = until.saturating_sub(Duration::from_nanos(1)).max(now);
            prop_assert_eq!(evidence.verdict(JudgedAs::Holder, &lease, just_before), verdict);
            now = until;
        }
    }

    /// The silence of a pod is detected exactly after the silence timeout while probing continues.
    #[test]
    fn a_silence_is_found_out_on_time(last_answer in 1..20_u64, jitter in proptest::collection::vec(0..150_u64, 10)) {
        let mut evidence = ready();
        for n in 1..=last_answer {
            probe(&mut evidence, n * R, ProbeOutcome::Success);
        }
        let since = last_answer * R;
        for n in 1..=T / R {
            let sent = since + n * R + jitter[usize::try_from(n).unwrap() % jitter.len()];
            if sent < since + T {
                evidence.probe_sent(last_answer + n, ms(sent));
            }
            if n > 1 && since + n * R <= since + T {
                let before = since + (n - 1) * R + jitter[usize::try_from(n - 1).unwrap() % jitter.len()];
                evidence.probe_answered(last_answer + n - 1, ms(before), ProbeOutcome::Unanswered);
            }
        }
        prop_assert!(of_holder(&evidence, since + T - 1).against().is_none());
        prop_assert_eq!(of_holder(&evidence, since + T), Verdict::Silent);
    }
}
