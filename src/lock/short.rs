//! The short ways to take a key and to give it up, for what is asked most: a key that nobody holds, is held, or nobody waits
//! for. They lock nothing but the key's row, never wait for anything else, and can be gone together. Where they have no answer
//! the functions of `migrations/0003_waiters.sql` have one.

use uuid::Uuid;

use super::pool::Statement;
use super::store::{Answers, Bind, get, unexpected};
use super::together::Question;
use super::{HOLD_GROUP, Key, LockError, PROTOCOL, SessionId, Store, Token, Wish};

const TAKE: Statement = Statement { name: "take", sql: include_str!("sql/take.sql") };
const TAKE_MANY: Statement = Statement { name: "take", sql: include_str!("sql/take_many.sql") };
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
    /// Whether to queue up if it is not to be had.
    pub(super) queue: bool,
}

/// What the short way has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Granted(Token),
    Held,
    Waiting,
    /// The long way finds out.
    Open,
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
            .with(self.delay_ms)?
            .with(self.queue)
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
            .with(all.iter().map(|one| one.delay_ms).collect::<Vec<_>>())?
            .with(all.iter().map(|one| one.queue).collect::<Vec<_>>())
    }
}

impl Question for Taking {
    type Answer = Taken;

    const NAME: &'static str = TAKE.name;

    async fn send(store: &Store, questions: &[Self]) -> Result<Vec<Taken>, LockError> {
        let taken = |row: &sqlx::postgres::PgRow| {
            Ok(match get::<Option<&str>>(row, "verdict")? {
                None => Taken::Open,
                Some("granted") => Taken::Granted(Token::new(get(row, "token")?)),
                Some("held") => Taken::Held,
                Some("waiting") => Taken::Waiting,
                Some(other) => return Err(unexpected("take", other)),
            })
        };
        if let [question] = questions {
            let rows = store.rows(TAKE, question.bind()?).await?;
            return rows.iter().map(taken).collect();
        }
        let mut answers = Answers::new(questions.len());
        for row in &store.rows(TAKE_MANY, Self::bind_all(questions)?).await? {
            answers.put(row, taken(row)?)?;
        }
        answers.finish()
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
        if let [question] = questions {
            let bind = question.bind()?.with(question.repaired)?;
            return Ok(vec![!store.rows(FREE, bind).await?.is_empty()]);
        }
        let mut done = vec![false; questions.len()];
        for row in &store.rows(FREE_MANY, Self::bind_all(questions)?).await? {
            let place = usize::try_from(get::<i64>(row, "place")? - 1).ok();
            let slot = place.and_then(|place| done.get_mut(place));
            *slot.ok_or_else(|| unexpected("free", "a place out of range"))? = true;
        }
        Ok(done)
    }
}
