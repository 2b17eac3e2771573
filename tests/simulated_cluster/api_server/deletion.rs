//! What a deletion does: with finalizers and grace periods it only marks the object.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{failure::Failure, kinds::Kind, object::Object, rules::raise_generation};

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    /// Preconditions.
    pub uid: Option<String>,
    pub version: Option<String>,
}

/// The effect of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// The object is being deleted already.
    Unchanged,
    /// The object is marked.
    Marked(Value),
    /// The object is marked, and removed by a second write, as pods without a grace period are.
    MarkedAndRemoved(Value),
    Removed,
}

/// The effect of a deletion of this object.
pub fn deletion(object: &Object, options: &DeleteOptions, now: Timestamp) -> Result<Deletion, Failure> {
    check(object, options)?;
    let has_finalizers = object.metadata()["finalizers"].as_array().is_some_and(|names| !names.is_empty());
    match graceful(object, options, now) {
        Grace::Pending => Ok(Deletion::Unchanged),
        Grace::Marked(value, 0) if !has_finalizers => Ok(Deletion::MarkedAndRemoved(value)),
        Grace::Marked(value, _) => Ok(Deletion::Marked(value)),
        Grace::None if has_finalizers => {
            let marked = mark(object, now);
            Ok(if marked == *object.value() { Deletion::Unchanged } else { Deletion::Marked(marked) })
        }
        Grace::None => Ok(Deletion::Removed),
    }
}

fn check(object: &Object, options: &DeleteOptions) -> Result<(), Failure> {
    let refuse = |problem: &str| Err(Failure::precondition(object.kind, &object.key.name, problem));
    if let Some(uid) = options.uid.as_ref().filter(|uid| *uid != object.uid()) {
        let found = object.uid();
        return refuse(&format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been \
             deleted and then recreated"
        ));
    }
    let found = object.revision.to_string();
    if let Some(version) = options.version.as_ref().filter(|version| **version != found) {
        return refuse(&format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({found}). \
             The object might have been modified"
        ));
    }
    Ok(())
}

enum Grace {
    /// The kind has no graceful deletion, or the grace period is over.
    None,
    /// It is being deleted, and its end does not come nearer.
    Pending,
    /// Marked, with this grace period.
    Marked(Value, i64),
}

/// Only pods are deleted gracefully.
fn graceful(object: &Object, options: &DeleteOptions, now: Timestamp) -> Grace {
    if object.kind != Kind::Pod {
        return Grace::None;
    }
    let wanted = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if !object.is_being_deleted() {
        let period = period(object, wanted);
        let mut value = object.value().clone();
        set(&mut value, now + SignedDuration::from_secs(period), period);
        raise_generation(&mut value);
        return Grace::Marked(value, period);
    }
    let left = object.metadata()["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if left == 0 {
        return Grace::None;
    }
    let Some(mut period) = wanted.filter(|period| *period < left) else { return Grace::Pending };
    let end = object.metadata()["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let mut end = end.unwrap_or(now) - SignedDuration::from_secs(left - period);
    if end < now {
        // The least period of a graceful deletion is a second.
        (end, period) = (now, period.min(1));
    }
    let mut value = object.value().clone();
    set(&mut value, end, period);
    Grace::Marked(value, period)
}

fn period(pod: &Object, wanted: Option<i64>) -> i64 {
    let (spec, status) = (&pod.value()["spec"], &pod.value()["status"]);
    let is_scheduled = spec["nodeName"].as_str().is_some_and(|name| !name.is_empty());
    if !is_scheduled || matches!(status["phase"].as_str(), Some("Failed" | "Succeeded")) {
        return 0;
    }
    wanted.or_else(|| spec["terminationGracePeriodSeconds"].as_i64()).unwrap_or(0)
}

/// The object with the marks of one whose finalizers are awaited.
fn mark(object: &Object, now: Timestamp) -> Value {
    let mut value = object.value().clone();
    let end = value["metadata"]["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    if end.is_none() {
        raise_generation(&mut value);
    }
    set(&mut value, end.map_or(now, |end| end.min(now)), 0);
    value
}

fn set(value: &mut Value, end: Timestamp, period: i64) {
    value["metadata"]["deletionTimestamp"] = timestamp(end).into();
    value["metadata"]["deletionGracePeriodSeconds"] = period.into();
}

/// As in metadata: in whole seconds.
pub fn timestamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether an update has removed the last finalizer of an object that is being deleted.
pub fn is_over(old: &Object, new: &Value) -> bool {
    let is_held = new["metadata"]["finalizers"].as_array().is_some_and(|names| !names.is_empty());
    let left = old.metadata()["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    old.is_being_deleted() && !is_held && left == 0
}
