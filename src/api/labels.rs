//! The marks that the operator leaves on pods and on the group: label, stamp and finalizer.

use std::{fmt, str::FromStr};

/// The default key of the label that a Service selects by.
pub const ROLE_LABEL: &str = "leadergroup.dev/role";
/// The default value of the role label on the one pod that is routed to.
pub const ACTIVE_VALUE: &str = "active";
/// The default value of the role label on every other pod of the group.
pub const STANDBY_VALUE: &str = "standby";
/// The annotation that carries a [`Stamp`].
pub const STAMP_ANNOTATION: &str = "leadergroup.dev/stamp";
/// The annotation that carries a [`FencingToken`]. Only the active pod has it.
pub const FENCING_ANNOTATION: &str = "leadergroup.dev/fencing-token";
/// The annotation by which a `ReplicaSet` chooses the pods to delete when it is scaled down: those with the lowest
/// value first, zero where there is none. In a group it belongs to the operator.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The deletion cost of the active pod, the largest that Kubernetes accepts. All other pods of the group have none.
pub const ACTIVE_DELETION_COST: i32 = i32::MAX;
/// The annotation of a `LeaderGroup` that requests a planned switchover. Its value names the request: each new value is
/// one request.
pub const SWITCHOVER_ANNOTATION: &str = "leadergroup.dev/switchover";
/// The annotation with the name of the pod that a requested switchover makes active.
pub const SWITCHOVER_TO_ANNOTATION: &str = "leadergroup.dev/switchover-to";
/// The value of the role label that no pod ever has. A Service that selects it has no endpoints by Kubernetes.
pub const NO_ROLE: &str = "managed";
/// The label of a Service that names the `LeaderGroup` whose active pod it routes to. The operator writes the endpoints
/// of such Services, or looks at them. The Service's EndpointSlices carry it, too: Kubernetes copies all labels.
pub const GROUP_LABEL: &str = "leadergroup.dev/group";
/// The value of the label `endpointslice.kubernetes.io/managed-by` on the EndpointSlices that the operator writes.
pub const SLICE_MANAGER: &str = "leadergroup.dev";
/// Stamps above this are ignored. JSON readers distinguish integers only up to 2^53, twice this value, and the tokens
/// after a stamp must stay below that.
pub const LARGEST_TOKEN: i64 = 1 << 52;
/// The name under which the API server records what the operator has written (`metadata.managedFields`).
pub const FIELD_MANAGER: &str = "leadergroup";
/// Keeps a deleted group around until its pods' labels are cleared.
pub const FINALIZER: &str = "leadergroup.dev/routing";

/// The role that a pod's label gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Routed to.
    Active,
    /// Not routed to.
    Standby,
    /// No role label, or a value that means neither.
    None,
}

/// Which group, and which decision of it, last wrote a pod's role.
///
/// Every role written carries one, so that a pod itself tells which term it was last part of: a decision with a
/// smaller token is out of date and stops there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The UID of the `LeaderGroup`.
    pub group: String,
    /// The fencing token of the term that wrote the role.
    pub token: i64,
}

/// What the active pod shows to a store that refuses the writes of former holders: the lock's key and the term's token.
///
/// It is written together with the active label and removed together with it. A [`Stamp`] is not fit for this: the pod
/// that loses the role gets the stamp of the next term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencingToken<'a> {
    /// The key of the lock. It may contain slashes.
    pub key: &'a str,
    /// The fencing token of the term.
    pub token: i64,
}

impl<'a> FencingToken<'a> {
    /// Reads `<key>/<token>`.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (key, token) = text.rsplit_once('/')?;
        Some(Self { key, token: token.parse().ok()? }).filter(|it| !it.key.is_empty() && it.token > 0)
    }
}

impl fmt::Display for FencingToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.token)
    }
}

/// The annotation is not of the form `<group UID>/<token>`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a stamp; a stamp reads <group UID>/<token>")]
pub struct ParseStampError(String);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.token)
    }
}

impl FromStr for Stamp {
    type Err = ParseStampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('/')
            .and_then(|(group, token)| Some(Self { group: group.to_owned(), token: token.parse().ok()? }))
            .filter(|stamp| !stamp.group.is_empty() && stamp.token >= 0)
            .ok_or_else(|| ParseStampError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_the_round_trip_and_refuses_the_rest() {
        let stamp = Stamp { group: "6f1c".into(), token: 42 };
        assert_eq!(stamp.to_string().parse(), Ok(stamp));
        for bad in ["", "6f1c", "/1", "6f1c/", "6f1c/x", "6f1c/-1"] {
            assert!(bad.parse::<Stamp>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fencing_token_survives_the_round_trip_although_its_key_contains_slashes() {
        let fencing = FencingToken { key: "c1/shop/web", token: 42 };
        assert_eq!(FencingToken::parse(&fencing.to_string()), Some(fencing));
        for bad in ["", "web", "/1", "web/", "web/x", "web/0", "web/-1"] {
            assert_eq!(FencingToken::parse(bad), None, "{bad}");
        }
    }
}
