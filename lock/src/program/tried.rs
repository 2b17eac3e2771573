//! What a try gives: the key, or why it was not acquired.

use crate::{Guard, Reason};

/// The outcome of a [try](crate::Client::try_lock_or_why).
#[derive(Debug)]
#[must_use = "dropping the guard releases the key"]
pub enum Tried<G = Guard> {
    /// The key is held.
    Held(G),
    /// It is not, for this reason.
    NotHeld(Reason),
}

impl<G> Tried<G> {
    /// The guard, if the key is held.
    pub fn held(self) -> Option<G> {
        match self {
            Self::Held(guard) => Some(guard),
            Self::NotHeld(_) => None,
        }
    }
}

impl<G> From<Tried<G>> for Result<G, Reason> {
    fn from(tried: Tried<G>) -> Self {
        match tried {
            Tried::Held(guard) => Ok(guard),
            Tried::NotHeld(reason) => Err(reason),
        }
    }
}
