//! One process of the client under test, and the lines that it exchanges with this program.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leadergroup_lock::monotonic;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::proxy::Proxy;
use crate::rules::{Outcome, Rule, Trouble, Violation};

/// A line that the client answered or said by itself.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// The role that the process logs in as, which names it.
    pub(crate) who: String,
    /// When the command was sent, on this program's clock. Of an event: when it was received.
    pub(crate) asked: Duration,
    /// When the line was received.
    pub(crate) at: Duration,
    /// The command; empty for an event.
    pub(crate) command: Vec<String>,
    /// The line.
    pub(crate) answer: Answer,
}

/// What a line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// `ok`
    Ok,
    /// `granted TOKEN`
    Granted(i64),
    /// `refused`
    Refused,
    /// `yes TOKEN`
    Yes(i64),
    /// `no`
    No,
    /// `released`
    Released,
    /// `lost KEY TOKEN`: an event.
    Lost(String, i64),
    /// `error TEXT`
    Error(String),
    /// The process has ended.
    Gone,
    /// None: the process was killed, or the scenario ended, before one came.
    Unanswered,
    /// Anything else.
    Unknown(String),
}

impl Answer {
    fn parse(line: &str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<i64>().ok();
        match words.as_slice() {
            ["ok"] => Some(Self::Ok),
            ["granted", token] => number(token).map(Self::Granted),
            ["refused"] => Some(Self::Refused),
            ["yes", token] => number(token).map(Self::Yes),
            ["no"] => Some(Self::No),
            ["released"] => Some(Self::Released),
            ["lost", key, token] => number(token).map(|token| Self::Lost((*key).to_owned(), token)),
            ["error", ..] => Some(Self::Error(line.to_owned())),
            _ => None,
        }
        .unwrap_or_else(|| Self::Unknown(line.to_owned()))
    }
}

/// The lines of all processes of a scenario, in the order of their arrival.
pub(crate) type History = Arc<Mutex<Vec<Line>>>;

/// A process.
#[derive(Debug)]
pub(crate) struct Client {
    /// The role that it logs in as.
    pub(crate) who: String,
    /// What its connections lead through.
    pub(crate) proxy: Proxy,
    child: Child,
    input: ChildStdin,
    answers: mpsc::UnboundedReceiver<(Duration, Answer)>,
    history: History,
    waiting: Option<(Duration, Vec<String>)>,
    /// How long an answer may take beyond what the command asks for.
    limit: Duration,
}

impl Client {
    /// Starts a process.
    pub(crate) fn start(
        mut command: Command,
        who: String,
        proxy: Proxy,
        history: History,
        limit: Duration,
    ) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start the client: {command:?}"))?;
        let input = child.stdin.take().context("the client has no standard input")?;
        let output = child.stdout.take().context("the client has no standard output")?;
        let (sender, answers) = mpsc::unbounded_channel();
        let (name, events) = (who.clone(), Arc::clone(&history));
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let (at, answer) = (monotonic(), Answer::parse(&line));
                if matches!(answer, Answer::Lost(..)) {
                    events.lock().push(Line {
                        who: name.clone(),
                        asked: at,
                        at,
                        command: Vec::new(),
                        answer,
                    });
                } else if sender.send((at, answer)).is_err() {
                    return;
                }
            }
            let _ = sender.send((monotonic(), Answer::Gone));
        });
        Ok(Self { who, proxy, child, input, answers, history, waiting: None, limit })
    }

    /// Sends a command. Its answer is to be read before the next one is sent.
    pub(crate) async fn send(&mut self, command: &str) -> Outcome {
        self.waiting = Some((monotonic(), command.split_whitespace().map(str::to_owned).collect()));
        let line = format!("{command}\n");
        // A process that has ended is noticed when its answer is read.
        let _ = self.input.write_all(line.as_bytes()).await;
        let _ = self.input.flush().await;
        Ok(())
    }

    /// The answer to the last command, if it comes within this time.
    pub(crate) async fn answer_within(&mut self, limit: Duration) -> Outcome<Option<Answer>> {
        let Ok(received) = timeout(limit, self.answers.recv()).await else { return Ok(None) };
        let (at, answer) = received.unwrap_or((monotonic(), Answer::Gone));
        let (asked, command) = self.waiting.take().unwrap_or_default();
        let line =
            Line { who: self.who.clone(), asked, at, command: command.clone(), answer: answer.clone() };
        self.history.lock().push(line);
        match &answer {
            Answer::Unknown(line) => Err(Trouble::Broken(Violation::wrong(
                Rule::LINES,
                format!("to `{}` it answered `{line}`", command.join(" ")),
            ))),
            Answer::Gone => Err(Trouble::Broken(Violation::wrong(
                Rule::LINES,
                format!("it ended without an answer to `{}`", command.join(" ")),
            ))),
            _ => Ok(Some(answer)),
        }
    }

    /// The answer to the last command.
    pub(crate) async fn answer(&mut self, wait: Duration) -> Outcome<Answer> {
        let command = self.waiting.as_ref().map(|(_, words)| words.join(" ")).unwrap_or_default();
        let answer = self.answer_within(wait + self.limit).await?;
        answer.ok_or_else(|| {
            let seen = format!("no answer to `{command}` within {:?}", wait + self.limit);
            Trouble::Broken(Violation::late(Rule::LINES, seen))
        })
    }

    /// Sends a command and reads its answer.
    pub(crate) async fn ask(&mut self, command: &str) -> Outcome<Answer> {
        self.send(command).await?;
        self.answer(Duration::ZERO).await
    }

    /// `try KEY`: the token, if it was granted.
    pub(crate) async fn try_lock(&mut self, key: &str) -> Outcome<Option<i64>> {
        self.ask(&format!("try {key}")).await.map(|answer| token(&answer))
    }

    /// Takes a key that is free.
    pub(crate) async fn take(&mut self, key: &str) -> Outcome<i64> {
        let answer = self.ask(&format!("try {key}")).await?;
        token(&answer).ok_or_else(|| {
            let seen = format!("to `try {key}`, while the key was free, it answered {answer:?}");
            Trouble::Broken(Violation::late(Rule::LINES, seen))
        })
    }

    /// `held KEY`: the token, if it holds the key.
    pub(crate) async fn held(&mut self, key: &str) -> Outcome<Option<i64>> {
        Ok(match self.ask(&format!("held {key}")).await? {
            Answer::Yes(token) => Some(token),
            _ => None,
        })
    }

    /// `release KEY`: whether it was held until then.
    pub(crate) async fn release(&mut self, key: &str) -> Outcome<bool> {
        Ok(self.ask(&format!("release {key}")).await? == Answer::Released)
    }

    /// Ends its session.
    pub(crate) async fn close(&mut self) -> Outcome {
        match self.ask("close").await? {
            Answer::Ok => Ok(()),
            answer => Err(Trouble::Broken(Violation::late(
                Rule::LINES,
                format!("to `close` it answered {answer:?}"),
            ))),
        }
    }

    /// When it said by itself that it lost this key.
    pub(crate) fn said_lost(&self, key: &str, token: i64) -> Option<Duration> {
        let lost = Answer::Lost(key.to_owned(), token);
        self.history
            .lock()
            .iter()
            .find(|line| line.who == self.who && line.answer == lost)
            .map(|line| line.at)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills it, as a crash would.
    pub(crate) async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some((asked, command)) = self.waiting.take() else { return };
        let (who, at, answer) = (self.who.clone(), monotonic(), Answer::Unanswered);
        self.history.lock().push(Line { who, asked, at, command, answer });
    }
}

/// The token, if a key was granted.
pub(crate) fn token(answer: &Answer) -> Option<i64> {
    match answer {
        Answer::Granted(token) => Some(*token),
        _ => None,
    }
}
