//! What can go wrong between the operator and the API server.

use std::time::Duration;

/// A call to the API server that did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// No answer in time. Whether the write took effect is unknown; the next reading tells.
    #[error("could not {what}: the API server did not answer within {after:?}")]
    Timeout {
        /// What was being done.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The API server refused, with a status.
    #[error("could not {what}: {message} (HTTP {code}){}", remedy(*code))]
    Refused {
        /// What was being done.
        what: &'static str,
        /// The HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The API server could not be reached or understood.
    #[error("could not {what}: {source}")]
    Unreachable {
        /// What was being done.
        what: &'static str,
        /// The client's words.
        source: Box<kube::Error>,
    },
    /// The group is stored in a form that this version of the program does not understand.
    #[error("could not {what}: {problem}")]
    Unreadable {
        /// What was being done.
        what: &'static str,
        /// Which field, why, and what to do.
        problem: String,
    },
    /// The object kept changing under our hands.
    #[error("could not {what}: it changed at every attempt; another controller may be fighting over it")]
    Contended {
        /// What was being done.
        what: &'static str,
    },
}

fn remedy(code: u16) -> &'static str {
    match code {
        401 => "; check the operator's service account",
        403 => {
            "; give the operator's service account this permission (the chart's roles do), or look for an admission policy that forbids it"
        }
        _ => "",
    }
}

impl RoutingError {
    pub(super) fn from_api(what: &'static str, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) => Self::Refused { what, code: status.code, message: status.message },
            source => Self::Unreachable { what, source: Box::new(source) },
        }
    }

    /// The HTTP status, when the API server answered with one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the API server understood and refused it, as opposed to being out of reach: something to report.
    pub fn is_refusal(&self) -> bool {
        matches!(self.code(), Some(400..=403 | 405..=408 | 410..=428))
    }
}
