//! Controllers, which decide which of *others* works: claims, grants, tombstones, hand-overs of rows.
//!
//! Uses `session` and `db`. Programs do not need it.

pub(crate) mod claim;
pub(crate) mod grant;
pub(crate) mod reassign;
pub(crate) mod terms;
