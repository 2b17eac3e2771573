//! Output of a history: a line for people, and a dump for debugging.

use std::{
    fmt, fs,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{Checked, History};

impl fmt::Display for Checked {
    /// `1 active at every revision (1234 revisions checked)`, or the violations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.violations.is_empty() {
            return write!(
                f,
                "{} active at every revision ({} revisions checked)",
                self.most_active, self.revisions
            );
        }
        writeln!(f, "{} violations in {} revisions:", self.violations.len(), self.revisions)?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

impl Checked {
    /// Fails with a list of the violations, if there are any, and writes the history to `dump`.
    pub fn ok_or_dump(&self, history: &History, dump: &Path) -> Result<()> {
        if self.violations.is_empty() {
            return Ok(());
        }
        history.dump(dump)?;
        anyhow::bail!("{self}the history is in {}", dump.display())
    }
}

impl History {
    /// Writes the history as one JSON object per line: the changes in order, then the terms, the faults and
    /// the deadlines.
    pub fn dump(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let file = fs::File::create(path).with_context(|| format!("creating {}", path.display()))?;
        let mut out = BufWriter::new(file);
        for change in &self.changes {
            let object: serde_json::Value = serde_json::from_str(&change.raw).unwrap_or_default();
            let line = json!({
                "revision": change.revision, "seen": change.seen, "seenAt": change.seen_at.to_string(),
                "id": change.id, "deleted": change.state.is_none(), "object": object,
            });
            writeln!(out, "{line}")?;
        }
        for term in self.terms.iter().flatten() {
            writeln!(out, "{}", json!({ "term": term }))?;
        }
        for fault in self.faults.iter().flatten() {
            writeln!(out, "{}", json!({ "fault": fault }))?;
        }
        for deadline in &self.deadlines {
            writeln!(out, "{}", json!({ "deadline": deadline }))?;
        }
        out.flush().with_context(|| format!("writing {}", path.display()))
    }
}
