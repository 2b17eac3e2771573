//! The spans that a change of holder makes.

use uuid::Uuid;

use super::{
    objects::{TOKEN, group_uid},
    *,
};
use crate::{
    election::{Event, Outcome, Rejection},
    operator::{executor::effect::row_of, message::Done},
    telemetry::{Traces, recorded::Recorder},
};

/// A replica whose group begins a change of holder with the ticket 1.
fn changing(traces: Traces) -> Stage {
    let mut stage = Stage::traced(1, None, Duration::from_mins(10), traces);
    stage.list();
    stage.adopt_all();
    let row = row_of(row(0, stage.own));
    stage.within(|controller, now| {
        let world = controller.prepare(&name(0), now).expect("the group");
        controller.step(&name(0), Event::Owned { seed: Uuid::nil(), row: Some(row), world }, now);
    });
    stage.begin_changes(1);
    stage
}

/// The effect with this ticket ends.
fn end(stage: &mut Stage, ticket: u64, span: &'static str, outcome: Outcome) {
    let timer = stage.traces().begin(span);
    let step = timer.map(|timer| timer.end(None));
    stage.take(Message::Done(Box::new(Done {
        group: name(0),
        uid: group_uid(0).into(),
        ticket,
        outcome,
        pods: Vec::new(),
        stripped: false,
        object: None,
        trouble: None,
        step,
        trace: None,
    })));
    stage.turn();
}

/// The change takes its five steps.
fn complete(stage: &mut Stage) {
    let steps = [
        ("grant", Outcome::Granted { token: TOKEN + 1 }),
        ("declare", Outcome::Declared),
        ("strip", Outcome::Stripped),
        ("promote", Outcome::Promoted),
        ("confirm", Outcome::Confirmed),
    ];
    for (ticket, (span, outcome)) in (1..).zip(steps) {
        assert!(election(stage, 0).is_changing() && election(stage, 0).busy(), "before {span}");
        end(stage, ticket, span, outcome);
    }
    assert!(!election(stage, 0).is_changing(), "{:?}", election(stage, 0).phase());
}

#[test]
fn a_change_of_holder_is_one_trace_with_a_span_for_each_step() {
    let recorder = Recorder::default();
    let mut stage = changing(recorder.traces());
    complete(&mut stage);
    let spans = recorder.spans();
    let names: Vec<_> = spans.iter().map(|(name, child, ..)| (name.as_str(), *child)).collect();
    let steps = ["grant", "declare", "strip", "promote", "confirm"].map(|name| (name, true));
    assert_eq!(names, [&steps[..], &[("change of holder", false)]].concat());
    let change = format!(
        "leadergroup.namespace=shop leadergroup.group=g0 leadergroup.kind=end leadergroup.reason=PodDeleted \
         leadergroup.token={} leadergroup.from=g0-0 leadergroup.to=g0-1",
        TOKEN + 1
    );
    assert_eq!(spans.last().map(|(.., attributes, _)| attributes), Some(&change));
}

#[test]
fn a_change_that_another_replica_goes_on_with_leaves_no_trace_here() {
    let recorder = Recorder::default();
    let mut stage = changing(recorder.traces());
    end(&mut stage, 1, "grant", Outcome::Granted { token: TOKEN + 1 });
    assert!(stage.view(&name(0)).group.trace.is_some());
    end(&mut stage, 2, "declare", Outcome::Rejected(Rejection::NotOwner));
    assert!(stage.view(&name(0)).group.trace.is_none());
    assert_eq!(recorder.spans(), []);
}

#[test]
fn nothing_is_kept_if_traces_are_off() {
    let mut stage = changing(Traces::default());
    end(&mut stage, 1, "grant", Outcome::Granted { token: TOKEN + 1 });
    assert!(stage.view(&name(0)).group.trace.is_none());
}
