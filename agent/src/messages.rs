//! What the two processes of the agent tell each other: one JSON object in each line, over a socket.
//!
//! The network process talks to the API server and to clients. The supervisor decides, has the key, and runs the
//! program. What the network process says can end the program or let it start, so no other process of the container
//! may write to the socket: neither of the two can be traced.

use serde::{Deserialize, Serialize};

use crate::{
    answer::Answer,
    contract::{Boot, Declared},
    machine::{Machine, Why},
    moment::Moment,
};

/// The longest line that is read.
pub const LONGEST: usize = 16 * 1024;

/// From the network process to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum ToSupervisor {
    /// A quorum read was answered.
    Read {
        /// The time before it was sent.
        #[serde(rename = "sentAt")]
        sent_at: Moment,
        /// The lock's key.
        key: Option<String>,
        /// The declared term; none if there is no `LeaderGroup`, or it declares none.
        shown: Option<Declared>,
    },
    /// Somebody asks what the agent promises. -> [`ToNetwork::Answer`]
    Ask {
        /// The number of the question.
        id: u64,
    },
}

/// From the supervisor to the network process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum ToNetwork {
    /// The answer to a question.
    Answer {
        /// The number of the question.
        id: u64,
        /// The signed answer.
        answer: Answer,
    },
    /// Something of the supervisor's state has changed.
    State(State),
}

/// What the supervisor knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The start of the agent; none before the supervisor has said anything.
    pub boot: Option<Boot>,
    /// Nothing starts under a token below this one.
    pub floor: i64,
    /// The token under which the program runs.
    pub token: Option<i64>,
    /// The end of its lease.
    pub deadline: Option<Moment>,
    /// Why it has to end.
    pub ends: Option<Why>,
    /// The container is being ended: nothing starts any more, and the program was told to end.
    pub leaves: bool,
    /// What has happened so far.
    pub counts: Counts,
}

impl State {
    /// What the machine of this start of the agent says. The rest is as before anything has happened.
    pub fn of(boot: Boot, machine: &Machine) -> Self {
        let running = machine.running();
        Self {
            boot: Some(boot),
            floor: machine.promise().floor,
            token: running.map(|(token, _)| token),
            deadline: running.map(|(_, deadline)| deadline),
            ..Self::default()
        }
    }
}

/// What has happened since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// How often the program was started.
    pub starts: u64,
    /// How often it was killed because it had not ended in time.
    pub kills: u64,
    /// How often it had to end, and has, for each reason.
    pub ends: Vec<(Why, u64)>,
    /// With which exit statuses it has ended then, and how often, in ascending order.
    pub exits: Vec<(u8, u64)>,
}

impl Counts {
    /// Counts the end of a program that had to end, with its exit status, if it has one.
    pub fn ended(&mut self, why: Why, status: Option<u8>) {
        match self.ends.iter_mut().find(|(of, _)| *of == why) {
            Some((_, times)) => *times += 1,
            None => self.ends.push((why, 1)),
        }
        let Some(status) = status else { return };
        match self.exits.binary_search_by_key(&status, |(of, _)| *of) {
            Ok(found) => self.exits[found].1 += 1,
            Err(place) => self.exits.insert(place, (status, 1)),
        }
    }
}

/// Complete lines of a stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct Lines(Vec<u8>);

/// A line is longer than [`LONGEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message between the agent's processes is longer than {LONGEST} bytes")]
pub struct TooLong;

impl Lines {
    /// Adds what has arrived.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next complete message. Lines that are no message are skipped: they come from another version.
    pub fn take<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, TooLong> {
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            if let Ok(message) = serde_json::from_slice(&line) {
                return Ok(Some(message));
            }
        }
        if self.0.len() > LONGEST { Err(TooLong) } else { Ok(None) }
    }
}

/// A message as a line. Serialization cannot fail for these types; if it did, the line would be empty.
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_pieces_and_several_at_a_time() {
        let (first, second) = (ToSupervisor::Ask { id: 1 }, ToSupervisor::Ask { id: 2 });
        let bytes = [line(&first), b"of a later version\n".to_vec(), line(&second)].concat();
        let mut lines = Lines::default();
        let mut received = Vec::new();
        for piece in bytes.chunks(5) {
            lines.add(piece);
            while let Some(message) = lines.take::<ToSupervisor>().expect("short lines") {
                received.push(message);
            }
        }
        assert_eq!(received, [first, second]);
        let mut longest = State { boot: Some(Boot::new([255; 32])), ..State::default() };
        for status in 0..=u8::MAX {
            longest.counts.ended(Why::Superseded, Some(status));
        }
        let longest = ToNetwork::State(longest);
        assert!(line(&longest).len() < LONGEST);
        lines.add(&line(&longest));
        assert_eq!(lines.take::<ToNetwork>(), Ok(Some(longest)));
        lines.add(&vec![b' '; LONGEST + 1]);
        assert_eq!(lines.take::<ToSupervisor>(), Err(TooLong));
    }
}
