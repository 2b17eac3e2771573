//! One statement in a transaction of its own: the statements by their names, their arguments and their answers.

use crate::db::statement::{Notification, Row};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::failure::Failure;
use super::random::Random;
use super::tables::Tables;

/// The rows of an answer.
pub(super) type Answer = Result<Vec<Value>, Failure>;

/// What a statement sees and changes.
pub(super) struct Transaction<'a> {
    pub(super) tables: Tables,
    /// The past of the database that runs it.
    pub(super) history: &'a str,
    /// The database's clock, in microseconds since 1970.
    pub(super) now: i64,
    pub(super) random: &'a mut Random,
    /// The server accepts no writes.
    pub(super) read_only: bool,
    /// Another transaction holds the rows of all locks: statements that do not wait find them busy.
    pub(super) busy: bool,
    /// Sent after the commit.
    pub(super) notifications: Vec<Notification>,
}

/// The arguments in their order, as a tuple of these types.
pub(super) fn arguments<T: DeserializeOwned>(values: Vec<Value>) -> Result<T, Failure> {
    // PostgreSQL's code for arguments that do not fit.
    serde_json::from_value(Value::Array(values)).map_err(|error| Failure::new("22023", error.to_string()))
}

/// Statements that a standby answers as well.
const READING: [&str; 11] = [
    "check",
    "schema version",
    "read",
    "show",
    "list",
    "history",
    "list waiters",
    "summary",
    "rows of a session",
    "unclaimed rows",
    "what is held",
];

/// Whether a statement with this name only reads.
pub(super) fn reads(statement: &str) -> bool {
    READING.contains(&statement)
}

impl Transaction<'_> {
    /// Runs the statement with this name.
    pub(super) fn run(&mut self, statement: &str, values: Vec<Value>) -> Result<Vec<Row>, Failure> {
        let answer = self.dispatch(statement, values)?;
        let row = |value| match value {
            Value::Object(row) => row,
            _ => Map::new(),
        };
        Ok(answer.into_iter().map(|value| Row::Memory(row(value))).collect())
    }

    fn dispatch(&mut self, statement: &str, values: Vec<Value>) -> Answer {
        match statement {
            "register" => self.register(arguments(values)?),
            "heartbeat" => self.beat(arguments(values)?),
            "era" => Ok(vec![self.era_row()]),
            "end of an era" => self.commits_were_lost(arguments(values)?),
            "end of quarantine" => self.end_quarantine(arguments(values)?),
            "death mark" => self.mark_dead(arguments(values)?),
            "close" => self.close(arguments(values)?),
            "claim" => self.claim(arguments(values)?),
            "unclaim" => self.unclaim(arguments(values)?),
            "reassignment" => self.reassign(arguments(values)?),
            "grant" => self.grant(arguments(values)?),
            "confirm" => self.confirm(arguments(values)?),
            "vacate" => self.vacate(arguments(values)?),
            "tombstone" => self.bury(arguments(values)?),
            "acquire" => self.acquire(arguments(values)?),
            "release" => self.release(arguments(values)?),
            "transfer" => self.transfer(arguments(values)?),
            "give up" => self.give_up(arguments(values)?),
            "publish" => self.publish(arguments(values)?),
            "check" => Ok(self.check()),
            "schema version" => Ok(Self::schema_version()),
            "rows of a session" => self.rows_of(arguments(values)?),
            "unclaimed rows" => self.unclaimed(arguments(values)?),
            "what is held" => self.held(arguments(values)?),
            "read" => self.read(arguments(values)?),
            "show" => self.show(arguments(values)?),
            "list" => self.list(arguments(values)?),
            "history" => self.history(arguments(values)?),
            "list waiters" => self.waiters(arguments(values)?),
            "summary" => Ok(self.summary()),
            "begin pruning" => self.begin_pruning(arguments(values)?),
            "prune terms" => self.prune_terms(arguments(values)?),
            "prune keys" => self.prune_keys(arguments(values)?),
            "prune sessions" => self.prune_sessions(arguments(values)?),
            "prune waiters" => self.prune_waiters(arguments(values)?),
            "wake" => self.wake(arguments(values)?),
            "wake all" => self.wake_all(arguments(values)?),
            "message to peers" => self.tell(arguments(values)?),
            other => Err(Failure::new("0A000", format!("the database in memory has no statement {other:?}"))),
        }
    }

    /// Whether the database's past is the one that its era began in.
    pub(super) fn is_in_its_era(&self) -> bool {
        self.tables.meta.history == self.history
    }

    fn wake(&mut self, (session, grant): (Uuid, Uuid)) -> Answer {
        self.notify(format!("leadergroup_{}", session.simple()), grant.to_string());
        Ok(Vec::new())
    }

    fn wake_all(&mut self, (words, if_awaited): (Vec<String>, bool)) -> Answer {
        if if_awaited && self.tables.waiters.is_empty() {
            return Ok(Vec::new());
        }
        for word in words {
            self.notify("leadergroup".to_owned(), word);
        }
        Ok(Vec::new())
    }

    fn tell(&mut self, (peers, words): (String, Vec<String>)) -> Answer {
        for word in words {
            self.notify("leadergroup_peers".to_owned(), format!("{peers}\n{word}"));
        }
        Ok(Vec::new())
    }

    /// Of several equal ones in a transaction, PostgreSQL sends one.
    fn notify(&mut self, channel: String, payload: String) {
        let known = |sent: &Notification| sent.channel == channel && sent.payload == payload;
        if !self.notifications.iter().any(known) {
            self.notifications.push(Notification { channel, payload });
        }
    }
}
