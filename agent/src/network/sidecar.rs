//! The agent beside a program that runs all the time, and asks whether its pod is active.
//!
//! It is one process, which starts nothing and ends nothing: that two programs never work at the same moment is up to
//! the programs here. The kubelet's message says nothing of its boot, because the end of this container proves nothing
//! about them: if it ends without an answer, the lease has to pass.

use std::{net::Ipv4Addr, os::unix::net, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use signal_hook::low_level::pipe;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, UnixStream},
    sync::watch,
    time::sleep,
};

use super::{
    active::Active,
    endpoints, local, reads, server,
    shared::{Decider, NetworkSettings, Shared},
};
use crate::{answer::Keys, log, log::say, machine::Settings};

/// The longest time until a lapsed lease is noticed, as in the supervisor.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// What the sidecar needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarSettings {
    /// What it reads, and where the operator asks.
    pub network: NetworkSettings,
    /// The port on localhost on which programs ask.
    pub local_port: u16,
    /// The file that is there while the pod is active.
    pub file: Option<PathBuf>,
    /// How long before the end of the lease the pod is not active any more.
    pub lapse_timeout: Duration,
}

/// Runs until the container is ended.
pub fn run(settings: SidecarSettings) -> Result<()> {
    let (ended, written) = net::UnixStream::pair().context("making a socket for signals")?;
    for signal in [Signal::TERM, Signal::INT] {
        pipe::register(signal.as_raw(), written.try_clone()?).context("receiving signals")?;
    }
    log::open();
    let keys = Keys::generate()?;
    // No process with the same user can read the key.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("protecting the memory of the agent")?;
    let state = watch::Sender::default();
    let machine = Settings { stop_timeout: Duration::ZERO, lapse_timeout: settings.lapse_timeout };
    let active = Active::new(keys, machine, settings.file, state.clone())
        .context("removing the file of an earlier start; name another one with --file")?;
    let active = Arc::new(active);
    super::runtime()?.block_on(async {
        let shared = Arc::new(Shared::new(settings.network, Decider::Here(active.clone()), state.clone()));
        let operators = endpoints::listen(shared.settings.port)?;
        let programs = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.local_port)).await;
        let programs = programs.with_context(|| {
            format!(
                "listening on port {} of localhost; choose another one with --local-port",
                settings.local_port
            )
        })?;
        ended.set_nonblocking(true)?;
        let mut ended = UnixStream::from_std(ended)?;
        say("waiting until the pod is active");
        let asked = shared.clone();
        let (told, changes) = (active.clone(), state.clone());
        tokio::select! {
            _ = ended.read_u8() => {}
            () = server::serve(operators, Some(server::LONGEST), move |path| {
                endpoints::answer(path, asked.clone())
            }) => {}
            // A stream that ended after a while would look like the end of a term.
            () = server::serve(programs, None, move |path| {
                let answer = local::answer(&path, &told, &changes);
                async { answer }
            }) => {}
            () = reads::read(&shared) => {}
            () = reads::watch(&shared) => {}
            () = wake(&active, &state) => {}
        }
        while !active.leave() {
            sleep(LONGEST_WAIT).await;
        }
        Ok(())
    })
}

/// Notices in time that a lease lapses, also if the machine was suspended.
async fn wake(active: &Active, state: &watch::Sender<crate::messages::State>) {
    let mut changes = state.subscribe();
    loop {
        let is_running = changes.borrow_and_update().token.is_some();
        if is_running {
            sleep(LONGEST_WAIT).await;
        } else if changes.changed().await.is_err() {
            return;
        }
        active.wake();
    }
}
