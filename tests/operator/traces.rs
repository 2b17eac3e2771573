//! Traces of changes of holder, as a collector receives them.

use std::collections::BTreeSet;

use kube::api::DeleteParams;

use crate::{
    collector::{Collector, texts},
    endpoints::{SLICE, SWITCHED_ON, Stage},
    kubelet::report,
    objects::condition,
    postgres::{self, eventually},
    replica::Operator,
};

const SOON: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "50");

#[tokio::test]
async fn each_change_of_holder_and_the_deletion_of_the_group_is_a_trace() {
    let stage = Stage::set_up("traces", [&["198.18.11.1"], &["198.18.11.2"]]).await;
    stage.create_service("front", "SingleStack").await;
    let collector = Collector::start().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let variables = [
        ("LEADERGROUP_DATABASE_URL", url.as_str()),
        SWITCHED_ON,
        ("LEADERGROUP_TRACING_ENDPOINT", collector.url.as_str()),
        SOON,
    ];
    // A collector that fails holds up nothing, and is logged once.
    collector.refuse(true);
    let mut operator = Operator::start_with(stage.server, &stage.namespace, &variables);
    stage.until_ready().await;
    eventually("the first holder to be reported", async || collector.refused() > 0).await;
    let before = collector.refused();
    stage.request_switchover().await;
    eventually("the switchover to be reported", async || collector.refused() > before).await;
    let switched =
        async || stage.groups.get("web").await.unwrap().data["status"]["switchover"]["result"] == "Done";
    eventually("the result of the switchover", switched).await;
    stage.until_ready().await;
    let (first, second) = stage.roles().await;
    stage.slices.until(SLICE, Some(&[&first])).await;
    collector.refuse(false);

    // A failover.
    report(&stage.pods, &first, "False").await;
    let failover = [("leadergroup.reason", "PodNotReady"), ("leadergroup.namespace", &stage.namespace)];
    let failover = || collector.trace("change of holder", &failover);
    eventually("the trace of the failover", async || failover().is_some()).await;
    let (change, steps) = failover().unwrap();
    let expected = [
        ("leadergroup.namespace", stage.namespace.as_str()),
        ("leadergroup.group", "web"),
        ("leadergroup.kind", "failure"),
        ("leadergroup.reason", "PodNotReady"),
        ("leadergroup.token", "3"),
        ("leadergroup.from", first.as_str()),
        ("leadergroup.to", second),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(texts(&change.attributes), expected);
    let own_steps = steps.iter().map(|span| span.name.as_str()).filter(|name| *name != "endpoints");
    let mut own_steps: Vec<_> = own_steps.collect();
    // A read confirms what the kubelet says, unless it cannot refute it.
    own_steps.retain(|name| *name != "verify");
    assert_eq!(own_steps, ["grant", "declare", "strip", "promote", "confirm"], "{steps:?}");
    assert!(steps.iter().any(|span| span.name == "endpoints"), "{steps:?}");
    for span in &steps {
        assert_eq!(span.parent_span_id, change.span_id);
        assert!(span.start_time_unix_nano >= change.start_time_unix_nano, "{span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:?}");
    }
    let resource = collector.resource().into_iter().collect::<BTreeSet<_>>();
    for (key, value) in [("service.name", "leadergroup"), ("service.instance.id", "one")] {
        assert!(resource.contains(&(key.to_owned(), value.to_owned())), "{resource:?}");
    }

    // The deletion.
    stage.groups.delete("web", &DeleteParams::default()).await.unwrap();
    let deletion = || collector.trace("deletion of the group", &[("leadergroup.from", second)]);
    eventually("the trace of the deletion", async || deletion().is_some()).await;
    let names: Vec<_> = deletion().unwrap().1.into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["tombstone", "clear labels", "remove finalizer"]);
    assert!(operator.end().await.0.success(), "{}", operator.log());
    let log = operator.log();
    assert_eq!(log.matches("traces cannot be sent").count(), 1, "{log}");
    assert!(log.contains("the collector answered 503") && log.contains("traces are sent again"), "{log}");
}

#[tokio::test]
async fn the_last_traces_are_sent_when_the_operator_stops() {
    let stage = Stage::set_up("last-traces", [&["198.18.12.1"], &["198.18.12.2"]]).await;
    let collector = Collector::start().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let variables = [
        ("LEADERGROUP_DATABASE_URL", url.as_str()),
        ("LEADERGROUP_TRACING_ENDPOINT", collector.url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ];
    let mut operator = Operator::start_with(stage.server, &stage.namespace, &variables);
    eventually("a holder", async || condition(&stage.groups, "web", "Active").await.0 == "True").await;
    assert_eq!(collector.connections(), 0);
    assert!(operator.end().await.0.success(), "{}", operator.log());
    let trace = collector.trace("change of holder", &[("leadergroup.reason", "FirstHolder")]);
    assert!(trace.is_some_and(|(_, steps)| steps.iter().any(|span| span.name == "grant")));
}

#[tokio::test]
async fn nothing_is_sent_without_the_setting() {
    let stage = Stage::set_up("no-traces", [&["198.18.13.1"], &["198.18.13.2"]]).await;
    let collector = Collector::start().await;
    let (database, _store) = postgres::migrated().await;
    let url = database.url();
    let variables = [
        ("LEADERGROUP_DATABASE_URL", url.as_str()),
        ("LEADERGROUP_TRACING_ENDPOINT", ""),
        // The SDK's own variable turns nothing on.
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()),
        SOON,
    ];
    let mut operator = Operator::start_with(stage.server, &stage.namespace, &variables);
    eventually("a holder", async || condition(&stage.groups, "web", "Active").await.0 == "True").await;
    assert!(operator.end().await.0.success(), "{}", operator.log());
    assert_eq!(collector.connections(), 0);
}
