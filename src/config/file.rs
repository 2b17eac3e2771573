//! The settings file: YAML, read as a list of keys and texts, each with its line.

use std::{fmt, path::Path};

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::Spanned;

use super::{
    error::{Origin, SettingsError, did_you_mean},
    table::{self, Setting},
};

/// The value that the file gives for a setting.
pub(super) struct Found {
    pub setting: &'static Setting,
    pub text: String,
    pub origin: Origin,
}

/// Reads the file: the values and the errors, in the order of the file.
pub(super) fn read(path: &Path) -> Vec<Result<Found, SettingsError>> {
    let at = |line| Origin::File { path: path.to_owned(), line };
    let refuse = |origin, problem| vec![Err(SettingsError { origin, problem })];
    let text = match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => return Vec::new(),
        Ok(text) => text,
        Err(error) => {
            let problem = format!(
                "the settings file {} cannot be read ({error}): write the path of a readable file for --config or \
                 LEADERGROUP_CONFIG, or leave both out",
                path.display()
            );
            return refuse(Origin::Default, problem);
        }
    };
    match serde_saphyr::from_str::<Spanned<Node>>(&text) {
        Ok(root) => {
            let mut found = Vec::new();
            collect("", &root, &at, &mut found);
            found
        }
        Err(error) => {
            // The parser's message may quote a password from the file, so only its place is used.
            let problem = "is not valid YAML at or before this line, or sets a key twice: write `key: value` pairs, \
                           nested by indentation, each key once";
            refuse(at(error.location().map_or(1, |location| location.line())), problem.to_owned())
        }
    }
}

fn collect(
    key: &str,
    node: &Spanned<Node>,
    at: &impl Fn(u64) -> Origin,
    found: &mut Vec<Result<Found, SettingsError>>,
) {
    let origin = at(node.referenced.line());
    let problem = match (&node.value, table::by_key(key)) {
        (Node::Nothing, _) => return,
        (Node::Text(text), Some(setting)) => {
            return found.push(Ok(Found { setting, text: text.clone(), origin }));
        }
        (Node::List(items), Some(setting)) if setting.list => {
            return found.push(Ok(Found { setting, text: items.join(","), origin }));
        }
        (Node::Map(entries), None) if key.is_empty() || is_section(key) => {
            for (name, value) in entries {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                collect(&key, value, at, found);
            }
            return;
        }
        (_, Some(_)) => format!("{key} must be a single value: write `{key}: value`"),
        (_, None) if key.is_empty() => {
            "the file must consist of `key: value` pairs, such as `ttl: 4s`".to_owned()
        }
        (_, None) if is_section(key) => {
            format!("{key} is a section: write its keys below it, such as {}", example(key))
        }
        (_, None) => format!(
            "unknown key {key}: write a key that `leadergroup run --help` lists{}",
            did_you_mean(key, table::ALL.iter().map(|setting| setting.key))
        ),
    };
    found.push(Err(SettingsError { origin, problem }));
}

fn is_section(key: &str) -> bool {
    table::ALL.iter().any(|setting| setting.key.split_once('.').is_some_and(|(section, _)| section == key))
}

fn example(section: &str) -> &'static str {
    let inside = |key: &str| key.split_once('.').is_some_and(|(own, _)| own == section);
    table::ALL.iter().map(|setting| setting.key).find(|key| inside(key)).unwrap_or_default()
}

/// A YAML value. A scalar is kept as the text that a flag or a variable would have.
enum Node {
    Nothing,
    Text(String),
    List(Vec<String>),
    Map(Vec<(String, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> de::Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list of values or key: value pairs")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Node>()? {
            match item {
                Node::Text(text) => items.push(text),
                _ => return Err(de::Error::custom("a list may contain single values only")),
            }
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<String, Spanned<Node>>()? {
            if entries.iter().any(|(key, _)| *key == entry.0) {
                return Err(de::Error::custom("a key is there twice"));
            }
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}
