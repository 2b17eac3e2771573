//! Errors of calls to the API server.

use std::{error::Error as _, time::Duration};

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

/// The API server's own message where there is one, otherwise the error with its causes.
pub(crate) fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} (HTTP {})", status.message, status.code);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some errors repeat their cause.
        let inner = error.to_string();
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
}

impl RoutingError {
    pub(super) fn from_api(what: &'static str, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) => Self::Refused { what, code: status.code, message: status.message },
            source => Self::Unreachable { what, source: Box::new(source) },
        }
    }

    /// The HTTP status, if the API server returned one.
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
        matches!(self.code(), Some(400..=403 | 405..=408 | 410..=428))
    }
}
