//! What programs are told by their hooks.

use std::collections::BTreeMap;

use serde_json::Value;

/// Every so many requests a program refuses one.
const REFUSES_EVERY: u32 = 5;

/// What the program in a pod was told.
#[derive(Debug, Default)]
pub struct Told {
    /// The last request that counts, if there was one since the program started: the token, and whether the pod is
    /// active.
    last: Option<(i64, bool)>,
    /// The role by token, of all requests to the pod.
    all: BTreeMap<i64, bool>,
    requests: u32,
    /// Tokens under which it was told both roles.
    contradictions: Vec<i64>,
}

impl Told {
    /// The program has ended, and knows nothing when it is started again.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// A request to a hook. Returns whether the program accepts it: while programs refuse some, not each one.
    pub fn hear(&mut self, path: &str, body: &[u8], refuses: bool) -> bool {
        let body: Value = serde_json::from_slice(body).expect("the body is JSON");
        let token = body["token"].as_i64().expect("a token");
        let active = body["role"] == "active";
        assert_eq!(path, if active { "/promote" } else { "/demote" }, "{body}");
        if self.all.insert(token, active).is_some_and(|before| before != active) {
            self.contradictions.push(token);
        }
        self.requests += 1;
        if refuses && self.requests.is_multiple_of(REFUSES_EVERY) {
            return false;
        }
        if self.last.is_none_or(|(last, _)| token >= last) {
            self.last = Some((token, active));
        }
        true
    }

    /// Whether it acts as the active one.
    pub fn is_active(&self) -> bool {
        self.last.is_some_and(|(_, active)| active)
    }

    pub fn requests(&self) -> u32 {
        self.requests
    }

    pub fn contradictions(&self) -> &[i64] {
        &self.contradictions
    }
}
