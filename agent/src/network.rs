//! The network process: it reads the declaration, and answers the operator and the kubelet.
//!
//! It decides nothing. All that it tells the supervisor is what a read showed, and when that was sent. The sidecar
//! has no supervisor, and uses the same reads and answers in a process that decides itself.

mod active;
mod api_server;
mod endpoints;
mod local;
mod metrics;
mod program;
mod readiness;
mod reads;
mod schedule;
mod server;
mod shared;
mod sidecar;
mod supervisor;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};

use crate::log;
use shared::{Decider, Shared};

pub use api_server::{ApiAddress, ApiServer, NoApiAddress};
pub use program::{NoReadyCheck, ReadyCheck};
pub use readiness::{LastRead, Readiness, judge};
pub use reads::{Group, Read};
pub use schedule::{BREATH, Schedule};
pub use shared::NetworkSettings;
pub use sidecar::{SidecarSettings, run as run_sidecar};

/// Runs until the supervisor ends.
pub fn run(settings: NetworkSettings) -> Result<()> {
    log::open();
    // The program may have the same user. It must not tell the supervisor what was read.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("protecting the memory of the network process")?;
    runtime()?.block_on(async {
        let (supervisor, received) = supervisor::connect()?;
        let shared =
            Arc::new(Shared::new(settings, Decider::Supervisor(supervisor), watch::Sender::default()));
        let Decider::Supervisor(supervisor) = &shared.decider else { return Ok(()) };
        let listener = endpoints::listen(shared.settings.port)?;
        let asked = shared.clone();
        let answer = move |path| endpoints::answer(path, asked.clone());
        tokio::select! {
            ended = supervisor::receive(received, supervisor, &shared.state) => ended,
            () = server::serve(listener, Some(server::LONGEST), answer) => Ok(()),
            () = reads::read(&shared) => Ok(()),
            () = reads::watch(&shared) => Ok(()),
        }
    })
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("starting a runtime")
}
