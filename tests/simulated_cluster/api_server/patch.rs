//! The two kinds of patches: JSON Patch (RFC 6902) and merge patch (RFC 7396), as the real API server applies them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::failure::{Failure, Unserved};

/// Characters that Go's encoder escapes in strings, beside those that every encoder escapes.
const ESCAPED: [char; 5] = ['&', '<', '>', '\u{2028}', '\u{2029}'];

/// A patch of a request.
#[derive(Clone, Debug)]
pub enum Patch {
    Json(Vec<Step>),
    Merge(Map<String, Value>),
}

/// A step of a JSON Patch.
#[derive(Clone, Debug)]
pub struct Step {
    operation: Operation,
    path: Vec<String>,
    value: Option<Value>,
    /// The value as the client wrote it.
    written: Option<Box<RawValue>>,
}

/// A step as it is sent.
#[derive(Deserialize)]
struct Sent {
    op: Option<String>,
    path: Option<String>,
    value: Option<Box<RawValue>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Test,
    Add,
    Replace,
    Remove,
}

impl Patch {
    pub fn json(body: &[u8]) -> Result<Self, Unserved> {
        let undecodable = |error| Failure::bad_request(&format!("error decoding patch: {error}"));
        let steps: Vec<Sent> = serde_json::from_slice(body).map_err(undecodable)?;
        steps.into_iter().map(Step::parse).collect::<Result<_, _>>().map(Self::Json)
    }

    pub fn merge(body: &[u8]) -> Result<Self, Failure> {
        let undecodable = |error| Failure::bad_request(&format!("error decoding patch: {error}"));
        serde_json::from_slice(body).map(Self::Merge).map_err(undecodable)
    }

    /// The object after the patch.
    pub fn apply(&self, object: &Value) -> Result<Value, Failure> {
        let mut patched = object.clone();
        match self {
            Self::Json(steps) => {
                for step in steps {
                    step.apply(&mut patched).ok_or_else(Failure::inapplicable)?;
                }
            }
            Self::Merge(patch) => merge(&mut patched, patch),
        }
        Ok(patched)
    }
}

impl Step {
    fn parse(sent: Sent) -> Result<Self, Unserved> {
        let operation = match sent.op.as_deref() {
            Some("test") => Operation::Test,
            Some("add") => Operation::Add,
            Some("replace") => Operation::Replace,
            Some("remove") => Operation::Remove,
            _ => return Err(Unserved::Unsupported),
        };
        let path = sent.path.as_deref().and_then(|path| path.strip_prefix('/'));
        let path = path.ok_or(Unserved::Unsupported)?;
        let path = path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
        let value = sent.value.as_ref().map(|written| serde_json::from_str(written.get()));
        let value = value.transpose().map_err(|error| Failure::bad_request(&error.to_string()))?;
        Ok(Self { operation, path, value, written: sent.value })
    }

    /// `None` if it does not apply.
    fn apply(&self, object: &mut Value) -> Option<()> {
        let (last, parents) = self.path.split_last()?;
        let mut parent = object;
        for part in parents {
            parent = match parent {
                Value::Object(fields) => fields.get_mut(part)?,
                Value::Array(items) => items.get_mut(part.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        match parent {
            Value::Object(fields) => self.apply_to_object(fields, last),
            Value::Array(items) => self.apply_to_array(items, last),
            _ => None,
        }
    }

    fn apply_to_object(&self, fields: &mut Map<String, Value>, name: &str) -> Option<()> {
        match self.operation {
            Operation::Test => {
                // A missing field equals null.
                let found = fields.get(name);
                let is_null = |value: Option<&Value>| value.is_none_or(Value::is_null);
                let both_null = is_null(found) && is_null(self.value.as_ref());
                (both_null || found.is_some_and(|found| self.equals(found))).then_some(())
            }
            // The real server's library replaces a field that does not exist.
            Operation::Add | Operation::Replace => {
                fields.insert(name.to_owned(), self.value.clone().unwrap_or_default());
                Some(())
            }
            Operation::Remove => fields.remove(name).map(drop),
        }
    }

    fn apply_to_array(&self, items: &mut Vec<Value>, name: &str) -> Option<()> {
        let value = || self.value.clone().unwrap_or_default();
        if self.operation == Operation::Add && name == "-" {
            items.push(value());
            return Some(());
        }
        let index: usize = name.parse().ok()?;
        match self.operation {
            Operation::Test => self.equals(items.get(index)?).then_some(()),
            Operation::Add if index <= items.len() => {
                items.insert(index, value());
                Some(())
            }
            Operation::Replace => {
                *items.get_mut(index)? = value();
                Some(())
            }
            Operation::Remove if index < items.len() => {
                items.remove(index);
                Some(())
            }
            Operation::Add | Operation::Remove => None,
        }
    }
}

impl Step {
    fn equals(&self, found: &Value) -> bool {
        self.written.as_ref().is_some_and(|written| equals(found, written))
    }
}

/// Whether a value equals what a client wrote, as the real server's library compares them: objects field by field,
/// lists item by item, all else byte by byte with what Go's encoder writes.
fn equals(found: &Value, written: &RawValue) -> bool {
    let text = written.get();
    match found {
        Value::Object(fields) => {
            serde_json::from_str::<BTreeMap<String, &RawValue>>(text).is_ok_and(|written| {
                let equals =
                    |name: &String, value| written.get(name).is_some_and(|other| equals(value, other));
                fields.len() == written.len() && fields.iter().all(|(name, value)| equals(name, value))
            })
        }
        Value::Array(items) => serde_json::from_str::<Vec<&RawValue>>(text).is_ok_and(|written| {
            items.len() == written.len() && items.iter().zip(written).all(|(item, other)| equals(item, other))
        }),
        _ => text == as_go_writes(found),
    }
}

/// The JSON that Go's encoder makes of a value.
pub fn as_go_writes(value: &Value) -> String {
    let mut written = String::new();
    for char in value.to_string().chars() {
        if ESCAPED.contains(&char) {
            written.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            written.push(char);
        }
    }
    written
}

/// Null removes a field, an object is merged, all else replaces.
fn merge(target: &mut Value, patch: &Map<String, Value>) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => drop(fields.remove(name)),
            Value::Object(inner) => {
                let field = fields.entry(name.clone()).or_insert(Value::Null);
                merge(field, inner);
            }
            other => drop(fields.insert(name.clone(), other.clone())),
        }
    }
}
