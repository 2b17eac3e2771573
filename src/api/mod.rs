//! The `LeaderGroup` API: what a user writes, what the operator answers, and the names both use.
//!
//! This room owns the types of the custom resource, their validation, the conditions and their reasons, and the
//! labels and annotations on pods. It knows nothing of any other room.

mod conditions;
mod duration;
mod labels;
mod reading;
mod rules;
mod schema;
mod selector;
mod spec;
mod status;
mod syntax;
mod validation;

pub use conditions::{ConditionType, Reason};
pub use duration::{HumanDuration, ParseDurationError};
pub use labels::{
    ACTIVE_VALUE, FINALIZER, ParseStampError, ROLE_LABEL, Role, STAMP_ANNOTATION, STANDBY_VALUE, Stamp,
};
pub use reading::{Sighting, Unreadable};
pub use selector::{LabelSelectorOperator, LabelSelectorRequirement, PodSelector};
pub use spec::{
    HealthSpec, HttpGetProbe, LeaderGroup, LeaderGroupSpec, LockSpec, OnDelete, ProbePort, ProbeScheme,
    ProbeSpec, RoutingSpec, TcpSocketProbe,
};
pub use status::{ActivePod, Declaration, HistoryEntry, LeaderGroupStatus, PodRef};
pub use validation::InvalidSpec;
