//! The `LeaderGroup` API: the spec that a user writes, the status that the operator writes, and the names that both
//! use.
//!
//! This module owns the types of the custom resource, their validation, the conditions and their reasons, and the
//! labels and annotations on pods. It uses no other module of this crate. What agents read of the declaration is
//! defined in their crate.

mod agent;
mod causes;
mod conditions;
mod duration;
mod hooks;
mod labels;
mod reading;
mod rules;
mod schema;
mod selector;
mod spec;
mod status;
mod syntax;
mod validation;
mod verdict;

pub use agent::{
    AgentSpec, Boot, Former, FormerRun, LONGEST_LEASE, Promise, Promised, Run, STOP_TIMEOUT_SECONDS,
    terminated_boot,
};
pub use causes::with_causes;
pub use conditions::{Cause, ConditionType, Reason};
pub use duration::{HumanDuration, ParseDurationError};
pub use hooks::{HookSpec, HooksSpec, OnHookFailure, RoleChange};
pub use labels::{
    ACTIVE_DELETION_COST, ACTIVE_VALUE, DELETION_COST_ANNOTATION, FENCING_ANNOTATION, FIELD_MANAGER,
    FINALIZER, FencingToken, GROUP_LABEL, LARGEST_TOKEN, NO_ROLE, ParseStampError, ROLE_LABEL, Role,
    SLICE_MANAGER, STAMP_ANNOTATION, STANDBY_VALUE, SWITCHOVER_ANNOTATION, SWITCHOVER_TO_ANNOTATION, Stamp,
};
pub use reading::{Sighting, Unreadable};
pub use selector::{LabelSelectorOperator, LabelSelectorRequirement, PodSelector};
pub use spec::{
    DeletionPolicy, ElectionSpec, Endpoints, Failback, GrpcProbe, HealthSpec, HoldConnection, HttpGetProbe,
    LeaderGroup, LeaderGroupSpec, LockSpec, OnDemote, OneProbe, PlannedLoss, Priority, ProbePort,
    ProbeScheme, ProbeSpec, RoutingSpec, TcpSocketProbe,
};
pub use status::{
    ActivePod, Declaration, HistoryEntry, LeaderGroupStatus, PodAt, PodRef, SwitchoverResult,
    SwitchoverStatus,
};
pub use validation::InvalidSpec;
pub use verdict::Verdict;
