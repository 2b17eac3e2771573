//! What happens to calls on their way between a client and the database.

use std::time::Duration;

/// A call that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The name of the client.
    pub client: &'a str,
    /// The statement's name, as in errors; or `connect`, `listen`, `ping` (of a connection that listens), and
    /// `notification`, which goes from the database to the client.
    pub statement: &'a str,
}

/// How a call fares. By default, it is answered at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fate {
    /// How long the call takes to the database.
    pub request: Duration,
    /// How long the database works on it. It takes effect at the end of that time. As on a server, the client's
    /// statement timeout cancels a statement that takes longer.
    pub work: Duration,
    /// How long the answer takes back.
    pub answer: Duration,
    /// How it ends.
    pub end: End,
    /// Whether it takes effect although the client gave it up before that: the server does not notice in time.
    pub outlives: bool,
    /// Whether another transaction holds the rows of all locks, so that the statement finds them busy.
    pub busy: bool,
}

/// How a call ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum End {
    /// The client gets the answer.
    #[default]
    Answered,
    /// The connection breaks. A call to `connect` finds no one who accepts it.
    Broken {
        /// Whether the call takes effect before.
        commits: bool,
    },
    /// There is no answer; the client waits for as long as it is willing to.
    Silent {
        /// Whether the call takes effect.
        commits: bool,
    },
    /// The server reports an error, and nothing takes effect.
    Refused {
        /// The SQLSTATE.
        code: &'static str,
    },
}

impl Fate {
    /// The client cannot reach the database: connections break, and no new one can be made.
    pub const UNREACHABLE: Self = Self::ended(End::Broken { commits: false });
    /// The call takes effect, and the connection breaks before the answer.
    pub const ANSWER_LOST: Self = Self::ended(End::Broken { commits: true });
    /// Nothing happens until the client gives the call up.
    pub const HANGS: Self = Self::ended(End::Silent { commits: false });

    /// A call that ends at once, in this way.
    pub const fn ended(end: End) -> Self {
        Self {
            request: Duration::ZERO,
            work: Duration::ZERO,
            answer: Duration::ZERO,
            end,
            outlives: false,
            busy: false,
        }
    }

    /// A call that is answered after these times on the way there and back.
    pub const fn answered(request: Duration, answer: Duration) -> Self {
        Self { request, answer, ..Self::ended(End::Answered) }
    }

    /// Whether the call takes effect, if nothing else prevents it.
    pub(super) fn commits(&self) -> bool {
        matches!(self.end, End::Answered | End::Broken { commits: true } | End::Silent { commits: true })
    }
}

/// Decides how calls fare. A closure is one.
pub trait Network: Send + Sync + 'static {
    /// How this call fares. Each call is asked about once, when it is made.
    fn fate(&self, call: &Call<'_>) -> Fate;
}

impl<F: Fn(&Call<'_>) -> Fate + Send + Sync + 'static> Network for F {
    fn fate(&self, call: &Call<'_>) -> Fate {
        self(call)
    }
}
