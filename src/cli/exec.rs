//! `leadergroup exec`: runs a command only while a lock is held, and keeps the lock until all of the command has ended.

use std::ffi::OsString;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::timeout;

use super::group::{Group, StartError, status_of};
use crate::{api::HumanDuration, config::SettingsArgs};
use leadergroup_lock::{Client, ClientConfig, ClientError, Guard, Key, LockError, Store, monotonic};

/// The lock was not to be had: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_NOT_HELD: u8 = 75;
/// The lock was lost while the command ran.
pub const EXIT_LOST: u8 = 76;

/// For want of a limit.
const FOR_EVER: Duration = Duration::from_hours(100 * 365 * 24);
/// How long the release of the lock and the end of the session may take, each, and what was killed to be gone.
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
    /// The longest time that the lock may be held; then it is lost, and the command is stopped
    #[arg(long, value_name = "TIME")]
    pub max_hold: Option<HumanDuration>,
    /// Do not exceed --wait to find out whether a holder that has been silent for long is dead, which takes its ttl, nor for
    /// the quarantine after a failover of the database
    #[arg(long)]
    pub no_confirm_death: bool,
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
    /// The command could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The system lets this program wait neither for signals nor for its child.
    #[error("signals or the command cannot be waited for: {0}")]
    System(#[from] std::io::Error),
}

impl From<LockError> for ExecError {
    fn from(error: LockError) -> Self {
        Self::Lock(ClientError::Lock(error))
    }
}

/// Signals that are passed on to the command. This program itself is not suspended by any of them: its heartbeats go on.
///
/// A signal that is ignored from the start, as SIGHUP under nohup(1), is not listened to. So it stays ignored, here and in
/// the command, which inherits that.
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

    /// The next one. May be cancelled.
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

    /// The next one that asks for an end.
    async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ![Signal::USR1, Signal::USR2, Signal::TSTP, Signal::CONT].contains(&signal) {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores, one bit each: see `proc_pid_status(5)`.
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
/// The command ends when this process ends. It also ends with the thread that polls this future, which therefore has to
/// be one that lives as long as the process, such as the main thread.
pub async fn exec(args: &ExecArgs, store: Store, config: ClientConfig) -> Result<u8, ExecError> {
    let key = Key::new(args.key.clone())?;
    // From here on, so that none is missed between having the lock and running the command.
    let mut signals = Passed::listen()?;
    let ttl = config.ttl;
    let client = tokio::select! {
        client = Client::connect(store, config) => client?,
        // If a session was registered in this moment it holds nothing, and its ttl ends it.
        signal = signals.end() => return Ok(status_of(signal)),
    };
    let result = tokio::select! {
        guard = acquire(&client, &key, args.wait) => match guard {
            Ok(Some(guard)) => {
                let result = run(args, &guard, &mut signals, ttl).await;
                // Waited for, so that it does not come after the end of the session. If it fails that frees the lock as well.
                let _ = timeout(GOODBYE, guard.release()).await;
                result
            }
            Ok(None) => Ok(EXIT_NOT_HELD),
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

/// Says why, if it was not to be had.
async fn acquire(
    client: &Client,
    key: &Key,
    wait: Option<HumanDuration>,
) -> Result<Option<Guard>, ExecError> {
    let wait = wait.map_or(FOR_EVER, |wait| wait.0);
    if wait.is_zero() {
        return Ok(match client.try_lock_or_why(key).await? {
            Ok(guard) => Some(guard),
            Err(reason) => {
                eprintln!("leadergroup: the lock \"{key}\" is not to be had now: {reason}");
                None
            }
        });
    }
    match client.lock(key, wait).await {
        Ok(guard) => Ok(Some(guard)),
        Err(error @ ClientError::Deadline { .. }) => {
            eprintln!("leadergroup: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

async fn run(args: &ExecArgs, guard: &Guard, signals: &mut Passed, ttl: Duration) -> Result<u8, ExecError> {
    // The loss is told a fifth of the ttl before others can have the lock; a part of that is for the KILL.
    let grace = ttl * 3 / 20;
    let mut deadline = Duration::ZERO;
    let environment =
        [("LEADERGROUP_KEY", guard.key().to_string()), ("LEADERGROUP_TOKEN", guard.token().to_string())];
    let mut group = Group::start(&args.command, &environment)?;
    let mut told = false;
    loop {
        if let Some(status) = group.ended()? {
            return Ok(status);
        }
        if group.leader().is_some() && !told {
            eprintln!(
                "leadergroup: the command has ended, but not all that it started; the lock \"{}\" is held until then",
                guard.key()
            );
            told = true;
        }
        // Known only as long as it is not lost.
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
            // Who was away for so long that others may have the lock notices late; who was told, with time left.
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
        eprintln!("leadergroup: the system does not end all that the command started");
    }
    Ok(EXIT_LOST)
}

/// Passes signals on until the group has ended, or until `deadline` by a clock that goes on while the machine sleeps.
async fn ended_by(group: &mut Group, signals: &mut Passed, deadline: Duration) -> std::io::Result<bool> {
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
