//! The values of the lock: keys, tokens, sessions, holders, rows.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::LockError;

/// Longest key, session name, group or part of a holder in bytes. Far below what fits into an index page (2,704 bytes).
pub const MAX_TEXT_BYTES: usize = 512;

/// The newest layout of lock rows that this version understands. A row with a larger number was written by a newer
/// version and is left alone.
pub const PROTOCOL: u32 = 1;

/// Most living waiters for one key.
pub const MOST_WAITERS: u32 = 10_000;

/// The name of one lock: 1 to 512 bytes without control characters.
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

    /// A key as the database returned it; it was checked when it was written.
    pub(crate) fn stored(text: String) -> Self {
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

impl TryFrom<&str> for Key {
    type Error = LockError;

    fn try_from(text: &str) -> Result<Self, LockError> {
        Self::new(text)
    }
}

impl FromStr for Key {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self, LockError> {
        Self::new(text)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

/// Refuses texts that the database could not store or index: empty, too long, or with control characters.
pub(crate) fn check_text(what: &'static str, text: &str) -> Result<(), LockError> {
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

/// A fencing token: the number of a term. It grows with every change of holder of a key.
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

impl From<Token> for i64 {
    fn from(token: Token) -> Self {
        token.0
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
            /// Creates a new random id.
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

        impl From<$name> for Uuid {
            fn from(id: $name) -> Self {
                id.0
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
    /// Identifies one running process in the database. A session that was marked dead or closed never lives again; the
    /// process registers a new one.
    SessionId
}

uuid_newtype! {
    /// Identifies one intended change of a key. Repeating a change under the same id is harmless and returns the same
    /// answer as the first time: this resolves a lost answer to COMMIT.
    GrantId
}

uuid_newtype! {
    /// One stretch of the database's past. A new era begins when commits may have been lost: after a failover, or when
    /// a backup was restored.
    EraId
}

/// The holder of a key. The three texts are opaque to the lock. A [`Client`](crate::Client) has a random `uid`,
/// the namespace `program`, and the name in its settings; the operator stores a pod's UID, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Identity: never reused for another holder.
    pub uid: String,
    /// The namespace in which the name is valid.
    pub namespace: String,
    /// The name, for people.
    pub name: String,
}

/// One grant of a key to a holder, as the history keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Term {
    /// The token granted.
    pub token: Token,
    /// The grant's id.
    pub grant: GrantId,
    /// The holder it was granted to.
    pub holder: Holder,
    /// The reason that the requesting program gave.
    pub reason: String,
    /// When it was granted, by the database's clock. For information.
    pub granted_at: Timestamp,
    /// Whether everything that makes the holder act has been done (for keys of controllers).
    pub confirmed: bool,
}

/// The row of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    /// The key.
    pub key: Key,
    /// The holder, if there is one.
    pub holder: Option<Holder>,
    /// The largest token ever granted for the key.
    pub token: Token,
    /// The last change of the row (a grant or a vacate).
    pub grant: Option<GrantId>,
    /// Whether the present holder's term was confirmed; without a holder, whether the last term was.
    pub confirmed: bool,
    /// The session that has claimed the key, living or not.
    pub session: Option<SessionId>,
    /// The group (its UID) that uses the key.
    pub group: String,
    /// The last confirmed term and all terms after it, in the order of their tokens. Each of their holders may still
    /// act.
    pub pending: Vec<Term>,
    /// Whether the group was deleted; the row then only keeps the token.
    pub tombstone: bool,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// False if the own session is dead, closed or unknown: stop all work under it, and register a new one.
    pub alive: bool,
    /// The own session.
    pub own: SessionId,
    /// The number of its heartbeats so far.
    pub count: u64,
    /// How many of its keys have been released by force so far.
    pub revoked: u64,
    /// Other sessions to watch: a few neighbours, the peers, and those that the heartbeat asked for. Dead sessions are
    /// included only if asked for.
    pub sessions: Vec<SessionSeen>,
    /// The database's era.
    pub era: EraId,
    /// The longest ttl of all live sessions, while the era is in [quarantine](crate::protocol::Quarantine).
    pub quarantine: Option<Duration>,
}

/// Another session, as returned by a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSeen {
    /// Its id.
    pub id: SessionId,
    /// Its heartbeat counter.
    pub beat: u64,
    /// After this long without a change of the counter others may mark it dead.
    pub ttl: Duration,
    /// Whether it was marked dead by others, or closed by itself.
    pub dead: bool,
    /// Whether it is registered as a peer of the session that asked.
    pub peer: bool,
    /// Where its process runs, if it said so.
    pub place: Option<String>,
}
