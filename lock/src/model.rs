//! The values of the lock: keys, tokens, owners, rows, and what the operations take and answer.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::LockError;

/// Longest key, session name, owner field or group in bytes. Far below what an index page takes (2,704 bytes).
pub const MAX_TEXT_BYTES: usize = 512;

/// The newest layout of lock rows that this program understands. A row that carries a larger number was written by a
/// newer program and is left alone.
pub const PROTOCOL: u32 = 1;

/// The name of one lock: 1 to [`MAX_TEXT_BYTES`] bytes without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// Checks the text; the error says what is wrong with it.
    pub fn new(text: impl Into<String>) -> Result<Self, LockError> {
        let text = text.into();
        check_text("key", &text)?;
        Ok(Self(text))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A key as the database returned it; whatever is stored there was checked when it was written.
    pub(super) fn stored(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Key {
    type Error = LockError;

    fn try_from(text: String) -> Result<Self, LockError> {
        Self::new(text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

/// Refuses what the database could not store or index: empty, too long, or with control characters.
pub(super) fn check_text(what: &'static str, text: &str) -> Result<(), LockError> {
    let problem = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > MAX_TEXT_BYTES {
        format!("is {} bytes long; at most {MAX_TEXT_BYTES} are allowed", text.len())
    } else if text.chars().any(char::is_control) {
        "contains a control character".to_owned()
    } else {
        return Ok(());
    };
    Err(LockError::Invalid { what, problem })
}

/// A fencing token: it grows with every change of holder of a key and is never used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(i64);

impl Token {
    /// The token of a key that never had a holder.
    pub const ZERO: Self = Self(0);

    /// A token by its number, which is zero (never granted) or positive.
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new, random one.
            #[allow(clippy::new_without_default, reason = "a default that differs every time would surprise")]
            pub fn new() -> Self {
                Self(Uuid::new_v4())
            }

            /// The UUID inside.
            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_newtype! {
    /// One running process (one replica of the operator) as the database knows it. A session that was marked dead or
    /// closed never lives again; the process registers a new one.
    SessionId
}

uuid_newtype! {
    /// Names one intended change of a key. Repeating a change under the same id is harmless and answers as the first
    /// time: this is how a lost answer to COMMIT is resolved.
    GrantId
}

/// Who holds a key. The three texts are opaque to the lock; the operator puts a pod's UID, namespace and name there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Identity: never reused for somebody else.
    pub uid: String,
    /// Where the name is valid.
    pub namespace: String,
    /// For people.
    pub name: String,
}

/// One grant of a key to an owner, as the history keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The token granted.
    pub token: Token,
    /// The grant's id.
    pub grant: GrantId,
    /// To whom.
    pub owner: Owner,
    /// Why, as the granting program put it.
    pub reason: String,
    /// When, by the database's clock. For information.
    pub granted_at: Timestamp,
    /// Whether the promotion was seen through (`Store::confirm`).
    pub confirmed: bool,
}

/// The row of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    /// The key.
    pub key: Key,
    /// Who holds it, if anybody.
    pub owner: Option<Owner>,
    /// The largest token ever granted for the key.
    pub token: Token,
    /// The last change of the row (a grant or a vacate).
    pub grant: Option<GrantId>,
    /// Whether the present holder's promotion was confirmed. Without a holder: whether the last one's was.
    pub confirmed: bool,
    /// The session in charge, living or not.
    pub session: Option<SessionId>,
    /// The group (its UID) that uses the key.
    pub group: String,
    /// Layout of the row; see [`PROTOCOL`].
    pub protocol: u32,
    /// The last confirmed term and all terms after it, in the order of their tokens: whoever may still act as the
    /// holder is the owner of one of these.
    pub pending: Vec<Term>,
    /// When the holder last changed, by the database's clock. For information.
    pub lock_timestamp: Timestamp,
    /// The group was deleted; the row only keeps the token.
    pub tombstone: bool,
}

/// Identity of the database's history. A change means that commits may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// PostgreSQL's system identifier.
    pub system_identifier: i64,
    /// The timeline that is being written.
    pub timeline: u32,
    /// Grows with every change of the two above; tokens of a later era are larger by [`TOKEN_JUMP`] at least.
    pub era: u32,
}

/// How far tokens jump when the database may have lost commits: more than could have been granted meanwhile.
pub const TOKEN_JUMP: i64 = 1_000_000;

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// False: the own session is dead, closed or unknown. Give everything up and register anew.
    pub alive: bool,
    /// Whose heartbeat it was.
    pub own: SessionId,
    /// Every session, the own one included, dead ones too until they are pruned.
    pub sessions: Vec<SessionSeen>,
    /// The database's history.
    pub epoch: Epoch,
    /// Keys that programs hold go to new holders. If not: commits may have been lost not long ago, and whoever holds a key
    /// by a lost one may still believe in it; see [`Settler`](super::Settler).
    pub settled: bool,
    /// The history is another one than at this [`Store`](super::Store)'s previous heartbeat: commits may have been
    /// lost; read all rows anew.
    pub epoch_changed: bool,
}

/// One session as a heartbeat saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSeen {
    /// Its id.
    pub id: SessionId,
    /// Its name, for people.
    pub name: String,
    /// Its heartbeat counter.
    pub beat: u64,
    /// After this long without a change of the counter others may mark it dead.
    pub ttl: Duration,
    /// Marked dead by others, or closed by itself.
    pub dead: bool,
}

/// A wish to take charge of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The key.
    pub key: Key,
    /// The claimant's group (UID).
    pub group: String,
    /// Create the row if there is none, and revive a tombstone of another group. Only for a caller that has just made
    /// sure that its group exists; otherwise a stale cache would bring a deleted group back.
    pub may_create: bool,
    /// A group that is known not to exist any more: its row may be taken over although it left no tombstone (the
    /// database was away when it was deleted).
    pub supersedes: Option<String>,
}

/// The answer to a [`Claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The own session is in charge. Holder and token are as they were.
    Ours(LockRow),
    /// Another living session is in charge.
    Charged {
        /// The session.
        session: SessionId,
    },
    /// The row is locked by another transaction, or changed under our eyes: ask again at the next poll.
    Busy,
    /// Another group uses the key: another cluster, or an older group of which nobody said that it is gone. Nothing
    /// was touched.
    Foreign {
        /// That group.
        group: String,
    },
    /// There is no row, and `may_create` was not set.
    Missing,
    /// The row is a tombstone of this very group, or of another one and `may_create` was not set.
    Tombstone {
        /// The group that was deleted.
        group: String,
    },
    /// A newer program wrote the row; it is left alone.
    ProtocolNewer {
        /// The row's layout.
        protocol: u32,
    },
}

/// A change of holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub key: Key,
    /// The token that the row must have now.
    pub expected: Token,
    /// The new token will be larger than this, too: the largest token known from elsewhere.
    pub floor: Token,
    /// The new holder.
    pub owner: Owner,
    /// Names this change; repeat it with the same id when the answer was lost.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
}

/// A removal of the holder without a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacate {
    /// The key.
    pub key: Key,
    /// The token that the row must have now; it stays.
    pub token: Token,
    /// Names this change.
    pub grant: GrantId,
    /// Kept in the history.
    pub reason: String,
}

/// The end of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    /// The key.
    pub key: Key,
    /// The group that is gone.
    pub group: String,
    /// The largest token known from elsewhere: whoever uses the key next continues above it, even if the row was lost.
    pub floor: Token,
}

/// The answer to a [`Grant`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granted {
    /// The owner holds the key with this token, by this call or by an earlier one with the same grant id.
    Granted {
        /// The new token.
        token: Token,
    },
    /// Nothing was changed.
    Refused(Refusal),
}

/// The answer to a confirm, vacate, tombstone or yield of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// The row is as asked for, by this call or an earlier one.
    Done,
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why a row was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The row has another token than expected (or the holder is another, or gone); the row as it is.
    TokenChanged {
        /// The row as read right after the refusal; `None` if it vanished in between.
        row: Option<Box<LockRow>>,
    },
    /// Another session, or none, is in charge of the key.
    NotOurs {
        /// The session in charge, if any.
        session: Option<SessionId>,
    },
    /// The own session is dead, closed or unknown: register anew.
    SessionDead,
    /// The row is locked by another transaction at this moment: try again.
    Busy,
    /// The group was deleted.
    Tombstone,
    /// Another group uses the key.
    Foreign {
        /// That group.
        group: String,
    },
    /// A newer program wrote the row.
    ProtocolNewer {
        /// The row's layout.
        protocol: u32,
    },
    /// There is no such row.
    Missing,
}

/// A row that a session is in charge of, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The key.
    pub key: Key,
    /// The token of the current term.
    pub token: Token,
    /// The holder's UID; none when the lock is free.
    pub owner: Option<String>,
}

/// A key of which no living session is in charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclaimed {
    /// The key.
    pub key: Key,
    /// The group that uses it.
    pub group: String,
}

/// What [`Store::prune`](super::Store::prune) removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Terms of the history.
    pub terms: u64,
    /// Dead sessions.
    pub sessions: u64,
    /// Places in queues.
    pub waiters: u64,
}

/// What [`Store::check`](super::Store::check) found out about the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// PostgreSQL's version, as in `15.18`.
    pub server_version: String,
    /// The database takes writes (it is no standby, and its transactions are not read-only).
    pub writable: bool,
    /// The schema's version; `None` before the first `migrate`.
    pub schema_version: Option<u32>,
    /// The oldest program version that the schema can work with.
    pub works_with: Option<u32>,
    /// The version that this program brings along.
    pub program_version: u32,
    /// Privileges that the role lacks, in words; empty when all is well.
    pub missing_privileges: Vec<String>,
    /// How long the check took.
    pub round_trip: Duration,
}

impl Health {
    /// The first thing that keeps the lock from working, with its remedy; `Ok` when it can work.
    pub fn verdict(&self) -> Result<(), LockError> {
        if !self.writable {
            return Err(LockError::ReadOnly);
        }
        if !self.missing_privileges.is_empty() {
            return Err(LockError::Privileges { detail: self.missing_privileges.join(", ") });
        }
        if let Some(needed) = self.works_with.filter(|needed| *needed > self.program_version) {
            return Err(LockError::SchemaNew { needed, known: self.program_version });
        }
        let found = self.schema_version.unwrap_or(0);
        if found < self.program_version {
            return Err(LockError::SchemaOld { found, needed: self.program_version });
        }
        Ok(())
    }
}

/// A hint that something changed. Hints may be lost or late: polling is the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Some session came to its end, or the charge of a key was taken from it.
    ChargeFree,
    /// Some session gave up the charge of keys, and lives on.
    Yielded,
    /// Hints may have been missed (the connection was made or made again).
    Missed,
}
