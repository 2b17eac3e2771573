//! What tells two runs apart: all changes of all objects, in their order and at their times.

use std::{fmt::Write as _, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use crate::api_server::ApiServer;

/// A line for each change. The operator takes the times that users read from the clock of the machine, so they are left
/// out.
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
                let mut value = new.value().clone();
                leave_times_out(&mut value);
                let _ = write!(line, " {value}");
            }
            None => line.push_str(" removed"),
        }
        line
    };
    store.journal().iter().map(line).collect()
}

fn leave_times_out(value: &mut Value) {
    match value {
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => text.clear(),
        Value::Array(items) => items.iter_mut().for_each(leave_times_out),
        Value::Object(fields) => fields.values_mut().for_each(leave_times_out),
        _ => {}
    }
}
