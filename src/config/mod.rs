//! The settings of a replica: where they are read from, how they are checked, and where each value came from.
//!
//! Sources, weakest first: the default, the settings file, the environment, the flags. An unknown or invalid setting is
//! refused before anything starts, and all errors are reported at once, each with its place and its remedy. A value
//! that may contain a password never appears in a message.
//!
//! This room may use `api` for durations, `telemetry` for the log format, and the lock crate for the database's
//! configuration. It starts nothing.

mod args;
mod check;
mod error;
mod file;
mod load;
mod settings;
mod table;
mod value;
mod words;

pub use args::SettingsArgs;
pub use error::{Origin, SettingsError, SettingsErrors};
pub use load::Sources;
pub use settings::{LogSettings, Settings};
pub use words::in_settings;

pub use crate::telemetry::LogFormat;
