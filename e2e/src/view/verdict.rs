//! What the records of a fleet's clients show.

use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{ledger::Audit, overlap::Overlaps};

/// The verdict on one group.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Which pods served when.
    pub served: Overlaps,
    /// The book whose transactions begin with the fence.
    pub fenced: Audit,
    /// The book without it.
    pub control: Audit,
    /// Clients that never got an answer.
    pub silent: Vec<String>,
    /// Writes and reads that the fence refused.
    pub refused: usize,
}

impl Verdict {
    /// Fails if a promise was broken, or if the record shows nothing.
    pub fn ensure(&self) -> Result<()> {
        let Self { served, fenced, silent, .. } = self;
        ensure!(served.violations.is_empty(), "what clients saw: {:?}; {self}", served.violations);
        ensure!(
            fenced.fallen.is_empty(),
            "an old holder wrote in spite of the fence: {:?}; {self}",
            fenced.fallen
        );
        ensure!(fenced.wrong.is_empty(), "acknowledged writes: {:?}; {self}", fenced.wrong);
        ensure!(fenced.stale.is_empty(), "stale answers: {:?}; {self}", fenced.stale);
        ensure!(silent.is_empty(), "these clients never got an answer: {silent:?}");
        ensure!(fenced.terms > 1, "writes were acknowledged in {} terms, which shows nothing", fenced.terms);
        Ok(())
    }

    /// Whether the control shows a write of an old holder. If it does not, the fenced book proves nothing: it would
    /// have been right without the fence.
    pub fn is_proof(&self) -> bool {
        !self.control.fallen.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { served, fenced, control, refused, .. } = self;
        write!(
            f,
            "{} changes seen by clients ({} answers through new connections, {} through kept ones), two pods served for \
             {} ms at most, through kept connections for {} ms, where exempt for {} ms, \
             {} answers at a reused address; {} fenced writes in {} terms, {} reads, {refused} refused; ",
            served.changes.len(),
            served.opened,
            served.kept,
            served.longest().as_millis(),
            served.longest_kept().as_millis(),
            served.longest_exempt().as_millis(),
            served.strange,
            fenced.written,
            fenced.terms,
            fenced.read,
        )?;
        if self.is_proof() {
            write!(
                f,
                "without the fence {} writes of old holders and {} stale answers",
                control.fallen.len(),
                control.stale.len()
            )
        } else {
            write!(f, "nothing was wrong without the fence, so this run proves nothing about the fence")
        }
    }
}
