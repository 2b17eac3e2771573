//! Programs that hold the key `a` directly: their requests and the answers.

use leadergroup_lock::{
    Changed, SessionId, Store, Token,
    protocol::{AcquireRequest, Acquired, Wait},
};

use crate::cast::{holder, key};

pub fn wish(who: &str) -> AcquireRequest {
    AcquireRequest::new(key("a"), holder(who), "work to do")
}

pub fn granted(token: i64) -> Acquired {
    Acquired::Granted { token: Token::new(token) }
}

/// The token that was granted.
pub fn token_of(answer: &Acquired) -> Token {
    let Acquired::Granted { token } = answer else { panic!("{answer:?}") };
    *token
}

/// Tries to acquire the key.
pub async fn acquire(store: &Store, own: SessionId, request: &AcquireRequest) -> Acquired {
    store.acquire(own, request, Wait::No).await.unwrap().outcome
}

/// Acquires the key, or queues up for it; a repetition checks whether the request has been granted.
pub async fn queue(store: &Store, own: SessionId, request: &AcquireRequest) -> Acquired {
    store.acquire(own, request, Wait::InQueue).await.unwrap().outcome
}

pub async fn release(store: &Store, own: SessionId, token: i64) -> Changed {
    store.release(own, &key("a"), Token::new(token), "done").await.unwrap()
}
