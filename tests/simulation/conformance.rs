//! The model of the executor makes the calls that the operator's executor makes.

use std::time::Duration;

use leadergroup::{
    api::{Declaration, DeletionPolicy, PodAt, PodRef, Role},
    election::Effect,
};

use crate::{
    server::{Answer, Call, GroupObject, Pod},
    task::{End, Job, Next, Request, Response, Task},
};
use calls::{Answered, Asked, CASES, TOKEN, VERSION, web_0};

#[path = "calls.rs"]
mod calls;

const GROUP: u32 = 1;

fn declaration(token: i64) -> Declaration {
    Declaration { token, ..Declaration::default() }
}

fn pod(version: u64, role: Role, stamp: Option<i64>) -> Pod {
    Pod {
        pod: web_0(),
        version,
        role,
        stamp: stamp.map(|token| (GROUP, token)),
        deleting: false,
        crashed: false,
        restarts: 0,
        selected: true,
        leaving: false,
        node: "node",
        created: 1,
    }
}

fn answer(asked: Asked, answered: Answered) -> Answer {
    let object = |token| GroupObject {
        uid: GROUP,
        version: 1,
        deleting: false,
        paused: false,
        delay: Duration::ZERO,
        failback: None,
        deletion_policy: DeletionPolicy::RemoveLabels,
        contested: false,
        requested: None,
        declared: declaration(token),
    };
    match (asked, answered) {
        (Asked::ReadPod, Answered::Gone) => Answer::Pod(None),
        (Asked::ReadPod, Answered::Pod { version }) => Answer::Pod(Some(pod(version, Role::None, None))),
        (Asked::ReadPod, Answered::Active) => Answer::Pod(Some(pod(VERSION + 1, Role::Active, None))),
        (Asked::ReadPod, Answered::Stamped { later }) => {
            Answer::Pod(Some(pod(VERSION + 1, Role::Standby, Some(TOKEN + i64::from(later)))))
        }
        (Asked::ReadGroup, Answered::Gone) => Answer::Group(None),
        (Asked::ReadGroup, Answered::Group { token }) => Answer::Group(Some(object(token))),
        (Asked::WritePod, Answered::Done) => {
            Answer::Labelled(Some(pod(VERSION + 2, Role::Standby, Some(TOKEN))))
        }
        (Asked::WritePod, Answered::Conflict) => Answer::Labelled(None),
        (Asked::WritePod, Answered::Invalid) => Answer::Invalid,
        (Asked::WritePod, Answered::Refused) => Answer::Refused,
        (Asked::Declare, Answered::Done) => Answer::Patched(true),
        (Asked::Declare, Answered::Invalid) => Answer::Patched(false),
        (asked, answered) => unreachable!("{answered:?} does not answer {asked:?}"),
    }
}

fn asked(call: &Call) -> Asked {
    match call {
        Call::Pod(_) => Asked::ReadPod,
        Call::Group => Asked::ReadGroup,
        Call::Label { .. } => Asked::WritePod,
        Call::Declare { .. } => Asked::Declare,
        Call::Stamped(_) | Call::Try(..) | Call::Unfinalize { .. } => unreachable!("no case has {call:?}"),
    }
}

#[test]
fn tasks_make_the_calls_of_the_executor() {
    for (doing, exchanges, expected) in CASES {
        let context = format!("{doing:?} {exchanges:?}");
        let mut task = Task::new(GROUP, None, Job::Effect(1, doing.effect()), 0);
        let mut end = None;
        for (asks, answered) in *exchanges {
            assert!(end.is_none(), "{context}: it ended early, {end:?}");
            let Next::Ask(Request::Server(call)) = task.next() else { panic!("{context}: no {asks:?}") };
            assert_eq!(asked(&call), *asks, "{context}");
            end = task.absorb(Response::Server(answer(*asks, *answered)));
        }
        let end = end.unwrap_or_else(|| match task.next() {
            Next::End(end) => end,
            Next::Ask(request) => panic!("{context}: one call more, {request:?}"),
        });
        let End::Outcome(outcome) = end else { panic!("{context}: {end:?}") };
        let outcome = format!("{outcome:?}");
        assert!(outcome.starts_with(expected), "{context}: {outcome}, not {expected}");
    }
}
