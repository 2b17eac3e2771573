//! Programs that hold keys themselves: the client, its guards, the queue, campaigns.
//!
//! Uses `session` and `db`.

pub(crate) mod acquire;
pub(crate) mod applicant;
pub mod blocking;
pub(crate) mod campaign;
pub(crate) mod client;
pub(crate) mod guard;
pub(crate) mod held_term;
pub(crate) mod holding;
pub(crate) mod publish;
pub(crate) mod reason;
pub(crate) mod trace;
pub(crate) mod tried;
pub(crate) mod unfinished;
pub(crate) mod wait;
pub(crate) mod watcher;
