//! Terms under which no pod can have become active.
//!
//! Only the replica that was granted a term promotes a pod under it: a replica that finds an unfinished term of another
//! one begins a new term. So a replica knows of its own terms whether a promotion took effect or may still do so. After
//! a term without one, nothing has to be written to its holder, not even if the API server would refuse that.

use crate::api::Declaration;

/// The terms that were granted to this replica since the last confirmed one, and under which no promotion took effect
/// or is on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct UnusedTerms {
    terms: Vec<Term>,
    /// The term whose promotion has not been answered. Until then it may take effect.
    asked: Option<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    grant: String,
    /// The UID of the holder.
    pod: String,
    /// Whether no other term can have made the holder active either.
    fresh: bool,
}

impl UnusedTerms {
    /// A term was granted to this replica. `fresh` says that no earlier term can have made the pod active.
    pub(super) fn granted(&mut self, grant: String, pod: &str, fresh: bool) {
        self.terms.push(Term { grant, pod: pod.to_owned(), fresh });
    }

    /// The declaration was read. A term of another replica, which uses another database, may have made the pods active
    /// that it names.
    pub(super) fn read(&mut self, declared: &Declaration) {
        if !self.has(declared.grant.as_deref()) {
            let named = |uid: &str| declared.holder.iter().chain(&declared.strip).any(|pod| pod.uid == uid);
            self.terms.iter_mut().for_each(|term| term.fresh &= !named(&term.pod));
        }
    }

    /// The holder is being promoted.
    pub(super) fn promoting(&mut self, grant: Option<&str>) {
        let at = self.terms.iter().position(|term| Some(term.grant.as_str()) == grant);
        self.asked = at.map(|at| self.terms.remove(at));
    }

    /// The API server has refused the promotion, or found another version of the pod: nothing was written.
    pub(super) fn nothing_written(&mut self) {
        self.terms.extend(self.asked.take());
    }

    /// A term was confirmed, or the replica is no longer the owner.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether no promotion of this grant took effect or still may.
    pub(super) fn has(&self, grant: Option<&str>) -> bool {
        self.terms.iter().any(|term| Some(term.grant.as_str()) == grant)
    }

    /// Whether none of the terms since the last confirmed one can have made this pod active.
    pub(super) fn spare(&self, pod: &str) -> bool {
        let asked = self.asked.as_ref().is_some_and(|term| term.pod == pod);
        let mut terms = self.terms.iter().filter(|term| term.pod == pod).peekable();
        !asked && terms.peek().is_some() && terms.all(|term| term.fresh)
    }
}
