//! Errors of calls to the API server.

use std::time::Duration;

use crate::api::with_causes;

/// A failed call to the API server.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// No answer in time. It is unknown whether a write took effect; the next read shows it.
    #[error("could not {what}: the API server did not answer within {after:?}")]
    Timeout {
        /// The purpose of the call.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The API server refused the call with a status.
    #[error("could not {what}: {message} (HTTP {code}){}", remedy(*code))]
    Refused {
        /// The purpose of the call.
        what: &'static str,
        /// The HTTP status.
        code: u16,
        /// The API server's message.
        message: String,
    },
    /// An admission webhook denied the call, or the API server could not call it or apply its patch. Nothing was
    /// written.
    #[error("could not {what}: {message} (HTTP {code})")]
    Webhook {
        /// The purpose of the call.
        what: &'static str,
        /// The HTTP status, which the webhook may have chosen.
        code: u16,
        /// The API server's message. It names the webhook, unless its patch could not be applied.
        message: String,
    },
    /// The API server could not be reached, or its answer could not be decoded.
    #[error("could not {what}: {source}")]
    Unreachable {
        /// The purpose of the call.
        what: &'static str,
        /// The error of the client.
        source: Box<kube::Error>,
    },
    /// The group is stored in a form that this version of the operator cannot decode.
    #[error("could not {what}: {problem}")]
    Unreadable {
        /// The purpose of the call.
        what: &'static str,
        /// Which field, why, and what to do.
        problem: String,
    },
    /// The object changed during every attempt.
    #[error("could not {what}: it changed during every attempt; another controller may be changing it, too")]
    Contended {
        /// The purpose of the call.
        what: &'static str,
    },
}

fn remedy(code: u16) -> &'static str {
    match code {
        401 => "; check the operator's service account",
        403 => {
            "; give the operator's service account this permission (the chart's roles do), or check the admission policies"
        }
        _ => "",
    }
}

/// Whether the API server answers so for an admission webhook that denies a call, that it cannot call, or that returns
/// a patch that does not apply. Webhooks are asked before anything is stored, so nothing was. The texts are those of
/// `ToStatusErr` and `ErrCallingWebhook` in `k8s.io/apiserver`, and of `json-patch`. If a patch of the operator does
/// not apply, the answer has another status.
fn is_of_webhook(code: u16, message: &str) -> bool {
    let denies = |rest: &str| rest.contains("\" denied the request");
    let fails = |rest: &str| {
        rest.starts_with("failed calling webhook \"") || rest.contains(" operation does not apply: ")
    };
    message.strip_prefix("admission webhook \"").is_some_and(denies)
        || (code == 500 && message.strip_prefix("Internal error occurred: ").is_some_and(fails))
}

/// The API server's own message where there is one, otherwise the error with its causes.
pub(crate) fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} (HTTP {})", status.message, status.code);
    }
    with_causes(error)
}

impl RoutingError {
    pub(super) fn from_api(what: &'static str, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) if is_of_webhook(status.code, &status.message) => {
                Self::Webhook { what, code: status.code, message: status.message }
            }
            kube::Error::Api(status) => Self::Refused { what, code: status.code, message: status.message },
            source => Self::Unreachable { what, source: Box::new(source) },
        }
    }

    /// The HTTP status, if the API server returned one of its own. That of a webhook says nothing about the object: it
    /// may be a conflict, or that something was not found.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the API server would refuse the same call again, because of its object: an admission policy, a webhook,
    /// a quota or a missing right refuses it.
    pub fn is_definite(&self) -> bool {
        self.is_refusal() && !matches!(self.code(), Some(401 | 408))
    }

    /// Whether the API server refused the call, as opposed to being unreachable. Refusals are reported to the user.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Webhook { .. }) || matches!(self.code(), Some(400..=403 | 405..=408 | 410..=428))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn answer(code: u16, message: &str) -> RoutingError {
        let status = Status::failure(message, "").with_code(code).boxed();
        RoutingError::from_api("write a pod's role", kube::Error::Api(status))
    }

    #[test]
    fn an_answer_that_names_an_admission_webhook_is_a_refusal_whatever_its_status() {
        let failed = "Internal error occurred: failed calling webhook \"a.example.com\": failed to call webhook: Post \
                      \"https://127.0.0.1:1/?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused";
        let denied = "admission webhook \"a.example.com\" denied the request";
        let mut answers = vec![answer(500, failed)];
        for code in [400, 401, 403, 404, 408, 409, 422, 429, 500, 503, 504] {
            answers.push(answer(code, &format!("{denied}: not now")));
            answers.push(answer(code, &format!("{denied} without explanation")));
        }
        for error in answers {
            assert!(error.is_refusal() && error.is_definite() && error.code().is_none(), "{error}");
            assert!(error.to_string().contains("webhook \"a.example.com\""), "{error}");
        }
    }

    #[test]
    fn a_patch_of_a_webhook_that_does_not_apply_is_a_refusal() {
        for message in [
            "add operation does not apply: doc is missing path: \"/spec/a/b\": missing value",
            "replace operation does not apply: doc is missing key: /spec/a: missing value",
        ] {
            let error = answer(500, &format!("Internal error occurred: {message}"));
            assert!(error.is_refusal() && error.is_definite() && error.code().is_none(), "{error}");
            let own = answer(422, message);
            assert!(matches!(own, RoutingError::Refused { code: 422, .. }), "{own}");
        }
    }

    #[test]
    fn a_write_that_may_have_been_stored_is_not_refused() {
        for (code, message) in [
            (500, "Internal error occurred: etcdserver: request timed out"),
            // The API server calls this webhook for the answer as well, when the object has been stored.
            (500, "conversion webhook for leadergroup.dev/v1, Kind=LeaderGroup failed: connection refused"),
            (500, "Internal error occurred: resource quota evaluation timed out"),
            (504, "Timeout: request did not complete within requested timeout - context deadline exceeded"),
            (504, "Internal error occurred: failed calling webhook \"a.example.com\": timeout"),
            (503, "the server is currently unable to handle the request"),
            (429, "too many requests"),
        ] {
            let error = answer(code, message);
            assert!(!error.is_refusal() && !error.is_definite() && error.code() == Some(code), "{error}");
        }
    }
}
