//! The short ways to take a key, to look what becomes of a wish, and to give a key up, for what is asked most: a key that
//! nobody holds, is held, or nobody waits for. They lock nothing but the key's row, never wait for anything else, and can be gone
//! together. Where they have no answer the functions of `migrations/0003_waiters.sql` have one.

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::pool::Statement;
use super::store::{Answers, Bind, get, unexpected};
use super::together::Question;
use super::{GrantId, HOLD_GROUP, Key, LockError, PROTOCOL, SessionId, Store, Token, Wish};

const TAKE: Statement = Statement { name: "take", sql: include_str!("sql/take.sql") };
const TAKE_MANY: Statement = Statement { name: "take", sql: include_str!("sql/take_many.sql") };
const LOOK: Statement = Statement { name: "look", sql: include_str!("sql/look.sql") };
const LOOK_MANY: Statement = Statement { name: "look", sql: include_str!("sql/look_many.sql") };
const FREE: Statement = Statement { name: "free", sql: include_str!("sql/free.sql") };
const FREE_MANY: Statement = Statement { name: "free", sql: include_str!("sql/free_many.sql") };

/// The protocol as the database knows it.
fn protocol() -> i32 {
    i32::try_from(PROTOCOL).unwrap_or(i32::MAX)
}

/// A wish to take a key.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) own: SessionId,
    pub(super) wish: Wish,
    pub(super) delay_ms: i64,
}

impl Taking {
    /// The first arguments of each statement for one wish.
    pub(super) fn bind(&self) -> Result<Bind, LockError> {
        let Wish { key, owner, request, reason, .. } = &self.wish;
        Bind::new()
            .with(self.own.as_uuid())?
            .with(protocol())?
            .with(key.as_str())?
            .with(HOLD_GROUP)?
            .with(request.as_uuid())?
            .with(&owner.uid)?
            .with(&owner.namespace)?
            .with(&owner.name)?
            .with(reason)?
            .with(self.delay_ms)
    }

    fn bind_all(all: &[Self]) -> Result<Bind, LockError> {
        let texts = |text: fn(&Wish) -> &String| all.iter().map(|one| text(&one.wish)).collect::<Vec<_>>();
        Bind::new()
            .with(protocol())?
            .with(HOLD_GROUP)?
            .with(all.iter().map(|one| one.own.as_uuid()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.wish.key.as_str()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.wish.request.as_uuid()).collect::<Vec<_>>())?
            .with(texts(|wish| &wish.owner.uid))?
            .with(texts(|wish| &wish.owner.namespace))?
            .with(texts(|wish| &wish.owner.name))?
            .with(texts(|wish| &wish.reason))?
            .with(all.iter().map(|one| one.delay_ms).collect::<Vec<_>>())
    }
}

/// The token, if the key was free.
impl Question for Taking {
    type Answer = Option<Token>;

    const NAME: &'static str = TAKE.name;

    async fn send(store: &Store, questions: &[Self]) -> Result<Vec<Option<Token>>, LockError> {
        let asked = match questions {
            [question] => store.rows(TAKE, question.bind()?).await,
            questions => store.rows(TAKE_MANY, Self::bind_all(questions)?).await,
        };
        let rows = match asked {
            // There may be room for them one by one.
            Err(error) if error.is_out_of_locks() && questions.len() > 1 => Vec::new(),
            asked => asked?,
        };
        answers(questions.len(), &rows, None, |row| Ok(Some(Token::new(get(row, "token")?))))
    }
}

/// To look what has become of a wish.
#[derive(Debug)]
pub(super) struct Looking {
    pub(super) own: SessionId,
    pub(super) key: Key,
    pub(super) request: GrantId,
    /// Whether it is to wait for the key.
    pub(super) waits: bool,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Granted(Token),
    Held,
    Waiting,
    /// The long way finds out.
    Open,
}

impl Looking {
    fn bind(&self) -> Result<Bind, LockError> {
        Bind::new()
            .with(self.own.as_uuid())?
            .with(protocol())?
            .with(self.key.as_str())?
            .with(HOLD_GROUP)?
            .with(self.request.as_uuid())?
            .with(self.waits)
    }

    fn bind_all(all: &[Self]) -> Result<Bind, LockError> {
        Bind::new()
            .with(protocol())?
            .with(HOLD_GROUP)?
            .with(all.iter().map(|one| one.own.as_uuid()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.key.as_str()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.request.as_uuid()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.waits).collect::<Vec<_>>())
    }
}

impl Question for Looking {
    type Answer = Seen;

    const NAME: &'static str = LOOK.name;

    async fn send(store: &Store, questions: &[Self]) -> Result<Vec<Seen>, LockError> {
        let rows = match questions {
            [question] => store.rows(LOOK, question.bind()?).await?,
            questions => store.rows(LOOK_MANY, Self::bind_all(questions)?).await?,
        };
        answers(questions.len(), &rows, Seen::Open, |row| {
            Ok(match get::<Option<&str>>(row, "verdict")? {
                None => Seen::Open,
                Some("granted") => Seen::Granted(Token::new(get(row, "token")?)),
                Some("held") => Seen::Held,
                Some("waiting") => Seen::Waiting,
                Some(other) => return Err(unexpected("look", other)),
            })
        })
    }
}

/// A wish to give a key up.
#[derive(Debug)]
pub(super) struct Freeing {
    /// Nobody's, if it is done by force.
    pub(super) own: Option<SessionId>,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) reason: String,
    /// By which a repetition is recognised, should an answer be lost on the way.
    pub(super) id: Uuid,
    /// A crash of the server may take it back: the program finds that out, and does it again.
    pub(super) repaired: bool,
}

impl Freeing {
    /// The first arguments of each statement for one key.
    pub(super) fn bind(&self) -> Result<Bind, LockError> {
        Bind::new()
            .with(self.own.map(SessionId::as_uuid))?
            .with(protocol())?
            .with(self.key.as_str())?
            .with(HOLD_GROUP)?
            .with(self.token.get())?
            .with(&self.reason)?
            .with(self.id)
    }

    fn bind_all(all: &[Self]) -> Result<Bind, LockError> {
        Bind::new()
            .with(protocol())?
            .with(HOLD_GROUP)?
            .with(all.iter().map(|one| one.own.map(SessionId::as_uuid)).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.key.as_str()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.token.get()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.reason.as_str()).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.id).collect::<Vec<_>>())?
            .with(all.iter().all(|one| one.repaired))
    }
}

/// Whether it is done. If not, the long way finds out why.
impl Question for Freeing {
    type Answer = bool;

    const NAME: &'static str = FREE.name;

    async fn send(store: &Store, questions: &[Self]) -> Result<Vec<bool>, LockError> {
        let rows = match questions {
            [question] => store.rows(FREE, question.bind()?.with(question.repaired)?).await?,
            questions => store.rows(FREE_MANY, Self::bind_all(questions)?).await?,
        };
        answers(questions.len(), &rows, false, |_| Ok(true))
    }
}

/// In the order of the questions; `none` where there is no row.
fn answers<T: Clone>(
    count: usize,
    rows: &[PgRow],
    none: T,
    read: impl Fn(&PgRow) -> Result<T, LockError>,
) -> Result<Vec<T>, LockError> {
    let mut answers = Answers::new(count);
    for row in rows {
        answers.put(row, read(row)?)?;
    }
    Ok(answers.or(&none))
}
