//! The two kinds of patches: JSON Patch (RFC 6902) and merge patch (RFC 7396), as the real API server applies them.

use serde_json::{Map, Value};

use super::failure::{Failure, Unserved};

/// A patch of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    Json(Vec<Step>),
    Merge(Map<String, Value>),
}

/// A step of a JSON Patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    operation: Operation,
    path: Vec<String>,
    value: Option<Value>,
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
        let steps: Vec<Map<String, Value>> = serde_json::from_slice(body).map_err(undecodable)?;
        steps.iter().map(Step::parse).collect::<Result<_, _>>().map(Self::Json)
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
    fn parse(step: &Map<String, Value>) -> Result<Self, Unserved> {
        let operation = match step.get("op").and_then(Value::as_str) {
            Some("test") => Operation::Test,
            Some("add") => Operation::Add,
            Some("replace") => Operation::Replace,
            Some("remove") => Operation::Remove,
            _ => return Err(Unserved::Unsupported),
        };
        let path = step.get("path").and_then(Value::as_str).and_then(|path| path.strip_prefix('/'));
        let path = path.ok_or(Unserved::Unsupported)?;
        let path = path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
        Ok(Self { operation, path, value: step.get("value").cloned() })
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
                let (found, wanted) = (fields.get(name), self.value.as_ref());
                let is_null = |value: Option<&Value>| value.is_none_or(Value::is_null);
                (found == wanted || (is_null(found) && is_null(wanted))).then_some(())
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
            Operation::Test => (items.get(index)? == self.value.as_ref()?).then_some(()),
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
