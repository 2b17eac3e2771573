//! The network process: it reads the declaration, and answers the operator and the kubelet.
//!
//! It decides nothing. All that it tells the supervisor is what a read showed, and when that was sent.

mod endpoints;
mod metrics;
mod program;
mod readiness;
mod reads;
mod server;
mod shared;
mod supervisor;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::sync::{Notify, watch};

use crate::log;
use metrics::ReadCounts;
use program::Program;
use shared::Shared;

pub use program::{NoReadyCheck, ReadyCheck};
pub use shared::NetworkSettings;

/// Runs until the supervisor ends.
pub fn run(settings: NetworkSettings) -> Result<()> {
    log::open();
    // The program may have the same user. It must not tell the supervisor what was read.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("protecting the memory of the network process")?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    runtime.block_on(async {
        let (supervisor, received) = supervisor::connect()?;
        let shared = Arc::new(Shared {
            program: Program::new(settings.ready.clone()),
            settings,
            supervisor,
            state: watch::Sender::default(),
            last_read: watch::Sender::default(),
            reads: ReadCounts::default(),
            changed: Notify::new(),
        });
        let listener = endpoints::listen(shared.settings.port)?;
        let client = kube::Client::try_default().await.context(
            "the API server is not known: the pod needs a service account whose token is mounted \
             (automountServiceAccountToken)",
        )?;
        let asked = shared.clone();
        let answer = move |path| endpoints::answer(path, asked.clone());
        tokio::select! {
            ended = supervisor::receive(received, &shared.supervisor, &shared.state) => ended,
            () = server::serve(listener, answer) => Ok(()),
            () = reads::read(&client, &shared) => Ok(()),
            () = reads::watch(&client, &shared) => Ok(()),
        }
    })
}
