//! A real Kubernetes cluster of several nodes on one machine, built from source, with fault injection and the
//! scenarios that LeaderGroup must survive.
//!
//! Start with [`cluster::Cluster`]; [`provider::Provider`] is for scenarios that run on any cluster. [`history`]
//! checks what happened, [`client`] calls a Service in the meantime, and [`scenario`] combines the three. [`view`]
//! judges what clients on all nodes saw, [`journal`] and [`running`] when programs with agents ran. [`prometheus`]
//! reads the operator's metrics.

pub mod cgroup;
pub mod cleanup;
pub mod client;
pub mod clock;
pub mod cloud_native_pg;
pub mod cluster;
pub mod command;
pub mod config;
pub mod control_plane;
pub mod credentials;
pub mod database;
pub mod database_failover;
pub mod deck;
pub mod demo;
pub mod faults;
pub mod history;
pub mod images;
pub mod journal;
pub mod machine;
pub mod moment;
pub mod network;
pub mod node;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod provider;
pub mod random;
pub mod random_faults;
pub mod running;
pub mod scenario;
pub mod state;
pub mod supervisor;
pub mod timeline;
pub mod view;
