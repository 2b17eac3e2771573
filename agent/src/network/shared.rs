//! What the tasks of the network process share.

use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::{
    metrics::ReadCounts,
    program::{Program, ReadyCheck},
    readiness::LastRead,
    supervisor::ToldSupervisor,
};
use crate::messages::State;

/// What the network process needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSettings {
    /// The namespace of the group and the pod.
    pub namespace: String,
    /// The name of the group.
    pub group: String,
    /// The port on which the operator and the kubelet ask.
    pub port: u16,
    /// The longest time between two reads of the declaration.
    pub interval: Duration,
    /// How to ask the program whether it is ready; without this it is as soon as it runs.
    pub ready: Option<ReadyCheck>,
}

/// What the tasks of the process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: NetworkSettings,
    pub(super) supervisor: ToldSupervisor,
    /// What the supervisor has said.
    pub(super) state: watch::Sender<State>,
    /// The last read that was answered.
    pub(super) last_read: watch::Sender<Option<LastRead>>,
    pub(super) reads: ReadCounts,
    pub(super) program: Program,
    /// Asks for a read at once.
    pub(super) changed: Notify,
}
