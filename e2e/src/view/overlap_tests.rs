use super::*;

fn ms(ms: u64) -> Moment {
    Moment::default().plus(Duration::from_millis(ms))
}

const HALF: Duration = Duration::from_millis(500);

fn limits() -> Limits {
    Limits { overlap: HALF, ..Limits::default() }
}

/// Terms of these pods, from these moments on.
fn terms(terms: &[(&str, u64)]) -> Vec<Term> {
    let term = |(index, (pod, from)): (usize, &(&str, u64))| Term {
        token: 10 + i64::try_from(index).expect("a few"),
        pod: (*pod).to_owned(),
        uid: format!("uid-{pod}"),
        began: ms(*from),
        gone: None,
    };
    terms.iter().enumerate().map(term).collect()
}

/// A call of 2 ms through a new connection.
fn new(at: u64, pod: &str) -> Call {
    Call { connection: at, ..Call::through_any(ms(at), ms(at + 2), Ok(pod.to_owned())) }
}

/// The same through a kept one.
fn kept(at: u64, pod: &str, connection: u64) -> Call {
    Call { connection, kept: true, ..new(at, pod) }
}

fn on(node: &str, calls: Vec<Call>) -> Record {
    Record { node: node.to_owned(), calls }
}

fn exempt(name: &str, from: u64, until: Option<u64>) -> Exempt {
    Exempt { name: name.to_owned(), from: ms(from), until: until.map(ms) }
}

#[test]
fn a_clean_record_has_the_overlap_of_the_slowest_node() {
    let terms = terms(&[("a", 0), ("b", 100), ("a", 1000)]);
    let one = on("one", vec![new(10, "a"), new(120, "b"), new(500, "b"), new(1010, "a"), new(1300, "a")]);
    let two = on("two", vec![new(90, "a"), new(180, "a"), new(190, "b"), new(1200, "a")]);
    let mut lost = new(300, "a");
    lost.answer = Err("timeout".into());
    let kept = on("two", vec![new(95, "a"), kept(400, "a", 95), kept(950, "a", 95), lost]);
    let found = overlaps(&terms, &[one, two, kept], &limits());
    assert_eq!(found.violations, []);
    let change = |token, opened, kept| Overlap {
        token,
        opened: Duration::from_millis(opened),
        kept: Duration::from_millis(kept),
        exempt: Duration::ZERO,
    };
    // The first answer of `b` ended at 122; the last calls of `a` in its first term began at 180 and, kept, at 950.
    assert_eq!(found.changes, [change(11, 58, 828), change(12, 0, 0)]);
    assert_eq!((found.opened, found.kept), (10, 2));
    assert_eq!(
        (found.longest(), found.longest_kept()),
        (Duration::from_millis(58), Duration::from_millis(828))
    );
}

#[test]
fn two_pods_that_serve_for_too_long_are_found() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let late =
        |at| overlaps(&terms, &[on("one", vec![new(120, "b")]), on("two", vec![new(at, "a")])], &limits());
    assert_eq!(late(622).troubles(), []);
    let found = late(623);
    assert_eq!(found.troubles(), [Trouble::TooLong]);
    assert_eq!(found.longest(), Duration::from_millis(501));
}

#[test]
fn a_call_that_began_before_the_new_pod_answered_shows_nothing() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let mut slow = new(121, "a");
    slow.end = ms(5000);
    let found = overlaps(&terms, &[on("one", vec![new(120, "b"), slow])], &limits());
    assert_eq!((found.troubles(), found.longest()), (vec![], Duration::ZERO));
}

#[test]
fn one_node_never_goes_back() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let found = overlaps(&terms, &[on("one", vec![new(120, "b"), new(123, "a")])], &limits());
    assert_eq!(found.troubles(), [Trouble::WentBack]);
    // Its kept connections may.
    let calls = vec![new(90, "a"), new(120, "b"), kept(123, "a", 90)];
    assert_eq!(overlaps(&terms, &[on("one", calls)], &limits()).troubles(), []);
}

#[test]
fn a_long_call_that_began_before_the_pods_second_term_does_not_begin_its_service() {
    let terms = terms(&[("a", 0), ("b", 100), ("a", 1000)]);
    let troubles = |at| {
        let long = Call { end: ms(1010), ..new(at, "a") };
        overlaps(&terms, &[on("one", vec![long, new(200, "b"), new(1050, "b"), new(1100, "a")])], &limits())
            .troubles()
    };
    assert_eq!(troubles(999), [], "it may have been routed in the first term");
    assert_eq!(troubles(1001), [Trouble::WentBack]);
}

#[test]
fn a_late_answer_is_measured_from_the_first_of_all_later_terms() {
    let terms = terms(&[("a", 0), ("b", 100), ("c", 400)]);
    let calls = [on("one", vec![new(120, "b"), new(420, "c")]), on("two", vec![new(700, "a")])];
    let found = overlaps(&terms, &calls, &limits());
    assert_eq!(found.changes[0].opened, Duration::from_millis(578));
    assert_eq!(found.troubles(), [Trouble::TooLong]);
}

#[test]
fn a_kept_connection_to_a_pod_that_becomes_active_again_does_not_begin_its_service() {
    let terms = terms(&[("b", 0), ("a", 100), ("b", 1000)]);
    let old = on("one", vec![new(10, "b"), kept(1001, "b", 10)]);
    let found =
        overlaps(&terms, &[old, on("two", vec![new(110, "a"), new(1900, "a"), new(2000, "b")])], &limits());
    assert_eq!((found.troubles(), found.longest()), (vec![], Duration::ZERO));
}

#[test]
fn a_pod_without_a_term_must_not_answer() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let troubles = |call| overlaps(&terms, &[on("one", vec![call])], &limits()).troubles();
    assert_eq!(troubles(new(50, "c")), [Trouble::NeverActive]);
    assert_eq!(troubles(new(50, "b")), [Trouble::NeverActive], "before its grant");
    assert_eq!(troubles(new(98, "b")), [], "the grant came before the end");
}

#[test]
fn a_pod_with_the_address_of_a_former_holder_may_answer_for_some_time() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let limits = Limits { successors: vec![exempt("c", 150, Some(250))], ..limits() };
    let found = |at, pod| overlaps(&terms, &[on("one", vec![new(120, "b"), new(at, pod)])], &limits);
    assert_eq!((found(200, "c").troubles(), found(200, "c").strange), (vec![], 1));
    assert_eq!((found(200, "d").troubles(), found(200, "d").strange), (vec![Trouble::NeverActive], 0));
    assert_eq!(found(251, "c").troubles(), [Trouble::NeverActive]);
}

#[test]
fn a_node_that_is_away_may_reach_a_pod_with_the_address_of_a_former_holder() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let found = |nodes, at| {
        let limits = Limits { successors: vec![exempt("c", 150, Some(250))], nodes, ..limits() };
        let calls = vec![new(120, "b"), new(at, "c"), new(500, "b")];
        overlaps(&terms, &[on("one", calls)], &limits).troubles()
    };
    let away = |node| vec![exempt(node, 90, Some(400))];
    assert_eq!(found(away("one"), 350), []);
    assert_eq!(found(away("one"), 450), [], "it has not caught up");
    assert_eq!(found(away("one"), 510), [Trouble::NeverActive]);
    assert_eq!(found(away("two"), 350), [Trouble::NeverActive]);
    assert_eq!(found(away("one"), 140), [Trouble::NeverActive], "before the pod had the address");
}

#[test]
fn a_pod_that_is_gone_must_not_answer_not_even_through_a_kept_connection() {
    let mut terms = terms(&[("a", 0), ("b", 100)]);
    terms[0].gone = Some(ms(300));
    let calls = |at| vec![new(90, "a"), new(110, "b"), kept(at, "a", 90)];
    assert_eq!(overlaps(&terms, &[on("one", calls(300))], &limits()).troubles(), []);
    let late = [on("one", calls(301))];
    assert_eq!(overlaps(&terms, &late, &limits()).troubles(), [Trouble::Gone]);
    let lost = Limits { pods: vec![exempt("uid-a", 80, None)], ..limits() };
    assert_eq!(overlaps(&terms, &late, &lost).troubles(), [], "its node was lost, and its object deleted");
    let alone = [on("one", vec![new(90, "a"), new(301, "a")])];
    assert_eq!(overlaps(&terms[..1], &alone, &limits()).troubles(), [Trouble::Gone], "it has no successor");
}

#[test]
fn a_connection_leads_to_one_pod() {
    let terms = terms(&[("a", 0), ("b", 100)]);
    let calls = vec![new(90, "a"), kept(110, "b", 90)];
    assert_eq!(overlaps(&terms, &[on("one", calls)], &limits()).troubles(), [Trouble::Moved]);
}

#[test]
fn a_frozen_pod_that_thaws_is_exempt_until_its_connections_are_forgotten() {
    let terms = terms(&[("a", 0), ("b", 5000), ("a", 20_000), ("b", 30_000)]);
    let frozen = Limits { pods: vec![exempt("uid-a", 100, Some(9000))], ..limits() };
    let calls = |late| vec![new(90, "a"), new(5100, "b"), new(late, "a"), new(30_100, "b")];
    let thawed = overlaps(&terms, &[on("one", calls(9100))], &frozen);
    assert_eq!((thawed.troubles(), thawed.longest_exempt()), (vec![], Duration::from_millis(3998)));
    let both = [Trouble::TooLong, Trouble::WentBack];
    assert_eq!(overlaps(&terms, &[on("one", calls(12_999))], &frozen).troubles(), []);
    assert_eq!(overlaps(&terms, &[on("one", calls(13_000))], &frozen).troubles(), both, "in the same term");
    assert_eq!(overlaps(&terms, &[on("one", calls(31_100))], &frozen).troubles(), both);
    let later = Limits { pods: vec![exempt("uid-a", 25_000, None)], ..limits() };
    assert_eq!(overlaps(&terms, &[on("one", calls(9100))], &later).troubles(), both);
}

#[test]
fn the_clients_of_a_node_that_was_cut_off_are_exempt_until_they_reach_the_new_pod() {
    let terms = terms(&[("a", 0), ("b", 5000)]);
    let cut = Limits { nodes: vec![exempt("one", 100, Some(9000))], ..limits() };
    let others = on("two", vec![new(5100, "b")]);
    let troubles = |calls| overlaps(&terms, &[on("one", calls), others.clone()], &cut).troubles();
    assert_eq!(troubles(vec![new(8000, "a"), new(9500, "a"), new(10_000, "b")]), []);
    assert_eq!(troubles(vec![new(9500, "b"), new(10_000, "a")]), [Trouble::TooLong, Trouble::WentBack]);
    assert_eq!(troubles(vec![new(9001, "a"), new(78_999, "a")]), [], "it waits for its longest pause");
    assert_eq!(troubles(vec![new(9001, "a"), new(79_001, "a")]), [Trouble::TooLong], "it does not catch up");
    let elsewhere = [on("three", vec![new(8000, "a")]), others.clone()];
    assert_eq!(overlaps(&terms, &elsewhere, &cut).troubles(), [Trouble::TooLong]);
}

#[test]
fn a_node_that_reaches_the_holder_from_before_the_fault_has_not_shown_that_it_hears_of_changes() {
    let terms = terms(&[("a", 0), ("b", 20_000), ("c", 40_000)]);
    let away = Limits { nodes: vec![exempt("one", 100, Some(9000))], ..limits() };
    let others = on("two", vec![new(20_100, "b"), new(40_100, "c")]);
    let troubles = |calls| overlaps(&terms, &[on("one", calls), others.clone()], &away).troubles();
    assert_eq!(troubles(vec![new(9500, "a"), new(30_000, "a"), new(30_500, "b")]), []);
    let late = vec![new(9500, "a"), new(30_500, "b"), new(50_000, "b")];
    assert_eq!(troubles(late), [Trouble::TooLong], "it had followed a change");
}
