//! Watches: lag, restarts, compaction, bookmarks.

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{WatchEvent, WatchParams},
    runtime::watcher,
};
use tokio::time::{Instant, sleep, timeout};

use super::stage::{NAMESPACE, Stage};
use crate::api_server::{Connection, DeleteOptions, Kind};

fn short(event: &watcher::Event<Pod>) -> String {
    match event {
        watcher::Event::Init => "init".into(),
        watcher::Event::InitDone => "done".into(),
        watcher::Event::InitApply(pod) => format!("+{}", pod.name_any()),
        watcher::Event::Apply(pod) => pod.name_any(),
        watcher::Event::Delete(pod) => format!("-{}", pod.name_any()),
    }
}

/// The events until there is none for a second.
async fn events(stream: &mut (impl Stream<Item = watcher::Result<watcher::Event<Pod>>> + Unpin)) -> String {
    let mut found = Vec::new();
    while let Ok(Some(event)) = timeout(Duration::from_secs(1), stream.next()).await {
        found.push(event.map_or_else(|error| format!("error: {error}"), |event| short(&event)));
    }
    found.join(" ")
}

fn config() -> watcher::Config {
    watcher::Config::default().timeout(20).page_size(2)
}

#[tokio::test(start_paused = true)]
async fn a_watcher_lists_in_pages_and_follows_the_selector() {
    let stage = Stage::new();
    for name in ["a", "b", "c"] {
        stage.pod(name);
    }
    let mut all = pin!(watcher(stage.pods(), config()));
    let mut active = pin!(watcher(stage.pods(), config().labels("role=active")));
    assert_eq!(events(&mut all).await, "init +a +b +c done");
    assert_eq!(events(&mut active).await, "init done");
    stage.label("b", "role", "active");
    stage.label("b", "role", "standby");
    let force = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    stage.server.store().delete(Kind::Pod, NAMESPACE, "c", &force).unwrap();
    assert_eq!(events(&mut all).await, "b b c -c");
    assert_eq!(events(&mut active).await, "b -b");
    sleep(Duration::from_mins(1)).await;
    stage.label("a", "role", "active");
    assert_eq!((events(&mut all).await.as_str(), events(&mut active).await.as_str()), ("a", "a"));
}

#[tokio::test(start_paused = true)]
async fn a_cache_lags_and_lists_wait_for_it() {
    let stage = Stage::new();
    stage.pod("a");
    let mut watched = pin!(watcher(stage.pods(), config()));
    assert_eq!(events(&mut watched).await, "init +a done");
    stage.server.store().set_lag(Kind::Pod, Duration::from_secs(2));
    let start = Instant::now();
    stage.pod("b");
    assert!(matches!(watched.next().await, Some(Ok(watcher::Event::Apply(_)))));
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    // Later events stay behind earlier ones although the lag is shorter now.
    stage.pod("c");
    stage.server.store().set_lag(Kind::Pod, Duration::ZERO);
    stage.pod("d");
    assert!(stage.pods().get_opt("d").await.unwrap().is_some(), "a quorum read does not ask the cache");
    let start = Instant::now();
    assert_eq!(stage.pods().list(&kube::api::ListParams::default()).await.unwrap().items.len(), 4);
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    assert_eq!(events(&mut watched).await, "c d");
    stage.server.store().hold(Kind::Pod, true);
    stage.pod("e");
    let cached = kube::api::ListParams::default().at("0");
    assert_eq!(stage.pods().list(&cached).await.unwrap().items.len(), 4);
    let start = Instant::now();
    assert_eq!(stage.pods().list(&kube::api::ListParams::default()).await.unwrap().items.len(), 5);
    assert_eq!((start.elapsed(), events(&mut watched).await), (Duration::from_secs(3), String::new()));
    stage.server.store().hold(Kind::Pod, false);
    assert_eq!(events(&mut watched).await, "e");
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_watches_and_old_versions_are_gone() {
    let stage = Stage::new();
    stage.pod("a");
    let mut watched = pin!(watcher(stage.pods(), config()));
    assert_eq!(events(&mut watched).await, "init +a done");
    stage.server.stop(false);
    stage.pod("b");
    let broken = watched.next().await.unwrap().unwrap_err();
    assert!(matches!(broken, watcher::Error::WatchFailed(_)), "{broken}");
    let refused = watched.next().await.unwrap().unwrap_err();
    assert!(matches!(refused, watcher::Error::WatchStartFailed(_)), "{refused}");
    stage.server.start();
    let gone = watched.next().await.unwrap().unwrap_err();
    assert!(matches!(&gone, watcher::Error::WatchError(status) if status.code == 410), "{gone}");
    assert_eq!(events(&mut watched).await, "init +a +b done");
    stage.server.stop(true);
    stage.server.start();
    stage.pod("c");
    assert_eq!(events(&mut watched).await, "c", "an orderly end at the present revision loses nothing");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_delivers_later_and_a_broken_one_fails() {
    let stage = Stage::new();
    let mut watched = pin!(watcher(stage.pods(), config()));
    assert_eq!(events(&mut watched).await, "init done");
    stage.server.set_connections(Connection::Silent, |watch| watch.client == "one");
    stage.pod("a");
    assert_eq!(events(&mut watched).await, "");
    stage.server.set_connections(Connection::Open, |_| true);
    assert_eq!(events(&mut watched).await, "a");
    stage.server.set_connections(Connection::Broken, |watch| watch.kind == Kind::Pod);
    assert!(watched.next().await.unwrap().is_err());
    stage.pod("b");
    assert_eq!(events(&mut watched).await, "b");
    assert_eq!(stage.server.watches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_show_the_progress_of_a_quiet_watch() {
    let stage = Stage::new();
    let pods: Api<Pod> = stage.pods();
    let begin = stage.server.store().revision();
    stage.group();
    let params = WatchParams::default().timeout(20);
    let watched = pods.watch(&params, &begin.to_string()).await.unwrap();
    let start = Instant::now();
    let found: Vec<_> = watched.try_collect().await.unwrap();
    let [WatchEvent::Bookmark(bookmark)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(bookmark.metadata.resource_version, (begin + 1).to_string());
    assert_eq!(start.elapsed(), Duration::from_secs(20));
    stage.server.store().compact();
    let watched = pods.watch(&params, &begin.to_string()).await.unwrap();
    let found: Vec<_> = watched.try_collect().await.unwrap();
    assert!(matches!(found.as_slice(), [WatchEvent::Error(status)] if status.code == 410), "{found:?}");
}
