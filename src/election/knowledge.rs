//! What this replica knows of the term: the lock's row and the declaration, as last read or made.

use super::world::Row;
use crate::api::{Declaration, PodRef};

/// The lock's row, the declaration, and whether they may be out of date.
#[derive(Clone, Debug)]
pub(super) struct Knowledge {
    /// As last read, or changed by this replica.
    pub(super) row: Row,
    /// As last read, or made by this replica.
    pub(super) declared: Declaration,
    /// Whether the row may have changed without our doing since it was last read.
    pub(super) doubted: bool,
    /// A stamp above the declared token, seen before the declaration was read last.
    pub(super) suspect: Option<i64>,
}

impl Knowledge {
    /// Before anything was read, the declaration is what the watch shows.
    pub(super) fn unread(declared: Declaration) -> Self {
        Self { row: Row::default(), declared, doubted: false, suspect: None }
    }

    /// Whether there is no unfinished term.
    pub(super) fn is_finished(&self) -> bool {
        self.unfinished_holder().is_none()
    }

    /// The holder of the unfinished term, if there is one.
    pub(super) fn unfinished_holder(&self) -> Option<&PodRef> {
        let finished = self.row.confirmed && self.declared.token == self.row.token;
        self.row.holder.as_ref().filter(|_| !finished)
    }

    /// Whether the declaration is of a later term than the row, or of another one with the same token.
    pub(super) fn is_behind(&self) -> bool {
        // The grant id of a free row is that of the release, which is not declared.
        let has_ended = self.row.holder.is_none() && self.row.grant.is_some();
        let same_term = self.declared.grant.is_none() || self.same_grant() || has_ended;
        self.declared.token > self.row.token
            || (self.declared.token == self.row.token && self.declared.token > 0 && !same_term)
    }

    /// The row is behind: its term is not the present one.
    pub(super) fn forget_term(&mut self) {
        (self.row.confirmed, self.row.grant) = (false, None);
        let former = self.row.holder.take();
        self.row.pending.extend(former);
    }

    /// Whether the declaration is of the confirmed term in the row. With two databases it may be of another term that
    /// has the same token. The row of a free lock has the token of the last term, but not its grant.
    pub(super) fn is_confirmed(&self) -> bool {
        self.row.confirmed
            && self.declared.token == self.row.token
            && self.declared.holder == self.row.holder
            && self.same_grant()
    }

    fn same_grant(&self) -> bool {
        self.declared.grant == self.row.grant.map(|grant| grant.to_string())
    }

    /// Whether declaration and row, read again, are still what is known.
    pub(super) fn stands(&self, declared: Option<&Declaration>, row: Option<&Row>) -> bool {
        declared == Some(&self.declared)
            && row.is_some_and(|row| row.token == self.row.token && row.holder == self.row.holder)
    }

    /// The pods that may have been active before the declared term.
    pub(super) fn former(&self) -> impl Iterator<Item = &PodRef> {
        self.declared.strip.iter().chain(&self.row.pending)
    }

    /// The UID of the row's holder; empty if there is none.
    pub(super) fn holder_uid(&self) -> &str {
        self.row.holder.as_ref().map_or("", |pod| &pod.uid)
    }
}
