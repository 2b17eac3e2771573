//! What the commands read from a cluster. Nothing here writes.

mod claimant;
mod explain;

pub use claimant::{Claimant, Known, claimant};
pub use explain::{ExplainError, ExplainedPod, Explanation, explain, hears_no_pod};
