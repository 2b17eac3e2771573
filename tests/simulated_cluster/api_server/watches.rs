//! Watches: streams of events from the watch cache, with bookmarks, a time limit, and connections that may fail.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use hyper::body::Frame;
use serde_json::json;
use tokio::{
    sync::{Notify, futures::OwnedNotified, watch},
    time::{Instant, sleep_until},
};

use super::{
    Shared,
    failure::Failure,
    faults::{Connection, RequestInfo, WatchInfo},
    history::{Event, Next, Position},
    kinds::Kind,
    object::Object,
    reads::shown,
    request::{View, Watch},
    selector::Selector,
};

/// The time between two bookmarks.
const BOOKMARKS: Duration = Duration::from_mins(1);
/// How long before the time limit the last one is sent.
const BEFORE_END: Duration = Duration::from_secs(2);
/// Events that are sent at once.
const BATCH: usize = 64 * 1_024;

/// A watch under way.
struct Watching {
    /// Removes the watch from the server's list when the stream is dropped.
    entry: Entry,
    kind: Kind,
    namespace: String,
    selector: Selector,
    view: View,
    position: Position,
    deadline: Option<Instant>,
    bookmark: Option<Instant>,
    changes: Arc<Notify>,
    connection: watch::Receiver<Connection>,
    is_over: bool,
}

/// A watch in the server's list.
struct Entry {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.watches.lock().remove(&self.number);
    }
}

type Chunk = io::Result<Frame<Bytes>>;

/// The events after a revision. If that is too old, the stream says so and ends.
pub(super) fn watch(
    shared: &Arc<Shared>,
    info: &RequestInfo,
    watch: Watch,
) -> Result<impl Stream<Item = Chunk> + Send + use<>, Bytes> {
    let (position, changes) = {
        let store = shared.store.lock();
        let history = store.history(info.kind);
        let position = history.position_after(watch.after).map_err(|oldest| {
            let failure = Failure::expired(&format!("too old resource version: {} ({oldest})", watch.after));
            Bytes::from(format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure.text()))
        })?;
        (position, history.changes())
    };
    let (sender, connection) = watch::channel(Connection::Open);
    let listed = WatchInfo {
        client: info.client.clone(),
        number: info.number,
        kind: info.kind,
        namespace: info.namespace.clone(),
    };
    shared.watches.lock().insert(info.number, (listed, sender));
    let now = Instant::now();
    let deadline = watch.timeout.map(|timeout| now + timeout);
    let watching = Watching {
        entry: Entry { shared: shared.clone(), number: info.number },
        kind: info.kind,
        namespace: info.namespace.clone(),
        selector: watch.selector,
        view: watch.view,
        position,
        deadline,
        bookmark: watch.bookmarks.then(|| next_bookmark(now, deadline)),
        changes,
        connection,
        is_over: false,
    };
    Ok(stream::unfold(watching, Watching::next))
}

/// A minute from now, or shortly before the end.
fn next_bookmark(now: Instant, deadline: Option<Instant>) -> Instant {
    let regular = now + BOOKMARKS;
    let last = deadline.and_then(|deadline| deadline.checked_sub(BEFORE_END)).filter(|last| *last > now);
    last.map_or(regular, |last| last.min(regular))
}

impl Watching {
    async fn next(mut self) -> Option<(Chunk, Self)> {
        loop {
            let state = *self.connection.borrow_and_update();
            let changed = self.changes.clone().notified_owned();
            if self.is_over || state == Connection::Ended {
                return None;
            }
            if state == Connection::Broken {
                self.is_over = true;
                return Some((Err(io::Error::from(io::ErrorKind::ConnectionReset)), self));
            }
            let mut until = None;
            if state == Connection::Open {
                let now = Instant::now();
                if self.deadline.is_some_and(|deadline| deadline <= now) {
                    return None;
                }
                match self.collect(now) {
                    Collected::Events(events) => return Some((Ok(Frame::data(events)), self)),
                    Collected::Lost => return None,
                    Collected::Nothing(next) => {
                        until = [next, self.deadline, self.bookmark].into_iter().flatten().min();
                    }
                }
            }
            self.wait(until, changed).await;
        }
    }

    async fn wait(&mut self, until: Option<Instant>, changed: OwnedNotified) {
        let time = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.connection.changed() => {}
            // While the connection is silent, events wait at the server.
            () = changed => {}
            () = time => {}
        }
    }

    /// What can be sent now.
    fn collect(&mut self, now: Instant) -> Collected {
        let store = self.entry.shared.store.lock();
        let history = store.history(self.kind);
        let mut text = Vec::new();
        let next = loop {
            match history.next(self.position, now) {
                Next::Event(event) => {
                    self.position += 1;
                    if let Some((kind, object)) = seen(&self.namespace, &self.selector, &event) {
                        append(&mut text, kind, &shown(object, self.view));
                    }
                    if text.len() >= BATCH {
                        return Collected::Events(text.into());
                    }
                }
                Next::At(time) => break Some(time),
                Next::Nothing => break None,
                Next::Lost => return Collected::Lost,
            }
        };
        if self.bookmark.is_some_and(|due| due <= now) {
            self.bookmark = Some(next_bookmark(now, self.deadline));
            append(&mut text, "BOOKMARK", &bookmark(self.kind, store.visible_revision(self.kind)));
        }
        if text.is_empty() { Collected::Nothing(next) } else { Collected::Events(text.into()) }
    }
}

enum Collected {
    Events(Bytes),
    /// None; perhaps the next one comes at this time.
    Nothing(Option<Instant>),
    Lost,
}

/// What a watch of these objects sees of an event.
fn seen<'a>(
    namespace: &str,
    selector: &Selector,
    event: &'a Event,
) -> Option<(&'static str, &'a Arc<Object>)> {
    let is_seen = |object: &&Arc<Object>| {
        (namespace.is_empty() || object.key.namespace == namespace) && selector.matches(object)
    };
    let (old, new) = (event.old.as_ref().filter(is_seen), event.new.as_ref().filter(is_seen));
    match (old, new) {
        (None, Some(new)) => Some(("ADDED", new)),
        (Some(_), Some(new)) => Some(("MODIFIED", new)),
        (Some(_), None) => Some(("DELETED", event.gone()?)),
        (None, None) => None,
    }
}

fn append(text: &mut Vec<u8>, kind: &str, object: &[u8]) {
    text.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
    text.extend_from_slice(object);
    text.extend_from_slice(b"}\n");
}

fn bookmark(kind: Kind, revision: u64) -> Vec<u8> {
    let object = json!({
        "kind": kind.traits().name, "apiVersion": kind.api_version(), "metadata": { "resourceVersion": revision.to_string() },
    });
    object.to_string().into_bytes()
}
