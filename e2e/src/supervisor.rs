//! The process behind a running cluster: the parent of all its daemons.
//!
//! It starts and reaps daemons, restarts those that end by themselves (as systemd does on a real machine), and holds
//! the lock that prevents a second cluster. It takes the cluster down on request, on SIGTERM or SIGINT, or when the
//! process that owns the cluster ends. Each request is one line of JSON on a Unix socket, and so is each answer.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Delay before a daemon that ended by itself is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(500);
/// Joins the cgroups before anything else, so that no process of a machine is ever outside of them.
const WRAPPER: &str =
    r#"for file in $LG_CGROUPS; do echo $$ > "$file" || exit 71; done; unset LG_CGROUPS; exec "$@""#;

/// A daemon and how to start it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Daemon {
    /// Unique, such as `kubelet node-1`.
    pub name: String,
    /// The machine it runs on.
    pub machine: String,
    /// The program and its arguments, including `nsenter` and similar.
    pub argv: Vec<String>,
    /// Additional environment variables.
    pub env: Vec<(String, String)>,
    /// The file to which its output is appended.
    pub log: PathBuf,
    /// The `cgroup.procs` files of the groups that it joins first.
    pub cgroups: Vec<PathBuf>,
    /// Whether it is restarted when it ends by itself.
    pub restart: bool,
}

/// A request to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Start a daemon, or restart the one of that name with this description.
    Start(Daemon),
    /// Start a daemon again with its previous description.
    StartAgain(String),
    /// Send a signal.
    Signal {
        /// The daemon.
        name: String,
        /// The signal's number.
        number: i32,
        /// Whether the daemon is not restarted if the signal ends it.
        stop: bool,
    },
    /// Answer when the daemon is not running.
    WaitEnd(String),
    /// Do not restart any daemon of this machine from now on.
    Disown {
        /// The machine's name.
        machine: String,
    },
    /// List all daemons.
    List,
    /// Keep the cluster when the owner ends.
    Detach,
    /// Take the cluster down; answered when it is down.
    Shutdown,
}

/// A line of the list of daemons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listed {
    /// The daemon's name.
    pub name: String,
    /// Its process id while it runs.
    pub pid: Option<i32>,
    /// How often it was restarted because it ended by itself.
    pub restarts: u32,
}

/// The supervisor's answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// The process id of what was started.
    Started(i32),
    /// The daemons.
    Daemons(Vec<Listed>),
    /// The request failed, with the reason.
    Failed(String),
}

struct Entry {
    daemon: Daemon,
    pid: Option<Pid>,
    restart: bool,
    restarts: u32,
    waiting: Vec<Reply>,
}

/// The receiver of an answer.
#[derive(Debug)]
pub struct Reply {
    answer: oneshot::Sender<Answer>,
    /// Completes when the answer was sent.
    sent: oneshot::Receiver<()>,
}

impl Reply {
    fn send(self, answer: Answer) {
        // The client may have given up.
        let _ = self.answer.send(answer);
    }

    /// Answers, and waits until the answer was sent.
    pub async fn send_now(self, answer: Answer) {
        let _ = self.answer.send(answer);
        let _ = self.sent.await;
    }
}

enum Event {
    Request(Request, Reply),
    Restart(String),
}

/// Sends a request to the supervisor on `socket`. Waits at most `limit` for the answer.
pub async fn ask(socket: &Path, request: &Request, limit: Duration) -> Result<Answer> {
    let talk = async {
        let mut stream = UnixStream::connect(socket).await.with_context(|| {
            format!(
                "the test cluster's supervisor does not listen on {}: is the cluster up?",
                socket.display()
            )
        })?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        if answer.is_empty() {
            bail!("the test cluster's supervisor ended without an answer");
        }
        Ok(serde_json::from_str(&answer)?)
    };
    match tokio::time::timeout(limit, talk)
        .await
        .context("the test cluster's supervisor does not answer")??
    {
        Answer::Failed(why) => bail!("{why}"),
        answer => Ok(answer),
    }
}

/// Serves requests until the cluster must be taken down. If a request caused this, it is returned, to be answered
/// afterwards. The end of standard input (the owner has ended) also causes it, unless [`Request::Detach`] came first.
/// `ready` is called when requests are accepted. Unexpected ends and restarts of daemons are written to `log`.
pub async fn serve(socket: &Path, log: &Path, ready: impl FnOnce()) -> Result<Option<Reply>> {
    let mut log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    // Processes that lose their parent (the shims of containers) become our children, so that they are reaped.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become a subreaper")?;
    let _ = fs::remove_file(socket);
    let listener =
        UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let (events, mut inbox) = mpsc::channel(64);
    tokio::spawn(accept(listener, events.clone()));

    let mut children = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut owner = Some(owner_gone());
    let mut daemons: HashMap<String, Entry> = HashMap::new();
    ready();
    loop {
        tokio::select! {
            _ = children.recv() => reap(&mut daemons, &events, &mut log),
            _ = terminate.recv() => return Ok(None),
            _ = interrupt.recv() => return Ok(None),
            // The terminal was closed; a detached cluster keeps running.
            _ = hangup.recv() => {}
            () = async { match &mut owner { Some(gone) => { let _ = gone.await; } None => std::future::pending().await } } => {
                return Ok(None);
            },
            event = inbox.recv() => match event {
                Some(Event::Request(Request::Shutdown, reply)) => return Ok(Some(reply)),
                Some(Event::Request(Request::Detach, reply)) => {
                    owner = None;
                    reply.send(Answer::Done);
                }
                Some(Event::Request(request, reply)) => handle(&mut daemons, request, reply),
                Some(Event::Restart(name)) => {
                    if let Some(entry) = daemons.get_mut(&name)
                        && entry.restart
                        && entry.pid.is_none()
                    {
                        entry.restarts += 1;
                        match spawn(&entry.daemon) {
                            Ok(pid) => entry.pid = Some(pid),
                            Err(error) => say(&mut log, &format!("{name} cannot be started again: {error:#}")),
                        }
                    }
                }
                None => return Ok(None),
            },
        }
    }
}

fn handle(daemons: &mut HashMap<String, Entry>, request: Request, reply: Reply) {
    let answer = match request {
        Request::Start(daemon) => start(daemons, daemon),
        Request::StartAgain(name) => match daemons.get(&name) {
            Some(entry) => start(daemons, entry.daemon.clone()),
            None => Err(anyhow::anyhow!("there is no daemon {name:?}")),
        },
        Request::Signal { name, number, stop } => send_signal(daemons, &name, number, stop),
        Request::WaitEnd(name) => match daemons.get_mut(&name) {
            Some(entry) if entry.pid.is_some() => return entry.waiting.push(reply),
            _ => Ok(Answer::Done),
        },
        Request::Disown { machine } => {
            for entry in daemons.values_mut().filter(|entry| entry.daemon.machine == machine) {
                entry.restart = false;
            }
            Ok(Answer::Done)
        }
        Request::List => {
            let mut list: Vec<Listed> = daemons
                .values()
                .map(|entry| Listed {
                    name: entry.daemon.name.clone(),
                    pid: entry.pid.map(|pid| pid.as_raw_nonzero().get()),
                    restarts: entry.restarts,
                })
                .collect();
            list.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(Answer::Daemons(list))
        }
        Request::Detach | Request::Shutdown => Ok(Answer::Done),
    };
    reply.send(answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))));
}

fn start(daemons: &mut HashMap<String, Entry>, daemon: Daemon) -> Result<Answer> {
    if let Some(entry) = daemons.get(&daemon.name)
        && entry.pid.is_some()
    {
        bail!("{} runs already", daemon.name);
    }
    let pid = spawn(&daemon)?;
    let (name, restart) = (daemon.name.clone(), daemon.restart);
    daemons.insert(name, Entry { daemon, pid: Some(pid), restart, restarts: 0, waiting: Vec::new() });
    Ok(Answer::Started(pid.as_raw_nonzero().get()))
}

fn send_signal(daemons: &mut HashMap<String, Entry>, name: &str, number: i32, stop: bool) -> Result<Answer> {
    let entry = daemons.get_mut(name).with_context(|| format!("there is no daemon {name:?}"))?;
    if stop {
        entry.restart = false;
    }
    let signal = Signal::from_named_raw(number).with_context(|| format!("{number} is no signal"))?;
    if let Some(pid) = entry.pid {
        rustix::process::kill_process(pid, signal).with_context(|| format!("cannot signal {name}"))?;
    }
    Ok(Answer::Done)
}

fn spawn(daemon: &Daemon) -> Result<Pid> {
    let log = File::options().create(true).append(true).open(&daemon.log);
    let log = log.with_context(|| format!("cannot write {}", daemon.log.display()))?;
    let groups: Vec<String> = daemon.cgroups.iter().map(|path| path.display().to_string()).collect();
    let child = Command::new("/bin/sh")
        .args(["-c", WRAPPER, "sh"])
        .args(&daemon.argv)
        .env("LG_CGROUPS", groups.join(" "))
        .envs(daemon.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // In its own process group, because Ctrl-C in the terminal is for the owner, not for the daemons.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", daemon.name))?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the kernel gave an impossible process id")
}

/// Reaps every child that has ended, including adopted ones.
fn reap(daemons: &mut HashMap<String, Entry>, events: &mpsc::Sender<Event>, log: &mut File) {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        let Some(entry) = daemons.values_mut().find(|entry| entry.pid == Some(pid)) else { continue };
        entry.pid = None;
        for waiting in entry.waiting.drain(..) {
            waiting.send(Answer::Done);
        }
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => "unknown".to_owned(),
        };
        let then = if entry.restart { ", starting it again" } else { "" };
        say(log, &format!("{} ended: {how}{then}", entry.daemon.name));
        if entry.restart {
            let (events, name) = (events.clone(), entry.daemon.name.clone());
            tokio::spawn(async move {
                tokio::time::sleep(RESTART_DELAY).await;
                let _ = events.send(Event::Restart(name)).await;
            });
        }
    }
}

fn say(log: &mut File, text: &str) {
    // An error cannot be reported anywhere else.
    let _ = writeln!(log, "{} {text}", jiff::Timestamp::now());
}

async fn accept(listener: UnixListener, events: mpsc::Sender<Event>) {
    while let Ok((stream, _)) = listener.accept().await {
        let events = events.clone();
        tokio::spawn(async move {
            // On an error the client sees that there is no answer.
            let _ = converse(stream, events).await;
        });
    }
}

async fn converse(stream: UnixStream, events: mpsc::Sender<Event>) -> Result<()> {
    let (read, mut write) = stream.into_split();
    // Dropped when this function ends, which completes `sent`.
    let (_sending, sent) = oneshot::channel();
    let mut line = String::new();
    BufReader::new(read.take(1 << 20)).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let (reply, answer) = oneshot::channel();
            let reply = Reply { answer: reply, sent };
            events.send(Event::Request(request, reply)).await.ok().context("shutting down")?;
            answer.await.unwrap_or_else(|_| Answer::Failed("the cluster is being taken down".to_owned()))
        }
        Err(error) => Answer::Failed(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    write.write_all(text.as_bytes()).await?;
    Ok(())
}

/// Completes when standard input ends. Uses its own thread, because the read cannot be cancelled.
fn owner_gone() -> oneshot::Receiver<()> {
    let (gone, answer) = oneshot::channel();
    std::thread::spawn(move || {
        // Copies until the end of the input; an error means the same.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = gone.send(());
    });
    answer
}
