//! Programs that hold the key `a` themselves: what they ask, and what they are answered.

use leadergroup_lock::{AcquireRequest, Acquired, Changed, SessionId, Store, Token};

use crate::cast::{holder, key};

pub fn wish(who: &str) -> AcquireRequest {
    AcquireRequest::new(key("a"), holder(who), "work to do")
}

pub fn granted(token: i64) -> Acquired {
    Acquired::Granted { token: Token::new(token) }
}

pub async fn release(store: &Store, own: SessionId, token: i64) -> Changed {
    store.release(own, &key("a"), Token::new(token), "done").await.unwrap()
}
