//! What tells two runs apart: all changes of all objects, in their order and at their times.

use std::{fmt::Write as _, time::Duration};

use tokio::time::Instant;

use crate::api_server::ApiServer;

/// A line for each change.
pub fn trace(api: &ApiServer, start: Instant) -> Vec<String> {
    let store = api.store();
    let line = |change: &crate::api_server::Change| {
        let object = change.object();
        let mut line = String::new();
        let at: Duration = change.instant.duration_since(start);
        let _ =
            write!(line, "{} {at:?} {} {:?} {}", change.revision, change.by, object.kind, object.key.name);
        match &change.new {
            Some(new) => {
                let _ = write!(line, " {}", new.value());
            }
            None => line.push_str(" removed"),
        }
        line
    };
    store.journal().iter().map(line).collect()
}
