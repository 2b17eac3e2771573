//! Faults of single requests.

use std::{collections::VecDeque, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::stage::{NAMESPACE, Stage};
use crate::api_server::{
    Change, Connection, Dropped, Fate, Kind, Outcome, Refusal, RequestInfo, Sequence, Verb, WatchInfo,
};

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
async fn a_repeated_request_is_carried_out_twice_and_gets_the_second_answer_or_the_first() {
    let later = Duration::from_secs(2);
    for (outcome, codes, took) in [
        (Outcome::SentAgain(later), [409, 409], later),
        (Outcome::ArrivesAgain(later), [200, 201], Duration::ZERO),
    ] {
        let stage = Stage::new();
        stage.pod("web-0");
        let pods = stage.pods();
        let seen = pods.get("web-0").await.unwrap();
        stage.server.set_fates(move |_: &RequestInfo| Fate { outcome: outcome.clone(), ..Fate::default() });
        let code = |answer: Result<Pod, kube::Error>, done| match answer {
            Ok(_) => done,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        };
        let bound = Patch::Merge(json!({
            "metadata": { "labels": { "a": "b" }, "resourceVersion": seen.resource_version() },
        }));
        let (params, start) = (PatchParams::default(), Instant::now());
        let patched = code(pods.patch("web-0", &params, &bound).await, 200);
        assert_eq!(start.elapsed(), took);
        let mut other = seen.clone();
        other.metadata.name = Some("web-1".to_owned());
        (other.metadata.resource_version, other.metadata.uid) = (None, None);
        let created = code(pods.create(&PostParams::default(), &other).await, 201);
        assert_eq!([patched, created], codes);
        // One that is bound to no version takes effect again.
        let free = |value: &str| Patch::Merge(json!({ "metadata": { "labels": { "a": value } } }));
        pods.patch("web-0", &params, &free("c")).await.unwrap();
        stage.server.set_fates(|_: &RequestInfo| Fate::default());
        pods.patch("web-0", &params, &free("d")).await.unwrap();
        sleep(later * 2).await;
        let last = pods.get("web-0").await.unwrap().labels()["a"].clone();
        assert_eq!(last, if took.is_zero() { "c" } else { "d" });
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_shows_later_what_happened_and_one_that_has_broken_stays_so() {
    let stage = Stage::new();
    let (pods, params) = (stage.pods(), WatchParams::default());
    let version = stage.server.store().revision().to_string();
    let mut silent = Box::pin(pods.watch(&params, &version).await.unwrap());
    let of = |watch: &WatchInfo| watch.kind == Kind::Pod;
    stage.server.set_silent(true, of);
    stage.pod("web-0");
    assert!(timeout(Duration::from_secs(9), silent.next()).await.is_err());
    stage.server.set_silent(false, of);
    assert!(matches!(silent.next().await, Some(Ok(WatchEvent::Added(_)))));
    let mut broken = Box::pin(pods.watch(&params, &version).await.unwrap());
    stage.server.set_connections(Connection::Broken, |_| true);
    stage.server.set_silent(true, of);
    stage.server.set_silent(false, of);
    assert!(broken.next().await.unwrap().is_err());
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
