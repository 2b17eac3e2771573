//! Manifests of several documents. A document without a workload of a group stays as it is, to the byte.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};

use super::{
    inject::{GROUP_LABEL, Injected, Wish, inject},
    refusal::Refusal,
};
use crate::api::LeaderGroup;

/// Why no manifests are printed.
#[derive(Debug, thiserror::Error)]
pub enum DocumentsError {
    /// A document is no YAML.
    #[error("document {number} of the manifests cannot be read: {problem}")]
    Unreadable {
        /// Which one, counted from 1.
        number: usize,
        /// The parser's words.
        problem: String,
    },
    /// The agent is not put into a workload.
    #[error("{workload}: {why}")]
    Refused {
        /// Kind and name.
        workload: String,
        /// The reason and what to do.
        why: String,
    },
    /// No workload belongs to a group.
    #[error(
        "no Deployment, StatefulSet, ReplicaSet or Pod of a LeaderGroup: name the group with --group, or label the \
         pods with {GROUP_LABEL}"
    )]
    NothingToDo,
    /// There is no workload.
    #[error(
        "the manifests have no Deployment, StatefulSet, ReplicaSet or Pod. The agent runs programs in pods that are \
         there all the time: make a CronJob a scheduler that runs all the time, and a DaemonSet a Deployment"
    )]
    NoWorkload,
    /// The agents of a group would start nothing.
    #[error("LeaderGroup {0} has no spec.agent, so its agents would start no program: set spec.agent: {{}}")]
    NoAgent(String),
    /// A result could not be written so that it means the same.
    #[error("document {0} of the manifests cannot be written as YAML without a change of its meaning")]
    Unwritable(usize),
}

struct Document {
    /// What follows the `---`, with the line's end.
    text: String,
    value: Value,
    is_changed: bool,
}

/// The manifests in which the agent runs the programs, with the right that the pods need.
pub(super) fn injected(texts: &[String], wish: &Wish, cluster_role: &str) -> Result<String, DocumentsError> {
    let mut documents = read(texts)?;
    let groups: Vec<LeaderGroup> =
        documents.iter().flat_map(|document| objects(&document.value)).filter_map(group).collect();
    let (mut bindings, mut injected) = (BTreeMap::new(), Vec::new());
    for document in &mut documents {
        for object in objects_mut(&mut document.value) {
            let Some((group, done)) = of_workload(object, &groups, wish)? else { continue };
            document.is_changed |= done == Injected::Now;
            injected.push((group, object["metadata"]["namespace"].clone()));
            let binding = binding(object, cluster_role);
            bindings.insert(binding.to_string(), binding);
        }
    }
    if bindings.is_empty() {
        return Err(if wish.group.is_some() {
            DocumentsError::NoWorkload
        } else {
            DocumentsError::NothingToDo
        });
    }
    let named = |group: &&Value| injected.contains(&(name(group), group["metadata"]["namespace"].clone()));
    let mut all = documents.iter().flat_map(|document| objects(&document.value));
    let without = all.find(|object| is_group(object) && object["spec"]["agent"].is_null() && named(object));
    if let Some(group) = without {
        return Err(DocumentsError::NoAgent(name(group)));
    }
    let mut output = String::new();
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            output.push_str("---");
        }
        if document.is_changed {
            // The first text begins without a separator.
            let separator = if index > 0 { "\n" } else { "" };
            let _ = write!(output, "{separator}{}", written(&document.value, index + 1)?);
        } else {
            output.push_str(&document.text);
        }
        if !output.is_empty() && !output.ends_with('\n') {
            output.push('\n');
        }
    }
    for binding in bindings.into_values() {
        if !is_there(&documents, &binding)? {
            let _ = write!(output, "---\n{}", written(&binding, documents.len() + 1)?);
        }
    }
    Ok(output)
}

/// Whether the manifests have the `RoleBinding` already.
fn is_there(documents: &[Document], binding: &Value) -> Result<bool, DocumentsError> {
    let of = |object: &Value| (object["kind"].clone(), name(object), object["metadata"]["namespace"].clone());
    let mut all = documents.iter().flat_map(|document| objects(&document.value));
    let Some(found) = all.find(|object| of(object) == of(binding)) else { return Ok(false) };
    if found["roleRef"] == binding["roleRef"] && found["subjects"] == binding["subjects"] {
        return Ok(true);
    }
    let workload = format!("RoleBinding {}", name(binding));
    let why = Refusal::Taken { what: "this name of a RoleBinding".to_owned() }.to_string();
    Err(DocumentsError::Refused { workload, why })
}

/// Splits texts into documents.
fn read(texts: &[String]) -> Result<Vec<Document>, DocumentsError> {
    let mut parts = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        // Each file begins a document.
        let mut part = if index > 0 { "\n".to_owned() } else { String::new() };
        for line in text.split_inclusive('\n') {
            // Such a line ends a document, whatever it is in.
            let rest = line
                .strip_prefix("---")
                .filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
            match rest {
                Some(rest) => parts.push(std::mem::replace(&mut part, rest.to_owned())),
                None => part.push_str(line),
            }
        }
        parts.push(part);
    }
    // As kubectl reads them: YAML 1.1, in which `0644` is octal and `yes` is true.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let mut documents = Vec::new();
    for (index, text) in parts.into_iter().enumerate() {
        let is_empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
        let value = if is_empty {
            Value::Null
        } else {
            let read = serde_saphyr::from_str_with_options(&text, options.clone());
            read.map_err(|error: serde_saphyr::Error| DocumentsError::Unreadable {
                number: index + 1,
                problem: error.to_string(),
            })?
        };
        documents.push(Document { text, value, is_changed: false });
    }
    Ok(documents)
}

fn written(value: &Value, number: usize) -> Result<String, DocumentsError> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let text = serde_saphyr::to_string_with_options(value, options)
        .map_err(|_| DocumentsError::Unwritable(number))?;
    let same =
        read(std::slice::from_ref(&text)).is_ok_and(|all| matches!(&all[..], [one] if one.value == *value));
    if same { Ok(text) } else { Err(DocumentsError::Unwritable(number)) }
}

/// The objects of a document, which may be a `List`.
fn objects(document: &Value) -> Vec<&Value> {
    match &document["items"] {
        Value::Array(items) if document["kind"] == "List" => items.iter().collect(),
        _ => vec![document],
    }
}

fn objects_mut(document: &mut Value) -> Vec<&mut Value> {
    if document["kind"] == "List" && document["items"].is_array() {
        return document["items"].as_array_mut().into_iter().flatten().collect();
    }
    vec![document]
}

fn group(object: &Value) -> Option<LeaderGroup> {
    let is_one = is_group(object) && !object["spec"]["agent"].is_null();
    is_one.then(|| serde_json::from_value(object.clone()).ok())?
}

fn is_group(object: &Value) -> bool {
    object["kind"] == "LeaderGroup"
}

/// Puts the agent into an object, if it is a workload of a group. Returns the group's name, too.
fn of_workload(
    object: &mut Value,
    groups: &[LeaderGroup],
    wish: &Wish,
) -> Result<Option<(String, Injected)>, DocumentsError> {
    let place = match (object["apiVersion"].as_str(), object["kind"].as_str()) {
        (Some("v1"), Some("Pod")) => "",
        (Some("apps/v1"), Some("Deployment" | "StatefulSet" | "ReplicaSet")) => "/spec/template",
        _ => return Ok(None),
    };
    let workload = format!("{} {}", object["kind"].as_str().unwrap_or_default(), name(object));
    let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
    let refused = |why: Refusal| DocumentsError::Refused { workload: workload.clone(), why: why.to_string() };
    let pod = object.pointer_mut(place).ok_or_else(|| refused(Refusal::Malformed("spec.template")))?;
    let metadata = pod["metadata"].clone();
    let label = metadata["labels"][GROUP_LABEL].as_str().map(str::to_owned);
    let Some(group) =
        wish.group.clone().or(label).or_else(|| selecting(groups, &metadata, namespace.as_deref()))
    else {
        return Ok(None);
    };
    let spec = pod.get_mut("spec").ok_or_else(|| refused(Refusal::Malformed("spec")))?;
    let done = inject(&metadata, spec, &group, wish).map_err(refused)?;
    Ok(Some((group, done)))
}

/// The group in the manifests that selects such a pod.
fn selecting(groups: &[LeaderGroup], metadata: &Value, namespace: Option<&str>) -> Option<String> {
    let labels: BTreeMap<String, String> =
        serde_json::from_value(metadata["labels"].clone()).unwrap_or_default();
    let fits = |group: &&LeaderGroup| {
        group.metadata.namespace.as_deref() == namespace && group.spec.selector.matches(&labels)
    };
    groups.iter().find(fits).and_then(|group| group.metadata.name.clone())
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or("without a name").to_owned()
}

/// Lets the pods of a workload read their group.
fn binding(workload: &Value, cluster_role: &str) -> Value {
    let spec =
        if workload["kind"] == "Pod" { &workload["spec"] } else { &workload["spec"]["template"]["spec"] };
    let account = spec["serviceAccountName"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
    let mut binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": format!("leadergroup-agent-{account}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": cluster_role },
        "subjects": [{ "kind": "ServiceAccount", "name": account }],
    });
    if let Some(namespace) = workload["metadata"]["namespace"].as_str() {
        binding["metadata"]["namespace"] = namespace.into();
        binding["subjects"][0]["namespace"] = namespace.into();
    }
    binding
}

#[cfg(test)]
mod tests;
