//! Connections to the database, the statements, the schema, and what every program may ask.
//!
//! A statement that is cancelled, times out or fails gives its connection up, so that a late answer is never taken for
//! the answer to another statement. Nothing here knows of sessions that live or die.

pub(crate) mod batch;
pub(crate) mod config;
pub(crate) mod database;
pub(crate) mod fence;
#[cfg(feature = "prometheus-client")]
pub(crate) mod histograms;
pub(crate) mod link;
pub(crate) mod migrations;
pub(crate) mod observe;
pub(crate) mod pool;
pub(crate) mod pooler;
pub(crate) mod provider;
pub(crate) mod prune;
pub(crate) mod query;
pub(crate) mod refusal;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod statement;
pub(crate) mod stats;
pub(crate) mod target;
pub(crate) mod url;
