//! Label selectors and field selectors.

use super::{
    failure::{Failure, Unserved},
    names::{is_label_value, qualified_name_problem},
    object::Object,
};

/// Which objects a list or a watch returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    /// Names and namespaces that objects must have.
    fields: Vec<(Field, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    /// True of objects without the label, too.
    NotIn(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

impl Selector {
    /// From the parameters of a request.
    pub fn parse(labels: &str, fields: &str) -> Result<Self, Unserved> {
        let mut parsed = Self::default();
        for part in split(labels) {
            parsed.labels.push(requirement(part.trim())?);
        }
        for part in fields.split(',').filter(|part| !part.is_empty()) {
            let (field, value) = part.split_once('=').ok_or(Unserved::Unsupported)?;
            let field = match field {
                "metadata.name" => Field::Name,
                "metadata.namespace" => Field::Namespace,
                _ => return Err(Unserved::Unsupported),
            };
            parsed.fields.push((field, value.trim_start_matches('=').to_owned()));
        }
        Ok(parsed)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Object) -> bool {
        let fields = self.fields.iter().all(|(field, value)| match field {
            Field::Name => object.key.name == *value,
            Field::Namespace => object.key.namespace == *value,
        });
        fields && self.labels.iter().all(|requirement| requirement.matches(object))
    }
}

impl Requirement {
    fn matches(&self, object: &Object) -> bool {
        let found = object.labels().and_then(|labels| labels.get(&self.key)?.as_str());
        let is_one_of =
            |values: &[String]| found.is_some_and(|found| values.iter().any(|value| value == found));
        match &self.test {
            Test::Exists => found.is_some(),
            Test::Absent => found.is_none(),
            Test::In(values) => is_one_of(values),
            Test::NotIn(values) => !is_one_of(values),
        }
    }
}

/// The parts between commas that are not within parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

fn requirement(text: &str) -> Result<Requirement, Unserved> {
    if text.contains(['<', '>']) {
        return Err(Unserved::Unsupported);
    }
    let one = |value: &str| vec![value.trim().to_owned()];
    let (key, condition) = if let Some((key, values)) = listed(text, " notin ") {
        (key, Test::NotIn(values))
    } else if let Some((key, values)) = listed(text, " in ") {
        (key, Test::In(values))
    } else if let Some((key, value)) = text.split_once("!=") {
        (key.trim(), Test::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key.trim(), Test::In(one(value)))
    } else if let Some(key) = text.strip_prefix('!') {
        (key.trim(), Test::Absent)
    } else {
        (text, Test::Exists)
    };
    let refuse = |value: &str, problem: &str| {
        let message = format!("unable to parse requirement: <nil>: Invalid value: {value:?}: {problem}");
        Err(Failure::bad_request(&message).into())
    };
    if let Some(problem) = qualified_name_problem(key) {
        return refuse(key, problem);
    }
    if let Test::In(values) | Test::NotIn(values) = &condition
        && let Some(value) = values.iter().find(|value| !is_label_value(value))
    {
        return refuse(value, "a valid label must be an empty string or consist of alphanumeric characters");
    }
    Ok(Requirement { key: key.to_owned(), test: condition })
}

/// The key and the values of `key in (a,b)`.
fn listed<'a>(text: &'a str, operator: &str) -> Option<(&'a str, Vec<String>)> {
    let (key, values) = text.split_once(operator)?;
    let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some((key.trim(), values.split(',').map(|value| value.trim().to_owned()).collect()))
}
