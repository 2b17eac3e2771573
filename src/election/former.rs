//! What this replica knows of the programs of former terms.

use std::time::Duration;

use crate::api::{Declaration, Former, FormerRun, Run};

/// What was seen of the programs of former terms. It is kept while the owner changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    /// The time of the last step.
    pub(super) now: Duration,
    /// Since when the declaration has said nothing of a former program: since the group was first seen, or since
    /// somebody removed it.
    unknown: Option<Duration>,
    /// The former program, and when a declaration of a later term was first seen.
    superseded: Option<(FormerRun, Duration)>,
    /// The declared program that may start, by its token, and since when this is known.
    cleared: Option<(i64, Duration)>,
    /// The declared token for which the declaration was read again, because its holder seemed to lack a program.
    pub(super) read_for: Option<i64>,
    /// Those programs of the present and the former term that are over, by the word of their agents or the kubelet. The
    /// pods that said so may be gone.
    pub(super) over: Vec<FormerRun>,
}

impl Programs {
    /// A declaration was seen. It may be older than others that were seen before.
    pub(super) fn see(&mut self, declared: &Declaration) {
        let now = self.now;
        if matches!(declared.former_of_next(), Former::Anyone) {
            self.unknown.get_or_insert(now);
        } else {
            self.unknown = None;
        }
        if let Some(run) = declared.program().filter(|run| run.cleared)
            && self.cleared.is_none_or(|(token, _)| token < run.token)
        {
            self.cleared = Some((run.token, now));
        }
        let Former::One(run) = declared.former() else { return };
        // The tokens of former programs only grow.
        if self.superseded.as_ref().is_none_or(|(known, _)| known.token < run.token) {
            self.superseded = Some((run, now));
        }
    }

    /// The lock knows of a later term than the declaration that was just read: somebody may have removed the
    /// declaration of that term, and the watch may have missed it.
    pub(super) fn missed_one(&mut self, now: Duration) {
        self.unknown = Some(now);
    }

    /// When this program, which may start, should have started: an agent reads the declaration three times a lease.
    pub(super) fn late_at(&self, run: &Run) -> Option<Duration> {
        let since = self.cleared.filter(|(token, _)| *token == run.token).map(|(_, since)| since);
        since.map(|since| since + run.lease)
    }

    /// When the lease of this program is over, whatever became of it.
    pub(super) fn lapses_at(&self, former: &Former) -> Option<Duration> {
        let since = match former {
            Former::Over => None,
            Former::Anyone => self.unknown,
            Former::One(run) => self.superseded.as_ref().filter(|(known, _)| known == run).map(|(_, at)| *at),
        };
        since.map(|since| since + former.wait())
    }
}
