//! Why a command fails, and what to do about it.

use std::fmt;

use crate::api::with_causes;

/// Why a command fails: what it could not do, why not, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, in one line.
    pub problem: String,
    /// What to do, in one line; empty if nothing is to be added.
    pub remedy: String,
    /// Which kind of failure it is.
    pub kind: Kind,
}

/// The kinds of failures that the plugin tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The account lacks a right.
    Forbidden,
    /// The object does not exist.
    NotFound,
    /// The API server does not know the kind of object.
    UnknownKind,
    /// The reader of the output has closed the pipe, as in `status | head`.
    NoReader,
    /// Anything else.
    Other,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remedy.as_str() {
            "" => f.write_str(&self.problem),
            remedy => write!(f, "{}\n{remedy}", self.problem),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure that the plugin itself has found.
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into(), kind: Kind::Other }
    }

    /// A call to the API server failed. `what` completes "could not".
    pub(super) fn of_call(what: &str, server: &str, error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::new(
                format!("could not {what}: no answer from the API server {server}: {}", with_causes(error)),
                "Check the network, the VPN and the login of this machine; --context chooses another cluster.",
            );
        };
        let problem = format!("could not {what}: {} (HTTP {})", status.message.trim(), status.code);
        let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
        let (kind, remedy) = match status.code {
            401 => (Kind::Other, "The API server does not accept your credentials: log in again."),
            403 => (
                Kind::Forbidden,
                "Ask an administrator for the right. With the chart's rbac.aggregate the cluster role view may read \
                 groups, and edit may change them.",
            ),
            404 if named => (Kind::NotFound, ""),
            404 => (
                Kind::UnknownKind,
                "This cluster does not know LeaderGroups: install the operator's chart, or choose another --context.",
            ),
            429 | 500.. => (Kind::Other, "The API server is in trouble itself: try again, and check it."),
            _ => (Kind::Other, ""),
        };
        Self { problem, remedy: remedy.to_owned(), kind }
    }

    /// A call to the API server took too long.
    pub(super) fn of_silence(what: &str, server: &str, limit: impl fmt::Display) -> Self {
        Self::new(
            format!("could not {what}: no answer from the API server {server} within {limit}"),
            "Check the network and the VPN of this machine; --request-timeout waits longer.",
        )
    }

    /// There is no such group. `here` are the groups of its namespace, `elsewhere` the other namespaces that have one
    /// of its name.
    pub(super) fn no_group(namespace: &str, name: &str, here: &[String], elsewhere: &[String]) -> Self {
        let near = here
            .iter()
            .map(|other| (strsim::damerau_levenshtein(other, name), other))
            .filter(|(distance, other)| *distance <= 2.max(name.len() / 3) || other.contains(name))
            .min();
        let remedy = match (elsewhere, near) {
            ([], Some((_, other))) => format!("Did you mean {other}?"),
            ([], None) if here.is_empty() => format!(
                "The namespace {namespace} has no LeaderGroups: `kubectl leadergroup status -A` shows those of all namespaces."
            ),
            ([], None) => format!("The namespace {namespace} has: {}.", here.join(", ")),
            (namespaces, _) => {
                format!("There is one in another namespace: add -n {}.", namespaces.join(" or -n "))
            }
        };
        let problem = format!("there is no LeaderGroup {name} in the namespace {namespace}");
        Self { problem, remedy, kind: Kind::NotFound }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn answer(code: u16, name: &str) -> Failure {
        let status = json!({ "code": code, "message": "no", "details": { "name": name } });
        let status: Status = serde_json::from_value(status).expect("a status");
        Failure::of_call("read the group", "https://k", &kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_missing_object_a_missing_kind_and_a_missing_right_are_told_apart() {
        assert_eq!(answer(404, "web").kind, Kind::NotFound);
        let unknown = answer(404, "");
        assert_eq!(unknown.kind, Kind::UnknownKind);
        assert!(unknown.to_string().contains("install the operator's chart"), "{unknown}");
        assert_eq!(answer(403, "").kind, Kind::Forbidden);
        assert!(answer(401, "").remedy.contains("log in again"));
    }

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest_one() {
        let here = ["billing".to_owned(), "web".to_owned()];
        let near = |name| Failure::no_group("shop", name, &here, &[]).remedy;
        assert_eq!(near("biling"), "Did you mean billing?");
        assert_eq!(near("bill"), "Did you mean billing?");
        assert_eq!(near("queue"), "The namespace shop has: billing, web.");
        let other = Failure::no_group("default", "web", &[], &["shop".to_owned()]);
        assert_eq!(other.remedy, "There is one in another namespace: add -n shop.");
        assert!(Failure::no_group("default", "web", &[], &[]).remedy.contains("status -A"));
    }
}
