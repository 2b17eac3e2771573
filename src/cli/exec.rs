//! `leadergroup exec`: runs a command only while a lock is held.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

use super::SettingsArgs;
use crate::api::HumanDuration;
use crate::lock::{Client, ClientConfig, ClientError, Guard, Key, LockError, Store};

/// The lock was not to be had: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_NOT_HELD: u8 = 75;
/// The lock was lost while the command ran.
pub const EXIT_LOST: u8 = 76;

/// For want of a limit.
const FOR_EVER: Duration = Duration::from_hours(100 * 365 * 24);
/// How long the end of the session may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Arguments of `exec`.
#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// The lock's key
    #[arg(long, value_name = "KEY")]
    pub key: String,
    /// How long to wait for the lock, 0s to try only once; for ever if not given. Exit status 75 if it was not to be had
    #[arg(long, value_name = "TIME")]
    pub wait: Option<HumanDuration>,
    /// How long nobody gets the lock when this program ends without a word, or loses touch with the database
    #[arg(long, value_name = "TIME")]
    pub lock_delay: Option<HumanDuration>,
    /// What happens to the command when the lock is lost. Exit status 76 then
    #[arg(long, value_enum, default_value_t)]
    pub on_lost: OnLost,
    /// The settings; ttl and retryInterval are the lock's here.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// The command and its arguments.
    #[arg(
        last = true,
        required = true,
        value_name = "COMMAND",
        help = "The command and its arguments. It finds the key in LEADERGROUP_KEY, and the fencing token in LEADERGROUP_TOKEN"
    )]
    pub command: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// SIGTERM, and SIGKILL before anybody else can have the lock
    #[default]
    Stop,
    /// SIGKILL at once
    Kill,
    /// Nothing, it is fenced otherwise; only the exit status says so
    Ignore,
}

/// Why a command could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The lock or the database.
    #[error(transparent)]
    Lock(#[from] ClientError),
    /// There is no such program, or it may not be run.
    #[error("{program:?} cannot be run: {source}; check its name, PATH and permissions")]
    Spawn {
        /// The program.
        program: OsString,
        /// The system's word.
        source: std::io::Error,
    },
    /// The system lets this program wait neither for signals nor for its child.
    #[error("signals or the command cannot be waited for: {0}")]
    System(#[from] std::io::Error),
}

impl From<LockError> for ExecError {
    fn from(error: LockError) -> Self {
        Self::Lock(ClientError::Lock(error))
    }
}

/// Signals that are passed on to the command.
struct Passed([(Signals, Signal); 6]);

impl Passed {
    fn listen() -> std::io::Result<Self> {
        Ok(Self([
            (signal(SignalKind::terminate())?, Signal::TERM),
            (signal(SignalKind::interrupt())?, Signal::INT),
            (signal(SignalKind::hangup())?, Signal::HUP),
            (signal(SignalKind::quit())?, Signal::QUIT),
            (signal(SignalKind::user_defined1())?, Signal::USR1),
            (signal(SignalKind::user_defined2())?, Signal::USR2),
        ]))
    }

    /// The next one. May be cancelled.
    async fn next(&mut self) -> Signal {
        let each = self.0.iter_mut().map(|(signals, signal)| {
            Box::pin(async move {
                signals.recv().await;
                *signal
            })
        });
        futures::future::select_all(each).await.0
    }

    /// The next one that asks for an end.
    async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::USR1 && signal != Signal::USR2 {
                return signal;
            }
        }
    }
}

/// Runs the command under the lock and returns the exit status: the command's own, 128 and the signal that ended it,
/// [`EXIT_NOT_HELD`] or [`EXIT_LOST`].
pub async fn exec(args: &ExecArgs, store: Store, config: ClientConfig) -> Result<u8, ExecError> {
    let key = Key::new(args.key.clone())?;
    // From here on, so that none is missed between having the lock and running the command.
    let mut signals = Passed::listen()?;
    let ttl = config.ttl;
    let client = Client::connect(store, config).await?;
    let result = tokio::select! {
        guard = acquire(&client, &key, args.wait) => match guard {
            Ok(Some(guard)) => run(args, &guard, &mut signals, ttl).await,
            Ok(None) => {
                eprintln!("leadergroup: the lock \"{key}\" is held by others");
                Ok(EXIT_NOT_HELD)
            }
            Err(error) => Err(error),
        },
        signal = signals.end() => Ok(status_of(signal)),
    };
    // Frees the lock for the next one. If it does not get through, the ttl does.
    match timeout(GOODBYE, client.shutdown()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("leadergroup: the lock is free only after its ttl: {error}"),
        Err(_) => eprintln!("leadergroup: the lock is free only after its ttl: the database does not answer"),
    }
    result
}

async fn acquire(
    client: &Client,
    key: &Key,
    wait: Option<HumanDuration>,
) -> Result<Option<Guard>, ExecError> {
    let wait = wait.map_or(FOR_EVER, |wait| wait.0);
    if wait.is_zero() {
        return Ok(client.try_lock(key).await?);
    }
    match client.lock(key, wait).await {
        Ok(guard) => Ok(Some(guard)),
        Err(ClientError::Deadline { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn run(args: &ExecArgs, guard: &Guard, signals: &mut Passed, ttl: Duration) -> Result<u8, ExecError> {
    let program = args.command.first().cloned().unwrap_or_default();
    // A process group of its own, so that a signal also reaches what the command starts.
    let mut child = Command::new(&program)
        .args(args.command.iter().skip(1))
        .env("LEADERGROUP_KEY", guard.key().as_str())
        .env("LEADERGROUP_TOKEN", guard.token().to_string())
        .process_group(0)
        .spawn()
        .map_err(|source| ExecError::Spawn { program, source })?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let send = |signal| {
        // It may just have ended, which is what most signals are for.
        let _ = group.map(|group| kill_process_group(group, signal));
    };
    loop {
        tokio::select! {
            status = child.wait() => return Ok(status_code(status?)),
            signal = signals.next() => send(signal),
            () = guard.lost() => break,
        }
    }
    eprintln!("leadergroup: the lock \"{}\" is lost", guard.key());
    match args.on_lost {
        OnLost::Ignore => {
            wait_and_pass(&mut child, signals, send).await?;
            return Ok(EXIT_LOST);
        }
        OnLost::Stop => {
            send(Signal::TERM);
            // The loss is told a fifth of the ttl before others can have the lock; a part of that is for the KILL.
            let _ = timeout(ttl * 3 / 20, wait_and_pass(&mut child, signals, send)).await;
        }
        OnLost::Kill => {}
    }
    // Also what the command has started, and left behind.
    send(Signal::KILL);
    child.wait().await?;
    Ok(EXIT_LOST)
}

async fn wait_and_pass(
    child: &mut Child,
    signals: &mut Passed,
    send: impl Fn(Signal),
) -> std::io::Result<()> {
    loop {
        tokio::select! {
            status = child.wait() => return status.map(drop),
            signal = signals.next() => send(signal),
        }
    }
}

fn status_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
