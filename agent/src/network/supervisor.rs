//! The supervisor, as the network process sees it: standard input is a socket to it.

use std::{
    collections::HashMap,
    io::stdin,
    os::{fd::AsFd as _, unix::net},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    sync::{Mutex as AsyncMutex, oneshot, watch},
};

use crate::{
    answer::Answer,
    messages::{Lines, State, ToNetwork, ToSupervisor, line},
};

/// At most so many questions wait for an answer.
const MOST_QUESTIONS: usize = 64;

/// The way to the supervisor.
#[derive(Debug)]
pub(super) struct ToldSupervisor {
    socket: AsyncMutex<OwnedWriteHalf>,
    questions: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    last: AtomicU64,
}

/// Takes standard input for the socket to the supervisor.
pub(super) fn connect() -> Result<(ToldSupervisor, OwnedReadHalf)> {
    let socket = stdin().as_fd().try_clone_to_owned().context("standard input is not open")?;
    let socket = net::UnixStream::from(socket);
    socket.set_nonblocking(true).context("standard input is no socket")?;
    let (received, sent) = UnixStream::from_std(socket).context("standard input is no socket")?.into_split();
    let told = ToldSupervisor {
        socket: AsyncMutex::new(sent),
        questions: Mutex::default(),
        last: AtomicU64::default(),
    };
    Ok((told, received))
}

impl ToldSupervisor {
    /// Sends a message.
    pub(super) async fn send(&self, message: &ToSupervisor) -> Result<()> {
        let line = line(message);
        self.socket.lock().await.write_all(&line).await.context("the supervisor has ended")
    }

    /// What the agent promises now. None if too many ask, or the supervisor does not answer.
    pub(super) async fn ask(&self) -> Option<Answer> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
            questions.retain(|_, waiting| !waiting.is_closed());
            if questions.len() >= MOST_QUESTIONS {
                return None;
            }
            questions.insert(id, answer);
        }
        self.send(&ToSupervisor::Ask { id }).await.ok()?;
        answered.await.ok()
    }

    fn answered(&self, id: u64, answer: Answer) {
        let waiting = self.questions.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        // The client may have closed its connection.
        drop(waiting.map(|waiting| waiting.send(answer)));
    }
}

/// Receives messages until the supervisor ends.
pub(super) async fn receive(
    mut received: OwnedReadHalf,
    told: &ToldSupervisor,
    state: &watch::Sender<State>,
) -> Result<()> {
    let (mut lines, mut bytes) = (Lines::default(), [0; 4096]);
    loop {
        let length = received.read(&mut bytes).await.context("the supervisor has ended")?;
        if length == 0 {
            bail!("the supervisor has ended");
        }
        lines.add(&bytes[..length]);
        while let Some(message) = lines.take()? {
            match message {
                ToNetwork::Answer { id, answer } => told.answered(id, answer),
                ToNetwork::State(now) => drop(state.send_replace(now)),
            }
        }
    }
}
