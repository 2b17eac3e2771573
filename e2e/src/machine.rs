//! Starts daemons on the machines of the cluster: in the machine's namespaces and cgroups, as children of the
//! supervisor.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal};

use crate::cgroup::Cgroups;
use crate::command::LIMIT;
use crate::network::namespace;
use crate::process::{has_ended, took_effect};
use crate::programs::Programs;
use crate::state::socket;
use crate::supervisor::{Answer, Daemon, Listed, Request, ask};

/// How often a condition is checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Everything needed to start and signal daemons.
#[derive(Debug, Clone)]
pub struct Machines {
    /// The built programs.
    pub programs: Programs,
    /// The cgroups of this machine.
    pub cgroups: Cgroups,
    /// The directory for logs.
    pub logs: PathBuf,
}

impl Machines {
    /// Starts one of the built programs on a machine.
    pub async fn start(
        &self,
        machine: &str,
        name: &str,
        program: &str,
        args: &[String],
        restart: bool,
    ) -> Result<()> {
        let program = self.programs.path(program)?.display().to_string();
        let command = std::iter::once(program).chain(args.iter().cloned()).collect();
        self.start_in(machine, name, None, command, restart).await.map(|_| ())
    }

    /// Starts any program on a machine, with `mounts` in the mount namespace of that process. Returns its process id.
    pub async fn start_in(
        &self,
        machine: &str,
        name: &str,
        mounts: Option<i32>,
        argv: Vec<String>,
        restart: bool,
    ) -> Result<i32> {
        let mut all = vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", namespace(machine))];
        all.extend(mounts.map(|pid| format!("--mount=/proc/{pid}/ns/mnt")));
        all.push("--".to_owned());
        all.extend(argv);
        let daemon = Daemon {
            name: name.to_owned(),
            machine: machine.to_owned(),
            argv: all,
            env: vec![("PATH".to_owned(), self.programs.search_path())],
            log: self.logs.join(format!("{}.log", name.replace(' ', "-"))),
            cgroups: self.cgroups.create_machine(machine)?,
            restart,
        };
        match ask(&socket(), &Request::Start(daemon), LIMIT)
            .await
            .with_context(|| format!("starting {name}"))?
        {
            Answer::Started(pid) => Ok(pid),
            answer => bail!("starting {name}: unexpected answer {answer:?}"),
        }
    }

    /// Sends a signal to a daemon.
    pub async fn signal(&self, name: &str, signal: Signal, stop: bool) -> Result<()> {
        let request = Request::Signal { name: name.to_owned(), number: signal.as_raw(), stop };
        ask(&socket(), &request, LIMIT).await.map(|_| ())
    }

    /// Ends a daemon with a signal, and waits until it has ended. It stays down until [`Machines::start_again`].
    pub async fn end(&self, name: &str, signal: Signal) -> Result<()> {
        self.signal(name, signal, true).await?;
        let ended = ask(&socket(), &Request::WaitEnd(name.to_owned()), LIMIT).await;
        ended.with_context(|| format!("{name} does not end after signal {}", signal.as_raw())).map(|_| ())
    }

    /// The same for a fault: fails if the daemon did not run before, or does afterwards.
    pub async fn end_running(&self, name: &str, signal: Signal) -> Result<()> {
        let pid = self.running(name).await?;
        self.end(name, signal).await?;
        took_effect(|| (!has_ended(pid)).then(|| format!("{name} runs as process {}", pid.as_raw_nonzero())))
    }

    /// The process of a daemon, or an error if it does not run.
    pub async fn running(&self, name: &str) -> Result<Pid> {
        let daemons = self.daemons().await?;
        let pid = daemons.into_iter().find(|daemon| daemon.name == name).and_then(|daemon| daemon.pid);
        let pid = pid.and_then(Pid::from_raw);
        pid.with_context(|| format!("the fault cannot take place: {name} does not run"))
    }

    /// Starts a daemon that was ended again.
    pub async fn start_again(&self, name: &str) -> Result<()> {
        ask(&socket(), &Request::StartAgain(name.to_owned()), LIMIT).await.map(|_| ())
    }

    /// From now on the supervisor does not restart any daemon of this machine.
    pub async fn disown(&self, machine: &str) -> Result<()> {
        ask(&socket(), &Request::Disown { machine: machine.to_owned() }, LIMIT).await.map(|_| ())
    }

    /// All daemons of all machines.
    pub async fn daemons(&self) -> Result<Vec<Listed>> {
        match ask(&socket(), &Request::List, LIMIT).await? {
            Answer::Daemons(list) => Ok(list),
            answer => bail!("unexpected answer {answer:?}"),
        }
    }

    /// Fails if a daemon is not running or was restarted, and names its log. For errors during the start.
    pub async fn check_daemons(&self) -> Result<()> {
        for daemon in self.daemons().await? {
            if daemon.pid.is_none() || daemon.restarts > 0 {
                bail!(
                    "{} ended by itself: see {}",
                    daemon.name,
                    self.logs.join(format!("{}.log", daemon.name.replace(' ', "-"))).display()
                );
            }
        }
        Ok(())
    }
}

/// Checks repeatedly until the condition holds. Fails if it does not hold within `limit`, or if a check fails.
pub async fn wait_until(
    what: &str,
    limit: Duration,
    mut reached: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !reached().await.with_context(|| format!("waiting for {what}"))? {
        if started.elapsed() > limit {
            bail!("timed out after {} s waiting for {what}", limit.as_secs());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
