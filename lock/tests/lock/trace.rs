//! The operations of a client on a key, as spans of `tracing`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, Successor, Transferred};
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, PASSWORD, eventually, migrated};

/// A span that has ended: its name and the final values of its fields.
type Seen = (&'static str, BTreeMap<&'static str, String>);

#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(fields) = context.span(id).unwrap().extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if let Some(Fields(fields)) = span.extensions_mut().remove() {
            self.0.lock().unwrap().push((span.name(), fields));
        }
    }
}

impl Spans {
    /// These fields of all ended spans with this name.
    fn of<const N: usize>(&self, name: &str, fields: [&str; N]) -> Vec<[String; N]> {
        let all = self.0.lock().unwrap();
        let named = all.iter().filter(|(seen, _)| *seen == name);
        named.map(|(_, seen)| fields.map(|field| seen.get(field).cloned().unwrap_or_default())).collect()
    }
}

async fn client(database: &Database, name: &str) -> Client {
    let ttl = Duration::from_mins(10);
    let config =
        ClientConfig { name: name.into(), ttl, retry_interval: ttl / 600, ..ClientConfig::default() };
    Client::connect(database.store(), config).await.unwrap()
}

/// On one thread, so that background work is seen as well.
#[tokio::test]
async fn tries_waits_releases_and_transfers_are_spans() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one").await, client(&database, "two").await);
    let spans = Spans::default();
    // With two subscribers, a thread without one does not decide for all which spans are of interest.
    let (_other, seeing) = (
        Dispatch::new(tracing_subscriber::registry()),
        Dispatch::new(tracing_subscriber::registry().with(spans.clone())),
    );
    let waiters = async || database.number("select count(*) from leadergroup.waiter").await;
    let _default = tracing::dispatcher::set_default(&seeing);

    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    assert!(two.try_lock(&key("a")).await.unwrap().is_none());
    let tries = spans.of("lock.try", ["key", "holder", "token", "outcome"]);
    assert_eq!(tries, [["a", "one", "1", "held"], ["a", "two", "", "not free"]]);

    let late = two.lock(&key("a"), Duration::from_millis(50)).await.unwrap_err();
    let [[outcome, error, waited]] = &spans.of("lock.wait", ["outcome", "error", "waited_ms"])[..] else {
        panic!("{spans:?}")
    };
    assert_eq!((outcome.as_str(), error), ("deadline", &late.to_string()));
    assert!(waited.parse::<u64>().unwrap() >= 50, "{waited}");

    eventually("there are no waiters", async || waiters().await == 0).await;
    let next = {
        let two = two.clone();
        tokio::spawn(async move { two.lock(&key("a"), DEADLINE).await.unwrap() }.with_current_subscriber())
    };
    eventually("it waits", async || waiters().await == 1).await;
    let Transferred::NotWaiting(held) = held.transfer_to(Successor::Name("three")).await.unwrap() else {
        panic!("there is no such waiter")
    };
    assert!(matches!(held.transfer_to(Successor::Name("two")).await.unwrap(), Transferred::Done));
    let given = spans.of("lock.transfer", ["key", "holder", "token", "successor", "outcome"]);
    let expected = [("Name(\"three\")", "successor not waiting"), ("Name(\"two\")", "done")];
    assert_eq!(given, expected.map(|(successor, outcome)| ["a", "one", "1", successor, outcome]));
    let next = next.await.unwrap();
    assert_eq!(spans.of("lock.wait", ["holder", "token", "outcome"])[1], ["two", "2", "held"]);

    // A wait that is dropped leaves no span open.
    let waiting = one.another_holder("another");
    let waiting =
        tokio::spawn(async move { waiting.lock(&key("a"), DEADLINE).await }.with_current_subscriber());
    eventually("it waits", async || waiters().await == 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(spans.of("lock.wait", ["holder", "outcome"])[2], ["another", "dropped"]);

    let _ = next.release().await.unwrap();
    drop(one.try_lock(&key("b")).await.unwrap().unwrap());
    eventually("it is released in the background", async || spans.of("lock.release", []).len() == 2).await;
    let released = spans.of("lock.release", ["key", "holder", "token", "outcome"]);
    assert_eq!(released, [["a", "two", "2", "done"], ["b", "one", "1", "done"]]);
    assert!(spans.of("lock.release", ["held_ms"]).iter().all(|[held]| held.parse::<u64>().is_ok()));
    assert!(!format!("{spans:?}").contains(PASSWORD));
}
