//! The calls to the lock that are not a step of an election: the claims of groups and their keys, the comparison of
//! rows, and the rows of groups that are gone.

pub(super) mod claim;
pub(super) mod garbage;
pub(super) mod keys;
pub(super) mod resync;
