//! What programs of the pod are told when they ask on localhost whether the pod is active. No answer means that it is
//! not.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde::Serialize;
use tokio::{sync::watch, time::timeout};

use super::{
    active::{Active, Term},
    server::{Answer, json, text},
};
use crate::messages::State;

/// The longest time between two lines.
const LONGEST_PACE: Duration = Duration::from_secs(10);

/// A line of `/watch`, and the body of `/active`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    active: bool,
    #[serde(flatten)]
    term: Option<Term>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_milliseconds: Option<u64>,
}

impl Line {
    fn new(term: Option<(Term, Duration)>) -> Self {
        let remaining = term.as_ref().and_then(|(_, remaining)| u64::try_from(remaining.as_millis()).ok());
        Self { active: term.is_some(), term: term.map(|(term, _)| term), remaining_milliseconds: remaining }
    }

    fn bytes(&self) -> Bytes {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

/// The answer to a request for this path.
pub(super) fn answer(path: &str, active: &Arc<Active>, state: &watch::Sender<State>) -> Answer {
    match path {
        "/active" => match active.term() {
            term @ Some(_) => json(Line::new(term).bytes()),
            None => text(StatusCode::SERVICE_UNAVAILABLE, "the pod is not active\n"),
        },
        "/watch" => lines(active.clone(), state.subscribe()),
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /active and /watch\n"),
    }
}

/// A line at once, one at each change, and at least one in a third of a lease.
fn lines(active: Arc<Active>, mut changes: watch::Receiver<State>) -> Answer {
    changes.mark_changed();
    let lines = stream::unfold((active, changes), |(active, mut changes)| async move {
        let pace = active.pace().min(LONGEST_PACE);
        if matches!(timeout(pace, changes.changed()).await, Ok(Err(_))) {
            return None;
        }
        // Not what was true when the client could not take more, but what is true now.
        let line = Line::new(active.term()).bytes();
        Some((line, (active, changes)))
    });
    let mut answer = json(Bytes::new());
    *answer.body_mut() = StreamBody::new(lines.map(Frame::data).map(Ok::<_, Infallible>)).boxed_unsync();
    answer
}
