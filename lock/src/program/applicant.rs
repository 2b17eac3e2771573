//! One holder of a process: what it asks with, and the terms that it has.

use std::sync::{Arc, Weak};

use crate::program::guard::Guard;
use crate::program::held_term::{HeldTerm, SharedTerms};
use crate::program::unfinished::Unfinished;
use crate::session::process::Process;
use crate::{
    ClientConfig, Holder, Key, Token,
    protocol::{AcquireRequest, EraId},
};

/// Asks for keys on behalf of one holder. Clones are the same holder.
#[derive(Clone)]
pub(crate) struct Applicant {
    pub(crate) process: Arc<Process>,
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) holder: Holder,
    /// The terms that this holder may share.
    shared: SharedTerms,
}

impl Applicant {
    /// A holder that has no terms.
    pub(crate) fn new(process: Arc<Process>, config: ClientConfig, holder: Holder) -> Self {
        Self { process, config: Arc::new(config), holder, shared: SharedTerms::default() }
    }

    /// Another holder of the same process.
    pub(crate) fn another(&self, name: &str) -> Self {
        let uid = uuid::Uuid::new_v4().to_string();
        let holder = Holder { uid, name: name.to_owned(), ..self.holder.clone() };
        Self { holder, shared: SharedTerms::default(), ..self.clone() }
    }

    pub(crate) fn request(&self, key: &Key) -> AcquireRequest {
        let request = AcquireRequest::new(key.clone(), self.holder.clone(), self.config.reason.clone());
        AcquireRequest { lock_delay: self.config.lock_delay, ..request }
    }

    /// Returns a guard for a request that was granted in this era, if the grant still counts.
    pub(crate) fn hold(
        &self,
        unfinished: &mut Unfinished,
        era: Option<EraId>,
        request: &AcquireRequest,
        token: Token,
    ) -> Option<Guard> {
        let (session, key) = (unfinished.session, &request.key);
        if !self.process.covers(session) {
            return None;
        }
        tracing::debug!(%key, %token, holder = %self.holder.name, "the lock is held");
        let shared = self.config.reentrant.then(|| self.shared.clone());
        let term = HeldTerm::new(unfinished, self.holder.name.clone(), token, self.config.max_hold, shared);
        // From now on, the term is checked when the era changes. If the era changed just before, the grant may be lost;
        // or the grant came from another server than the heartbeat's answer.
        let weak: Weak<HeldTerm> = Arc::downgrade(&term);
        self.process.terms.enter(request.grant, weak);
        if Some(self.process.lease.borrow().era) != era {
            self.process.store.database.pool.forget();
            return None;
        }
        if self.config.reentrant {
            self.shared.enter(key, &term);
        }
        Some(Guard::new(term))
    }

    /// Another guard for the key, if this holder already has it and is reentrant.
    pub(crate) fn again(&self, key: &Key) -> Option<Guard> {
        Guard::again(self.shared.get(key)?)
    }
}
