//! The calls that effects make to the API server, in their order, and the outcome for given answers. Two tests go
//! through these cases: one with the operator's executor, and one with the model of it that the simulation runs. A
//! change of one of them alone fails.

use super::{Declaration, Effect, PodAt, PodRef};

/// A call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    ReadPod,
    WritePod,
    ReadGroup,
    Declare,
}

/// An answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The pod or the group is gone.
    Gone,
    /// The pod, in this version.
    Pod { version: u64 },
    /// It is active.
    Active,
    /// It is a standby with the stamp of the term that is carried out, or of a later one.
    Stamped { later: bool },
    /// The group, with the declaration of this term.
    Group { token: i64 },
    /// The write took effect.
    Done,
    /// The object has another version.
    Conflict,
    /// A precondition does not hold, or a policy refuses the change: the status does not say which.
    Invalid,
    /// A policy refuses the change.
    Refused,
}

/// An effect for one pod, under the term [`TOKEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Verify,
    /// Instead of the term before.
    Declare,
    /// `known`: the watch has shown [`VERSION`] of the pod.
    Strip {
        known: bool,
    },
    Stamp {
        known: bool,
    },
    /// In [`VERSION`].
    Promote,
    /// By a replica that owns nothing: what it reads before the row.
    Recheck,
}

impl Doing {
    /// The effect itself.
    pub fn effect(self) -> Effect {
        let pods = |known: bool| vec![PodAt { pod: web_0(), version: known.then(|| VERSION.to_string()) }];
        let declaration = |token| Declaration { token, ..Declaration::default() };
        match self {
            Self::Verify => Effect::Verify(web_0()),
            Self::Declare => Effect::Declare { previous: declaration(TOKEN - 1), next: declaration(TOKEN) },
            Self::Strip { known } => Effect::Strip { token: TOKEN, pods: pods(known) },
            Self::Stamp { known } => Effect::Stamp { token: TOKEN, pods: pods(known) },
            Self::Promote => Effect::Promote { token: TOKEN, pod: web_0(), version: VERSION.to_string() },
            Self::Recheck => Effect::Recheck(web_0()),
        }
    }
}

/// The pod of all cases.
pub fn web_0() -> PodRef {
    PodRef { name: "web-0".to_owned(), uid: "p1".to_owned() }
}

/// The term that is carried out.
pub const TOKEN: i64 = 5;
/// The version of the pod that the effect knows.
pub const VERSION: u64 = 7;

/// A case: the effect, the calls with their answers, and how the outcome begins when it is printed.
pub type Case = (Doing, &'static [(Asked, Answered)], &'static str);

#[allow(clippy::enum_glob_use, reason = "each is used by its name below")]
use {Answered::*, Asked::*};

const POD: (Asked, Answered) = (ReadPod, Pod { version: VERSION });
const OTHER: (Asked, Answered) = (ReadPod, Pod { version: VERSION + 1 });
const NO_POD: (Asked, Answered) = (ReadPod, Gone);
const WRITTEN: (Asked, Answered) = (WritePod, Done);
const CONFLICT: (Asked, Answered) = (WritePod, Conflict);
const INVALID: (Asked, Answered) = (WritePod, Invalid);
const REFUSED: (Asked, Answered) = (WritePod, Refused);
const LATER_STAMP: (Asked, Answered) = (ReadPod, Stamped { later: true });
const OWN_STAMP: (Asked, Answered) = (ReadPod, Stamped { later: false });
const ACTIVE: (Asked, Answered) = (ReadPod, Active);

const fn group(token: i64) -> (Asked, Answered) {
    (ReadGroup, Group { token })
}

pub const CASES: &[Case] = &[
    (Doing::Verify, &[POD], "Verified(None)"),
    (Doing::Verify, &[NO_POD], "Verified(Some(PodDeleted))"),
    (Doing::Declare, &[(Declare, Done)], "Declared"),
    (Doing::Declare, &[(Declare, Invalid), group(TOKEN)], "Declared"),
    (Doing::Declare, &[(Declare, Invalid), group(TOKEN - 1)], "Rejected(Outdated)"),
    (Doing::Declare, &[(Declare, Invalid), group(TOKEN + 1)], "Rejected(Outdated)"),
    (Doing::Declare, &[(Declare, Invalid), (ReadGroup, Gone)], "Rejected(GroupGone)"),
    (Doing::Strip { known: true }, &[WRITTEN], "Stripped"),
    (Doing::Strip { known: false }, &[POD, WRITTEN], "Stripped"),
    (Doing::Strip { known: false }, &[ACTIVE, WRITTEN], "Stripped"),
    (Doing::Strip { known: true }, &[CONFLICT, OTHER, WRITTEN], "Stripped"),
    (Doing::Strip { known: true }, &[CONFLICT, OTHER, CONFLICT, OTHER, WRITTEN], "Stripped"),
    (Doing::Strip { known: true }, &[CONFLICT, NO_POD], "Stripped"),
    (Doing::Strip { known: true }, &[CONFLICT, OWN_STAMP], "Stripped"),
    (Doing::Strip { known: true }, &[CONFLICT, LATER_STAMP, group(TOKEN + 1)], "Rejected(Outdated)"),
    (Doing::Strip { known: true }, &[CONFLICT, LATER_STAMP, group(TOKEN - 1)], "Rejected(Outdated)"),
    (Doing::Strip { known: true }, &[CONFLICT, LATER_STAMP, (ReadGroup, Gone)], "Rejected(Outdated)"),
    (Doing::Strip { known: true }, &[CONFLICT, LATER_STAMP, group(TOKEN), WRITTEN], "Stripped"),
    (Doing::Strip { known: true }, &[INVALID, POD], "Failed"),
    (Doing::Strip { known: true }, &[INVALID, OTHER, OTHER, WRITTEN], "Stripped"),
    (Doing::Strip { known: true }, &[REFUSED], "Failed"),
    (Doing::Stamp { known: true }, &[WRITTEN], "Stamped([])"),
    (Doing::Stamp { known: false }, &[POD, WRITTEN], "Stamped([])"),
    (Doing::Stamp { known: false }, &[ACTIVE], "Stamped([])"),
    (Doing::Stamp { known: true }, &[CONFLICT, LATER_STAMP, group(TOKEN + 1)], "Stamped([])"),
    (Doing::Stamp { known: true }, &[CONFLICT, LATER_STAMP, group(TOKEN - 1), WRITTEN], "Stamped([])"),
    (Doing::Stamp { known: true }, &[REFUSED], "Stamped([(PodRef"),
    (Doing::Stamp { known: true }, &[INVALID, POD], "Stamped([(PodRef"),
    (Doing::Promote, &[WRITTEN], "Promoted"),
    (Doing::Promote, &[CONFLICT], "Conflict"),
    (Doing::Promote, &[INVALID, OTHER], "Conflict"),
    (Doing::Promote, &[INVALID, NO_POD], "Conflict"),
    (Doing::Promote, &[INVALID, POD], "Refused("),
    (Doing::Promote, &[REFUSED], "Refused("),
    (Doing::Recheck, &[POD, group(TOKEN)], "Rejected(NotOwner)"),
];
