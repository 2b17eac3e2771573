//! Faults of single requests.

use std::{collections::VecDeque, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::stage::{NAMESPACE, Stage};
use crate::api_server::{Change, Dropped, Fate, Kind, Outcome, Refusal, RequestInfo, Sequence, Verb};

/// The answer to a patch with this fate, and whether it was stored.
async fn patched(fate: Fate) -> (Result<u16, kube::Error>, bool) {
    let stage = Stage::new();
    stage.pod("web-0");
    let mut fates = VecDeque::from([fate]);
    stage.server.set_fates(move |request: &RequestInfo| {
        assert_eq!((request.verb, request.name.as_str()), (Verb::Patch, "web-0"));
        fates.pop_front().unwrap()
    });
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let (pods, params) = (stage.pods(), PatchParams::default());
    let answer = timeout(Duration::from_mins(1), pods.patch("web-0", &params, &patch)).await;
    let code = match answer {
        Ok(Ok(_)) => Ok(200),
        Ok(Err(kube::Error::Api(status))) => Ok(status.code),
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(0),
    };
    sleep(Duration::from_mins(1)).await;
    let stored = stage.server.store().get(Kind::Pod, NAMESPACE, "web-0").unwrap().clone();
    (code, stored.labels().unwrap().contains_key("a"))
}

#[tokio::test(start_paused = true)]
async fn each_outcome() {
    let of = |outcome| Fate { outcome, ..Fate::default() };
    for (outcome, code, stored) in [
        (Outcome::Served, 200, true),
        (Outcome::Failed(Refusal::TooManyRequests), 429, false),
        (Outcome::Failed(Refusal::Internal), 500, false),
        (Outcome::Failed(Refusal::Unavailable), 503, false),
        (Outcome::FailedAfterwards(Refusal::Timeout), 504, true),
        (Outcome::Hung, 0, false),
        (Outcome::HungAfterwards, 0, true),
    ] {
        let (found, was_stored) = patched(of(outcome.clone())).await;
        assert_eq!((found.unwrap(), was_stored), (code, stored), "{outcome:?}");
    }
    for (outcome, stored) in [(Outcome::Refused, false), (Outcome::AnswerLost, true)] {
        let (found, was_stored) = patched(of(outcome)).await;
        assert!(matches!(found, Err(kube::Error::Service(_))), "{found:?}");
        assert_eq!(was_stored, stored);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_is_cancelled_or_not() {
    for (before, dropped, stored) in
        [(90, Dropped::Cancelled, false), (90, Dropped::CarriedOut, true), (10, Dropped::Cancelled, true)]
    {
        let (before, after) = (Duration::from_secs(before), Duration::from_secs(90));
        let fate = Fate { before, after, dropped, ..Fate::default() };
        let (found, was_stored) = patched(fate).await;
        assert_eq!((found.unwrap(), was_stored), (0, stored));
    }
}

#[tokio::test(start_paused = true)]
async fn delays_are_those_of_the_fate_and_a_stopped_server_ends_requests() {
    let stage = Stage::new();
    stage.pod("web-0");
    let delay = Duration::from_secs(4);
    let slow = Fate { before: delay, after: delay, ..Fate::default() };
    stage.server.set_fates(move |_: &RequestInfo| slow.clone());
    let start = Instant::now();
    assert_eq!(stage.pods().get("web-0").await.unwrap().name_any(), "web-0");
    assert_eq!(start.elapsed(), delay * 2);
    let stop = async {
        sleep(delay).await;
        stage.server.stop(true);
    };
    let pods = stage.pods();
    let (answer, ()) = futures::join!(pods.get("web-0"), stop);
    assert!(matches!(answer, Err(kube::Error::Service(_))), "{answer:?}");
}

/// What two clients have written while each request met a fate of this seed.
async fn journal(seed: u64) -> Vec<String> {
    let stage = Stage::new();
    stage.pod("web-0");
    let mut fates = Sequence::new(seed);
    stage.server.set_fates(move |_: &RequestInfo| {
        let mut delay = || Duration::from_millis(10 * fates.below(20) as u64);
        let (before, after) = (delay(), delay());
        let outcomes = [Outcome::Served, Outcome::AnswerLost, Outcome::Failed(Refusal::Unavailable)];
        Fate { before, outcome: outcomes[fates.below(3)].clone(), after, dropped: Dropped::CarriedOut }
    });
    let writer = |name: &'static str| {
        let pods: Api<Pod> = Api::namespaced(stage.server.client(name), NAMESPACE);
        async move {
            for number in 0..50 {
                let patch = Patch::Merge(json!({ "metadata": { "labels": { name: number.to_string() } } }));
                let _ = pods.patch("web-0", &PatchParams::default(), &patch).await;
            }
        }
    };
    futures::join!(writer("one"), writer("two"));
    let journal = stage.server.store().take_journal();
    let text =
        |change: &Change| format!("{} {} {}", change.at, change.by, change.new.as_ref().unwrap().value());
    journal.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    let first = journal(1).await;
    assert!(first.len() > 40, "{}", first.len());
    assert_eq!(first, journal(1).await);
    assert!(first != journal(2).await);
}
