//! What the tasks of the network process share.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use tokio::sync::{Notify, watch};

use super::{
    active::Active,
    api_server::ApiServer,
    metrics::ReadCounts,
    program::{Program, ReadyCheck},
    readiness::LastRead,
    supervisor::ToldSupervisor,
};
use crate::{
    answer::Answer,
    contract::Declared,
    messages::{State, ToSupervisor},
    moment::Moment,
};

/// What the network process needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSettings {
    /// Where the group is read.
    pub api_server: ApiServer,
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
    pub(super) decider: Decider,
    /// What the supervisor has said, or what the sidecar knows.
    pub(super) state: watch::Sender<State>,
    /// The last read that was answered.
    pub(super) last_read: watch::Sender<Option<LastRead>>,
    pub(super) reads: ReadCounts,
    pub(super) program: Program,
    /// Asks for a read at once.
    pub(super) changed: Notify,
}

impl Shared {
    pub(super) fn new(settings: NetworkSettings, decider: Decider, state: watch::Sender<State>) -> Self {
        Self {
            program: Program::new(settings.ready.clone()),
            settings,
            decider,
            state,
            last_read: watch::Sender::default(),
            reads: ReadCounts::default(),
            changed: Notify::new(),
        }
    }
}

/// Who decides by what was read.
#[derive(Debug)]
pub(super) enum Decider {
    /// The supervisor, in a process of its own.
    Supervisor(ToldSupervisor),
    /// The sidecar's own process.
    Here(Arc<Active>),
}

impl Decider {
    /// Tells what a read has shown.
    pub(super) async fn read(
        &self,
        sent_at: Moment,
        key: Option<String>,
        shown: Option<Declared>,
    ) -> Result<()> {
        match self {
            Self::Supervisor(supervisor) => {
                supervisor.send(&ToSupervisor::Read { sent_at, key, shown }).await
            }
            Self::Here(active) => {
                active.read(sent_at, key, shown);
                Ok(())
            }
        }
    }

    /// What the agent promises now. None if too many ask, or the supervisor does not answer.
    pub(super) async fn ask(&self) -> Option<Answer> {
        match self {
            Self::Supervisor(supervisor) => supervisor.ask().await,
            Self::Here(active) => Some(active.promise()),
        }
    }
}
