//! `leadergroup exec`: runs a command only while a lock is held, and keeps the lock until all processes of the
//! command have ended.

use std::ffi::OsString;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

use super::process_group::{ProcessGroup, StartError, status_of};
use crate::api::HumanDuration;
use crate::config::{SettingsArgs, in_settings};
use leadergroup_lock::{
    Client, ClientConfig, ClientError, Guard, Key, LockError, Released, Store, Tried, monotonic,
};

/// The lock could not be acquired: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_NOT_HELD: u8 = 75;
/// The lock was lost while the command ran.
pub const EXIT_LOST: u8 = 76;

/// Stands for no limit.
const FOR_EVER: Duration = Duration::from_hours(100 * 365 * 24);
/// Time limit for each of: the release of the lock, the end of the session, the end of killed processes.
const GOODBYE: Duration = Duration::from_secs(5);

/// Arguments of `exec`.
#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// The lock's key
    #[arg(long, value_name = "KEY")]
    pub key: String,
    /// How long to wait for the lock; 0s tries once; without it, there is no limit. Exit status 75 if the lock could
    /// not be acquired
    #[arg(long, value_name = "TIME")]
    pub wait: Option<HumanDuration>,
    /// How long no other program gets the lock after this program was killed or lost the database
    #[arg(long, value_name = "TIME")]
    pub lock_delay: Option<HumanDuration>,
    /// The longest time that the lock may be held; after that it is lost, and the command is stopped
    #[arg(long, value_name = "TIME")]
    pub max_hold: Option<HumanDuration>,
    /// Never wait longer than --wait: neither to confirm that a silent holder is dead, which takes its ttl, nor for
    /// the lock delay of a holder that was killed, nor for the quarantine after a failover of the database
    #[arg(long)]
    pub no_confirm_death: bool,
    /// What happens to the command when the lock is lost. The exit status is then 76
    #[arg(long, value_enum, default_value_t)]
    pub on_lost: OnLost,
    /// The settings; ttl and retryInterval are those of the lock here.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// The command and its arguments.
    #[arg(
        last = true,
        required = true,
        value_name = "COMMAND",
        help = "The command and its arguments. LEADERGROUP_KEY contains the key, and LEADERGROUP_TOKEN the fencing token"
    )]
    pub command: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Send SIGTERM, and SIGKILL before another program can have the lock
    #[default]
    Stop,
    /// Send SIGKILL at once
    Kill,
    /// Do nothing, because the work is fenced; only the exit status shows the loss
    Ignore,
}

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// An error of the lock or the database.
    #[error(transparent)]
    Lock(#[from] ClientError),
    /// The command could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system does not let this program wait for signals or for its child.
    #[error("cannot wait for signals or for the command: {0}")]
    System(#[from] std::io::Error),
}

impl From<LockError> for ExecError {
    fn from(error: LockError) -> Self {
        Self::Lock(ClientError::Lock(error))
    }
}

/// Signals that are passed on to the command. None of them suspends this program: its heartbeats continue.
///
/// Signals that are ignored at start, such as SIGHUP under nohup(1), are not caught. So they stay ignored here and in
/// the command, which inherits this.
struct Passed(Vec<(Signals, Signal)>);

impl Passed {
    fn listen() -> std::io::Result<Self> {
        const ALL: [Signal; 8] = [
            Signal::TERM,
            Signal::INT,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
            Signal::TSTP,
            Signal::CONT,
        ];
        let ignored = ignored_signals()?;
        let heard = ALL.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let listen = |own: Signal| Ok((signal(SignalKind::from_raw(own.as_raw()))?, own));
        Ok(Self(heard.map(listen).collect::<std::io::Result<_>>()?))
    }

    /// Returns the next signal. May be cancelled.
    async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signals, signal) in &mut self.0 {
                if signals.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the next signal that requests the end of the program.
    async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ![Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT].contains(&signal) {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores, as a bit mask: see `proc_pid_status(5)`.
fn ignored_signals() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored
        .and_then(|ignored| u64::from_str_radix(ignored.trim(), 16).ok())
        .ok_or_else(|| std::io::Error::other("/proc/self/status does not say which signals are ignored"))
}

/// Runs the command under the lock and returns the exit status: the command's own, 128 and the signal that ended it,
/// [`EXIT_NOT_HELD`] or [`EXIT_LOST`].
///
/// The command ends when this process ends, but also when the thread that polls this future ends. So this must be a
/// thread that lives as long as the process, such as the main thread.
pub async fn exec(args: &ExecArgs, store: Store, config: ClientConfig) -> Result<u8, ExecError> {
    let key = Key::new(args.key.clone())?;
    // Listen from here on, so that no signal is missed between the acquisition of the lock and the start of the
    // command.
    let mut signals = Passed::listen()?;
    let ttl = config.ttl;
    let client = tokio::select! {
        client = Client::connect(store, config) => client?,
        // If a session was just registered, it holds nothing and expires after its ttl.
        signal = signals.end() => return Ok(status_of(signal)),
    };
    let result = tokio::select! {
        guard = acquire(&client, &key, args.wait) => match guard {
            Ok(Some(guard)) => {
                let result = run(args, &guard, &mut signals, ttl).await;
                // Wait for the release, so that it does not happen after the end of the session. If it fails, the end
                // of the session frees the lock, too.
                let released = timeout(GOODBYE, guard.release()).await;
                // The loss may have come just before the end of the command, and be seen only now.
                if let (Ok(status), Ok(Ok(Released::WasLost))) = (&result, released)
                    && *status != EXIT_LOST
                {
                    eprintln!("leadergroup: the lock \"{key}\" was lost before the command ended");
                    Ok(EXIT_LOST)
                } else {
                    result
                }
            }
            Ok(None) => Ok(EXIT_NOT_HELD),
            Err(error) => Err(error),
        },
        signal = signals.end() => Ok(status_of(signal)),
    };
    // Frees the lock at once. If this fails, the lock is free after the ttl.
    match timeout(GOODBYE, client.shutdown()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("leadergroup: the lock is free only after its ttl: {error}"),
        Err(_) => eprintln!("leadergroup: the lock is free only after its ttl: the database does not answer"),
    }
    result
}

/// Acquires the lock. If that is not possible in time, prints the reason.
async fn acquire(
    client: &Client,
    key: &Key,
    wait: Option<HumanDuration>,
) -> Result<Option<Guard>, ExecError> {
    let wait = wait.map_or(FOR_EVER, |wait| wait.0);
    if wait.is_zero() {
        return Ok(match client.try_lock_or_why(key).await? {
            Tried::Held(guard) => Some(guard),
            Tried::NotHeld(reason) => {
                let reason = in_settings(&reason.to_string());
                eprintln!("leadergroup: the lock \"{key}\" is not available: {reason}");
                None
            }
        });
    }
    match client.lock(key, wait).await {
        Ok(guard) => Ok(Some(guard)),
        Err(error @ ClientError::Deadline { .. }) => {
            eprintln!("leadergroup: {}", in_settings(&error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

async fn run(args: &ExecArgs, guard: &Guard, signals: &mut Passed, ttl: Duration) -> Result<u8, ExecError> {
    // The loss is reported a fifth of the ttl before others can have the lock. The grace period is a part of that;
    // the rest is for SIGKILL.
    let grace = ttl * 3 / 20;
    let mut deadline = Duration::ZERO;
    let environment =
        [("LEADERGROUP_KEY", guard.key().to_string()), ("LEADERGROUP_TOKEN", guard.token().to_string())];
    let mut group = ProcessGroup::start(&args.command, &environment)?;
    let mut told = false;
    loop {
        if let Some(status) = group.ended()? {
            return Ok(status);
        }
        if group.leader().is_some() && !told {
            eprintln!(
                "leadergroup: the command has ended, but not all processes that it started; the lock \"{}\" is held until they end",
                guard.key()
            );
            told = true;
        }
        // Available only until the lock is lost.
        deadline = guard.held_until().map_or(deadline, |until| until + grace);
        tokio::select! {
            () = group.changed() => {}
            signal = signals.next() => group.send(signal),
            () = guard.lost() => break,
        }
    }
    eprintln!("leadergroup: the lock \"{}\" is lost", guard.key());
    match args.on_lost {
        OnLost::Ignore => {
            ended_by(&mut group, signals, FOR_EVER).await?;
            return Ok(EXIT_LOST);
        }
        OnLost::Stop => {
            // If this process was paused until others may have the lock, no time is left for SIGTERM. After a
            // reported loss, such as a forced release, there is.
            let deadline = deadline.min(monotonic() + grace);
            if monotonic() < deadline {
                group.send(Signal::TERM);
                ended_by(&mut group, signals, deadline).await?;
            }
        }
        OnLost::Kill => {}
    }
    group.send(Signal::KILL);
    if !ended_by(&mut group, signals, monotonic() + GOODBYE).await? {
        eprintln!("leadergroup: some processes that the command started could not be killed");
    }
    Ok(EXIT_LOST)
}

/// Passes signals on until the group has ended, or until `deadline` on a clock that also runs while the machine is
/// suspended.
async fn ended_by(
    group: &mut ProcessGroup,
    signals: &mut Passed,
    deadline: Duration,
) -> std::io::Result<bool> {
    while monotonic() < deadline {
        if group.ended()?.is_some() {
            return Ok(true);
        }
        let left = deadline.saturating_sub(monotonic());
        tokio::select! {
            changed = timeout(left, group.changed()) => drop(changed),
            signal = signals.next() => group.send(signal),
        }
    }
    Ok(group.ended()?.is_some())
}
