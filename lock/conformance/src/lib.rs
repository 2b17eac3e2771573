//! Tells the author of a client of the lock, in any language, which rules of the SQL protocol the client keeps.
//!
//! [`conform`] starts a PostgreSQL of its own, runs several processes of the client, and drives them through the lines
//! of `docs/conformance.md`. It injects real faults, keeps a record of all calls in the database, and names each rule
//! that was broken by its number, with one line of what was seen.
//!
//! The throwaway server and the proxy also serve the tests of the lock.

mod audit;
mod checks;
pub mod clock;
mod history;
pub mod postgres;
mod process;
pub mod proxy;
mod random;
mod report;
mod rules;
mod run;
mod scenarios;
mod settings;
mod stage;
mod writes;

pub use report::Report;
pub use rules::{Rule, Violation};
pub use run::{Bench, conform};
pub use scenarios::names;
pub use settings::Settings;
