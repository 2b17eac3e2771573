//! Sessions: heartbeats, which sessions are dead, what a session holds after an interruption, and notifications.
//!
//! A session is one running process, whether a program or a controller. Uses `db`.

pub(crate) mod failure_detector;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod listen;
pub(crate) mod lookout;
pub(crate) mod outlook;
pub(crate) mod process;
pub(crate) mod quarantine;
pub(crate) mod reconcile;
pub(crate) mod row;
pub(crate) mod settings;
pub(crate) mod turns;
