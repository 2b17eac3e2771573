//! LeaderGroup: a Kubernetes operator for active-standby deployments.
//!
//! Of the pods that a [`LeaderGroup`](api::LeaderGroup) selects, one is active at a time. The operator elects it,
//! gives it a fencing token from a PostgreSQL lock, and labels it, so that an ordinary Service routes only to it.

pub mod api;
pub mod cli;
pub mod config;
pub mod election;
pub mod health;
mod hooks;
pub mod operator;
pub mod ownership;
#[cfg(test)]
mod phase_table;
pub mod routing;
pub mod telemetry;
