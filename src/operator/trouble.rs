//! Why a call for a group failed, in a form that can be reported to the user.

use crate::{election::Outcome, routing::RoutingError};

/// Why a call failed, and on which side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum Trouble {
    /// The database.
    Lock(String),
    /// The API server refused a write.
    Refused(String),
    /// The API server did not answer, or failed.
    Unreachable(String),
}

impl From<&RoutingError> for Trouble {
    fn from(error: &RoutingError) -> Self {
        if error.is_refusal() || matches!(error, RoutingError::Contended { .. }) {
            Self::Refused(error.to_string())
        } else {
            Self::Unreachable(error.to_string())
        }
    }
}

impl Trouble {
    /// Whether an outcome shows that this trouble is over. A successful read does not prove that a write would succeed.
    pub(in crate::operator) fn is_over(&self, outcome: &Outcome) -> bool {
        match self {
            Self::Lock(_) => matches!(
                outcome,
                Outcome::Read { .. }
                    | Outcome::Rechecked { .. }
                    | Outcome::Granted { .. }
                    | Outcome::Confirmed
                    | Outcome::Vacated
                    | Outcome::Tombstoned
            ),
            Self::Refused(_) | Self::Unreachable(_) => matches!(
                outcome,
                Outcome::Declared | Outcome::Promoted | Outcome::Cleared | Outcome::Unfinalized
            ),
        }
    }
}
