//! What is told of journals.

use std::{collections::BTreeSet, time::Duration};

use super::*;

fn process(token: i64, pod: &str, spans: &[(u64, u64)]) -> Process {
    let times = spans.iter().flat_map(|(from, until)| (*from..=*until).step_by(10));
    Process { token, pod: pod.into(), times: times.map(Duration::from_millis).collect() }
}

fn terms(processes: &[Process], stood_still: &[&str]) -> Result<Terms> {
    Terms::of(processes.to_vec(), &stood_still.iter().map(|pod| (*pod).to_owned()).collect::<BTreeSet<_>>())
}

#[test]
fn a_journal_is_read_without_the_line_that_is_cut_off() -> Result<()> {
    let read = Process::read("7.web-0.12.34.own", "12.34\n12.35\n12.")?;
    let expected =
        Process { token: 7, pod: "web-0".into(), times: [12_340, 12_350].map(Duration::from_millis).into() };
    assert_eq!(read, expected);
    assert!(Process::read("7.web-0.1.own", "never\n").is_err());
    assert!(Process::read("web-0", "").is_err());
    Ok(())
}

#[test]
fn programs_that_run_one_after_the_other_leave_gaps() -> Result<()> {
    let mut processes = vec![
        process(1, "a", &[(1_000, 5_000)]),
        process(1, "a", &[(1_000, 5_200)]),
        process(2, "b", &[(5_500, 7_000)]),
        process(3, "a", &[(7_100, 8_000)]),
        process(4, "c", &[]),
    ];
    let found = terms(&processes, &[])?;
    assert_eq!(found.gaps, [300, 100].map(Duration::from_millis));
    assert_eq!(found.to_string(), "3 terms, without a program for 0.30 s, 0.10 s");
    processes.push(process(2, "b", &[(5_500, 7_100)]));
    assert!(terms(&processes, &[]).is_err(), "a process that was left behind");
    assert!(terms(&[], &[]).is_err(), "nothing was written");
    Ok(())
}

#[test]
fn a_term_that_runs_after_a_later_one_is_an_overlap() {
    let processes = [
        process(1, "a", &[(1_000, 2_000)]),
        process(1, "a", &[(9_000, 9_100)]),
        process(2, "b", &[(3_000, 4_000)]),
    ];
    assert!(terms(&processes, &["a"]).is_err(), "it is another process, and was started late");
}

#[test]
fn a_program_may_go_on_for_a_moment_if_its_pod_stood_still() -> Result<()> {
    let processes = |more: &[(u64, u64)]| {
        let former: Vec<_> = [(1_000, 2_000)].iter().chain(more).copied().collect();
        [process(1, "a", &former), process(2, "b", &[(6_000, 20_000)])]
    };
    let found = terms(&processes(&[(9_000, 9_050)]), &["a"])?;
    assert_eq!((found.gaps[0], found.went_on), (Duration::from_secs(4), Duration::from_millis(50)));
    assert!(terms(&processes(&[(9_000, 9_050)]), &["b"]).is_err(), "another pod stood still");
    assert!(terms(&processes(&[(9_000, 9_600)]), &["a"]).is_err(), "nobody killed it");
    assert!(terms(&processes(&[(2_900, 2_950), (6_100, 6_150)]), &["a"]).is_ok());
    assert!(terms(&processes(&[(5_000, 6_100)]), &["a"]).is_err(), "it ran on");
    Ok(())
}
