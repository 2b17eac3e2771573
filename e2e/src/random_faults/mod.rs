//! The part of the scenario `random_faults` without a cluster: the kinds of faults, what each concerns, and which
//! pods may be replaced, and which failovers can be asked for while they follow each other.

mod due;
mod excused;
mod kind;

use std::time::Duration;

pub use due::{Due, Struck, proved};
pub use kind::{Concerns, Kind, Plan, Replica, Target, Targets};

/// In a run that lasts this long each kind of fault takes place, and failovers have deadlines.
pub const LONG: Duration = Duration::from_hours(1);
