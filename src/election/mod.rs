//! The pure core: it decides which pod is active, and which step comes next.
//!
//! [`Group::step`] takes one event and the current time, and returns effects. It performs no I/O, reads no clock and
//! uses no random numbers, so that tests can try every order of events. It depends only on the API types: evidence
//! arrives as a [`Verdict`](crate::api::Verdict), the lock's row as a [`Row`], and time as a `Duration` on a monotonic
//! clock.
//!
//! A change of holder has five steps. Each is an effect whose outcome leads to the next: *grant* (the lock's row
//! names the new holder and its token), *declare* (the group's status announces the term, by compare-and-set),
//! *strip* (every pod that may still be active is labelled standby, and all these writes succeeded), *promote* (the
//! holder is labelled active) and *confirm*. If the previous term was not confirmed, its holder is fenced between the
//! first two steps. If agents run programs in the pods, a planned change begins with the end of the former holder's
//! program; and between *strip* and *promote* the new program is allowed to start, once the former one is over
//! (`program.rs`). Programs without agents are told their roles there (`hook.rs`). After any failure the core reads
//! the row and the declaration again and decides from there (`resume.rs`). A takeover from another replica follows the
//! same path.
//!
//! The [`Phase`] says what a group waits for, and has the data that has a meaning only there. These are the phases, and
//! all ways from one to another; a test compares this table with the code. Most phases end with the [`Outcome`] of
//! their effect. The others have a *turn* at each step, because of an event or because time has passed.
//!
//! | phase | waits for | ends with |
//! |---|---|---|
//! | `Observing` | the ownership: another replica has it, or none | `Owned` → `Reading`, `Stable`; `Buried`, `Turn` → `Retiring` |
//! | `Reading` | the row and the declaration | `Read` → `Stable`, `Resuming`, `Regaining`, `Granting`, `BackingOff`, `Observing`, `Retiring` |
//! | `BackingOff` | time to pass after a failure | `Turn` → `Reading`, `Retiring` |
//! | `Resuming` | evidence about the holder of an unfinished term | `Turn` → `Confirming`, `Stripping`, `Fencing`, `Declaring`, `Granting`, `Trying`, `Verifying`, `Retiring` |
//! | `Regaining` | a read of the declared holder, as the row has lost commits | `Verified` → `Granting`, `Stable`, `BackingOff` |
//! | `Stable` | a reason to do something | `Turn` → `Granting`, `Trying`, `Stopping`, `Verifying`, `Relabelling`, `Repairing`, `Reading`, `Retiring` |
//! | `Verifying` | a read of the holder, to confirm that it has failed | `Verified` → `Granting`, `Trying`, `Vacating`, `Stable`, `Resuming`, `BackingOff` |
//! | `Relabelling` | a read of the holder, which has lost its label | `Verified` → `Granting`, `Trying`, `Stable`, `BackingOff` |
//! | `Trying` | a dry run of step 4 | `Accepted` → `Granting`, `Stable`, `Resuming`; `Refused` → `Granting`, `Stable`, `Resuming`, `BackingOff`; `HolderRefused` → `Stable`; `Failed`, `Unknown`, `Outdated` → `Granting`, `Stable`, `BackingOff` |
//! | `Stopping` | the end of the former holder's program, before a planned change | `Declared` → `Granting`, `Stable`; `Turn` → `Granting`, `Stable`, `Reading` |
//! | `Granting` | step 1 | `Granted` → `Fencing`, `Declaring`, `Trying`, `Resuming`; `Turn` → `Retiring` |
//! | `Fencing` | the writes that end the declared term | `Stamped` → `Declaring`, `Granting`, `BackingOff`; `Stripped`, `Rechecked` → `Declaring`, `BackingOff`; `Promoted` → `Declaring` |
//! | `Declaring` | step 2 | `Declared` → `Stripping`, `Granting`, `Trying`, `Resuming` |
//! | `Stripping` | step 3 | `Stripped` → `Clearing`, `Telling`, `Promoting`, `Rechecking`, `Granting`, `Trying`, `Resuming` |
//! | `Clearing` | the end of the former program, so that the next one may start | `Declared` → `Telling`, `Promoting`, `Rechecking`, `Granting`, `Trying`, `Resuming`; `Turn` → `Granting`, `Trying`, `Resuming`, `Reading` |
//! | `Telling` | the answers of pods that are told their role, before step 4 | `Told` → `Promoting`, `Rechecking`, `Granting`, `Trying`, `Resuming`, `BackingOff` |
//! | `Promoting` | step 4 | `Promoted` → `Confirming`; `Conflict` → `Rechecking`, `BackingOff`; `Refused` → `Granting`, `Trying`, `Resuming`, `BackingOff` |
//! | `Rechecking` | a read of the new holder, the declaration and the row before step 4 | `Rechecked` → `Promoting`, `Granting`, `Trying`, `Resuming`, `BackingOff` |
//! | `Confirming` | step 5 | `Confirmed` → `Stable`; `Turn` → `Retiring` |
//! | `Vacating` | the release of the lock | `Vacated` → `Stable`; `Turn` → `Retiring` |
//! | `Repairing` | the strip of pods that others have labelled active | `Stripped` → `Stable`, `BackingOff` |
//! | `Retiring` | the steps of a deletion, one after the other | `Unfinalized`, `GroupGone` → `Retired` |
//! | `Retired` | nothing | |
//!
//! An outcome that the table does not name leads from the phase to `BackingOff`, because reading again is always safe;
//! or the effect is repeated in the same phase, as each step of a deletion is. Two outcomes mean the same in nearly
//! every phase: `NotOwner` leads to `Observing`, and `GroupGone` to `Retiring`. From every phase, [`Event::Disowned`]
//! leads to `Observing`.

mod candidate;
mod change;
mod demoted;
mod evaluate;
mod event;
mod fence;
mod former;
mod group;
mod hook;
mod knowledge;
mod lapses;
mod outcome;
mod pacing;
mod phase;
mod plan;
mod program;
mod refusal;
mod request;
mod resume;
mod retire;
mod rollout;
mod stamp;
mod step;
mod switchover;
#[cfg(test)]
mod tests;
mod told;
mod unused;
mod world;

pub use event::{Effect, Event, Finished, GrantRequest, Outcome, Rejection, Ticket};
pub use group::Group;
pub(crate) use pacing::{Limit, Rate, growing};
pub use phase::{Attempt, Change, Phase, Removal, Retirement};
pub use plan::{Plan, Rest};
pub use refusal::{Refusal, Refused};
pub use request::SwitchoverRefusal;
pub use world::{
    AgentPolicy, HookPolicy, Member, PastChange, Policy, Row, SwitchoverRequest, Workload, World,
};
