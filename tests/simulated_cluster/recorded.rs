//! The recording of a run, for the checker of the end-to-end tests: every revision of every object, and all terms.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use leadergroup_e2e::{
    history::{Change, History, Kind, Object, ObjectId, Term},
    moment::Moment,
};
use leadergroup_lock::memory::MemoryDatabase;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api_server::{self, ApiServer},
    edits::Edits,
};

/// The history of a run that began at `start`.
pub fn history(api: &ApiServer, edits: &Edits, terms: Vec<Term>, cluster: &str, start: Instant) -> History {
    let store = api.store();
    let (mut written, mut veil) = (BTreeMap::new(), edits.veil());
    let changes = store.journal().iter().filter_map(|change| {
        let shown = veil.next(change);
        recorded(change, shown.as_ref(), moment(change.instant.duration_since(start)), &mut written)
    });
    History {
        cluster: Some(cluster.to_owned()),
        changes: changes.collect(),
        baseline: 0,
        complete_to: i64::try_from(store.revision()).expect("few enough revisions"),
        terms: Some(terms),
        one_clock: false,
        clock_set: Vec::new(),
        faults: None,
        deadlines: Vec::new(),
        grants_apart: BTreeSet::new(),
        unanswered: Vec::new(),
        late: Vec::new(),
    }
}

/// This time of a run.
pub fn moment(now: Duration) -> Moment {
    Moment::default().plus(now)
}

/// When the operator wrote an object last.
type Written = BTreeMap<ObjectId, String>;

/// The change. The checker is to be shown this object, if it is not the one that was written.
fn recorded(
    change: &api_server::Change,
    shown: Option<&Value>,
    seen: Moment,
    written: &mut Written,
) -> Option<Change> {
    let object = change.object();
    let kind = match object.kind {
        api_server::Kind::Pod => Kind::Pod,
        api_server::Kind::Service => Kind::Service,
        api_server::Kind::EndpointSlice => Kind::EndpointSlice,
        api_server::Kind::LeaderGroup => Kind::LeaderGroup,
        api_server::Kind::Event => Kind::Event,
        _ => return None,
    };
    let state = change.new.as_ref().map(|new| {
        let state = Object::read(kind, shown.unwrap_or(new.value()));
        state.unwrap_or_else(|problem| panic!("{kind:?} {}: {problem:#}", object.key.name))
    });
    let id = ObjectId { kind, namespace: object.key.namespace.clone(), name: object.key.name.clone() };
    // The name of a replica's client begins with the replica's.
    if change.by.contains('/') {
        written.insert(id.clone(), change.revision.to_string());
    }
    Some(Change {
        revision: i64::try_from(change.revision).expect("few enough revisions"),
        seen,
        seen_at: change.at,
        operator: state.as_ref().and_then(|_| written.get(&id).cloned()),
        id,
        state,
        raw: Arc::from(change.new.as_ref().map(|new| new.value().to_string()).unwrap_or_default()),
    })
}

/// The terms that a database knows of: those that have ended, and the present ones.
pub fn terms(database: &MemoryDatabase) -> Vec<Term> {
    let tables = database.dump();
    let rows = |table: &str| tables[table].as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
    let (present, ended) = (rows("locks"), rows("terms"));
    present.iter().chain(&ended).filter_map(term).collect()
}

fn term(row: &Value) -> Option<Term> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let granted_at = row.get("granted_at").or(row.get("lock_timestamp"))?.as_i64()?;
    Some(Term {
        key: text(&row["key"])?,
        token: row["token"].as_i64()?,
        grant: text(&row["grant_id"])?,
        owner: text(&row["holder"]["uid"])?,
        granted_at: Timestamp::from_microsecond(granted_at).ok()?,
    })
}
