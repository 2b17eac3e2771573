//! What this replica knows of the programs of former terms.

use std::time::Duration;

use crate::api::{Declaration, Former, FormerRun};

/// What was seen of the programs of former terms. It is kept while the owner changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    /// The present.
    pub(super) now: Duration,
    /// When the group was first seen.
    seen: Option<Duration>,
    /// The former program, and when a declaration of a later term was first seen.
    superseded: Option<(FormerRun, Duration)>,
    /// Those programs of the present and the former term that are over, by the word of their agents or the kubelet. The
    /// pods that said so may be gone.
    pub(super) over: Vec<FormerRun>,
}

impl Programs {
    /// A declaration was seen. It may be older than others that were seen before.
    pub(super) fn see(&mut self, declared: &Declaration) {
        let now = self.now;
        self.seen.get_or_insert(now);
        let Former::One(run) = declared.former() else { return };
        // The tokens of former programs only grow.
        if self.superseded.as_ref().is_none_or(|(known, _)| known.token < run.token) {
            self.superseded = Some((run, now));
        }
    }

    /// When the lease of this program is over, whatever became of it.
    pub(super) fn lapses_at(&self, former: &Former) -> Option<Duration> {
        let since = match former {
            Former::Over => None,
            Former::Anyone => self.seen,
            Former::One(run) => self.superseded.as_ref().filter(|(known, _)| known == run).map(|(_, at)| *at),
        };
        since.map(|since| since + former.wait())
    }
}
