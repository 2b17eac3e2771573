//! Programs that hold the key `a` themselves: what they ask, and what they are answered.

use leadergroup_lock::{Acquired, Changed, SessionId, Store, Token, Wish};

use crate::cast::{key, owner};

pub fn wish(who: &str) -> Wish {
    Wish::new(key("a"), owner(who), "work to do")
}

pub fn granted(token: i64) -> Acquired {
    Acquired::Granted { token: Token::new(token) }
}

pub async fn release(store: &Store, own: SessionId, token: i64) -> Changed {
    store.release(own, &key("a"), Token::new(token), "done").await.unwrap()
}
