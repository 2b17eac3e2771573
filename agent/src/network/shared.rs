//! What the tasks of the network process share.

use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::supervisor::ToldSupervisor;
use crate::{messages::State, moment::Moment};

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
}

/// What the tasks of the process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: NetworkSettings,
    pub(super) supervisor: ToldSupervisor,
    /// What the program does.
    pub(super) state: watch::Sender<State>,
    /// When the last read that was answered was sent.
    pub(super) read_at: watch::Sender<Option<Moment>>,
    /// Asks for a read at once.
    pub(super) changed: Notify,
}
