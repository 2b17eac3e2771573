//! The view of a group's clients: which pods serve at the same moment, and what they write.
//!
//! [`ServeArgs`] is the program of the group's pods. It answers with the pod's name, and writes to PostgreSQL, once
//! with the fence and once without. A [`Fleet`] calls it through the Service from every node, with new and with kept
//! connections. Two pure functions judge the records: [`overlaps`] finds the time in which two pods served, and
//! [`audit`] finds writes of an old holder, lost writes and stale reads. The book without the fence is the control: if
//! nothing is wrong in it, the fenced book proves nothing.

mod books;
mod fleet;
mod ledger;
mod overlap;
mod program;
mod recorded;
mod tables;
mod verdict;

pub use fleet::{Fleet, deployment};
pub use ledger::{Act, Audit, Done, Entry, Operation, audit};
pub use overlap::{Exempt, Limits, Overlap, Overlaps, Record, Term, Trouble, overlaps};
pub use program::ServeArgs;
pub use verdict::Verdict;
