//! LeaderGroup: a Kubernetes operator for active-standby deployments.
//!
//! Of the pods that a [`LeaderGroup`](api::LeaderGroup) selects, one is active at a time. The operator elects it,
//! gives it a fencing token from a PostgreSQL lock, and labels it, so that an ordinary Service routes only to it.
//!
//! There are two programs, each with a Cargo feature. `leadergroup` is the operator. `kubectl-leadergroup` is the
//! plugin for people, which consists of [`api`] and `plugin` only.

pub mod api;
#[cfg(feature = "operator")]
pub mod cli;
#[cfg(feature = "operator")]
pub mod config;
#[cfg(feature = "operator")]
pub mod election;
#[cfg(feature = "operator")]
pub mod health;
#[cfg(feature = "operator")]
mod hooks;
#[cfg(feature = "operator")]
pub mod operator;
#[cfg(feature = "operator")]
pub mod ownership;
#[cfg(test)]
#[cfg(feature = "operator")]
mod phase_table;
#[cfg(feature = "plugin")]
pub mod plugin;
#[cfg(feature = "operator")]
pub mod routing;
#[cfg(feature = "operator")]
pub mod telemetry;
