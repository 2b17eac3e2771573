//! Answers that are failures, worded as the real API server words them. The texts are those of
//! `k8s.io/apimachinery/pkg/api/errors` and of the places in `k8s.io/apiserver` that call it.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A failure: the HTTP status and the body.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub code: u16,
    pub body: Body,
}

/// The body of a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A `Status`.
    Status(Box<Value>),
    /// The filters in front of the API answer with plain text.
    Text(&'static str),
}

/// Why a request is not carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Unserved {
    /// The simulated server does not implement it.
    Unsupported,
    /// The real server refuses it, too.
    Failed(Failure),
}

impl From<Failure> for Unserved {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub field: String,
    pub reason: &'static str,
    pub message: String,
}

impl FieldError {
    pub fn invalid(field: &str, value: &Value, problem: &str) -> Self {
        let message = format!("Invalid value: {value}: {problem}");
        Self { field: field.to_owned(), reason: "FieldValueInvalid", message }
    }

    pub fn forbidden(field: &str, problem: &str) -> Self {
        let message = format!("Forbidden: {problem}");
        Self { field: field.to_owned(), reason: "FieldValueForbidden", message }
    }

    pub fn required(field: &str, problem: &str) -> Self {
        let message = if problem.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {problem}")
        };
        Self { field: field.to_owned(), reason: "FieldValueRequired", message }
    }
}

impl Failure {
    fn status(code: u16, reason: &str, message: &str, details: &Value) -> Self {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code,
        });
        if !reason.is_empty() {
            body["reason"] = reason.into();
        }
        if !details.is_null() {
            body["details"] = details.clone();
        }
        Self { code, body: Body::Status(Box::new(body)) }
    }

    /// Of an object, which is named as `group` and `kind` say.
    fn of(code: u16, reason: &str, message: &str, (group, kind, name): (&str, &str, &str)) -> Self {
        let mut details = json!({});
        for (field, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details[field] = value.into();
            }
        }
        Self::status(code, reason, message, &details)
    }

    fn of_resource(code: u16, reason: &str, message: &str, kind: Kind, name: &str) -> Self {
        Self::of(code, reason, message, (kind.traits().group, kind.traits().plural, name))
    }

    pub fn not_found(kind: Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.resource());
        Self::of_resource(404, "NotFound", &message, kind, name)
    }

    pub fn already_exists(kind: Kind, name: &str, is_being_deleted: bool) -> Self {
        let prefix = if is_being_deleted { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} {name:?} already exists", kind.resource());
        Self::of_resource(409, "AlreadyExists", &message, kind, name)
    }

    pub fn stale(kind: Kind, name: &str) -> Self {
        let problem =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, problem)
    }

    pub fn conflict(kind: Kind, name: &str, problem: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {problem}", kind.resource());
        Self::of_resource(409, "Conflict", &message, kind, name)
    }

    /// A precondition of a deletion does not hold. There the real server names the kind, not the resource.
    pub fn precondition(kind: Kind, name: &str, problem: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {problem}", kind.qualified_name());
        Self::of(409, "Conflict", &message, (kind.traits().group, kind.traits().name, name))
    }

    pub fn forbidden(kind: Kind, name: &str, problem: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {problem}", kind.resource());
        Self::of_resource(403, "Forbidden", &message, kind, name)
    }

    pub fn invalid(kind: Kind, name: &str, errors: &[FieldError]) -> Self {
        let traits = kind.traits();
        Self::invalid_as((traits.group, traits.name, &kind.qualified_name()), name, errors)
    }

    /// No version, which the real server says of the resource.
    pub fn unversioned(kind: Kind, name: &str) -> Self {
        let traits = kind.traits();
        let problem =
            FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        Self::invalid_as((traits.group, traits.plural, &kind.resource()), name, &[problem])
    }

    fn invalid_as((group, kind, words): (&str, &str, &str), name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        let text = match texts.as_slice() {
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{words} {name:?} is invalid: {text}");
        let mut failure = Self::of(422, "Invalid", &message, (group, kind, name));
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| json!({ "reason": error.reason, "message": error.message, "field": error.field }))
            .collect();
        if let Body::Status(status) = &mut failure.body {
            status["details"]["causes"] = causes.into();
        }
        failure
    }

    /// A JSON Patch whose steps cannot be applied, or whose test failed.
    pub fn inapplicable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::status(422, "Invalid", message, &json!({}))
    }

    pub fn bad_request(message: &str) -> Self {
        Self::status(400, "BadRequest", message, &Value::Null)
    }

    pub fn expired(message: &str) -> Self {
        Self::status(410, "Expired", message, &Value::Null)
    }

    pub fn internal(problem: &str) -> Self {
        let message = format!("Internal error occurred: {problem}");
        Self::status(500, "InternalError", &message, &json!({ "causes": [{ "message": problem }] }))
    }

    /// etcd did not answer in time. It is unknown whether the write took effect.
    pub fn etcd_timeout() -> Self {
        Self::status(500, "", "etcdserver: request timed out", &Value::Null)
    }

    /// The API server's own time limit has passed. It is unknown whether the write took effect.
    pub fn timeout() -> Self {
        let message =
            "Timeout: request did not complete within requested timeout - context deadline exceeded";
        Self::status(504, "Timeout", message, &json!({}))
    }

    pub fn unavailable() -> Self {
        let message = "the server is currently unable to handle the request";
        Self::status(503, "ServiceUnavailable", message, &Value::Null)
    }

    /// Priority and fairness refuse the request.
    pub fn too_many_requests() -> Self {
        Self { code: 429, body: Body::Text("Too many requests, please try again later.\n") }
    }

    /// A webhook denies the request with this status.
    pub fn denied(webhook: &str, code: u16, problem: &str) -> Self {
        let code = code.max(400);
        let problem =
            if problem.is_empty() { " without explanation".to_owned() } else { format!(": {problem}") };
        let message = format!("admission webhook {webhook:?} denied the request{problem}");
        Self::status(code, "", &message, &Value::Null)
    }

    /// A webhook cannot be called.
    pub fn uncallable(webhook: &str, problem: &str) -> Self {
        Self::internal(&format!("failed calling webhook {webhook:?}: failed to call webhook: {problem}"))
    }

    /// An admission policy denies the request: as forbidden, or as invalid.
    pub fn denied_by_policy(kind: Kind, name: &str, policy: &str, as_invalid: bool, problem: &str) -> Self {
        let problem =
            format!("ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {problem}");
        let mut failure = Self::forbidden(kind, name, &problem);
        if let Body::Status(status) = &mut failure.body {
            status["details"]["causes"] = json!([{ "message": problem }]);
            if as_invalid {
                failure.code = 422;
                status["code"] = 422.into();
                status["reason"] = "Invalid".into();
            }
        }
        failure
    }

    /// The simulated server does not serve this. No real server answers so.
    pub fn unsupported(request: &str) -> Self {
        let message = format!("the simulated API server does not implement {request}");
        Self::status(501, "NotImplemented", &message, &Value::Null)
    }

    pub fn message(&self) -> &str {
        match &self.body {
            Body::Status(status) => status["message"].as_str().unwrap_or_default(),
            Body::Text(text) => text,
        }
    }

    pub fn text(&self) -> String {
        match &self.body {
            Body::Status(status) => status.to_string(),
            Body::Text(text) => (*text).to_owned(),
        }
    }
}
