//! The books: whether an old holder wrote after a new one, and whether acknowledgements and reads match the books.
//!
//! Each entry has a version that was counted up in its own transaction, while the book's row was locked. So the
//! versions are in PostgreSQL's order of the transactions, and checks that go through them once suffice.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{client::Call, moment::Moment};

/// An entry of a book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in PostgreSQL's order.
    pub version: i64,
    /// The token under which it was written.
    pub token: i64,
    /// The pod that wrote it.
    pub pod: String,
    /// The client that asked for it.
    pub writer: String,
    /// The number that the client gave it.
    pub number: u64,
}

/// What a client asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Adds an entry.
    Write {
        /// The client.
        writer: String,
        /// Its number for it.
        number: u64,
    },
    /// Reads the newest version.
    Read,
}

/// An acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The pod.
    pub pod: String,
    /// Its token.
    pub token: i64,
    /// The version that was written or read.
    pub version: i64,
}

/// A request to a pod, with or without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it started.
    pub at: Moment,
    /// When the answer arrived, or the client gave up.
    pub end: Moment,
    /// What was asked for.
    pub act: Act,
    /// The acknowledgement; `None`: not known whether it was done.
    pub done: Option<Done>,
}

impl Operation {
    /// The request of a call to a book of this name; `None` if it was another one.
    pub fn of(call: &Call, book: &str) -> Option<Self> {
        let parts: Vec<&str> = call.path.trim_start_matches('/').split('/').collect();
        let act = match parts[..] {
            ["write", of, writer, number] if of == book => {
                Act::Write { writer: writer.to_owned(), number: number.parse().ok()? }
            }
            ["read", of] if of == book => Act::Read,
            _ => return None,
        };
        let done = call.answer.as_deref().ok().and_then(|answer| {
            let mut words = answer.split_whitespace();
            let pod = words.next()?.to_owned();
            Some(Done { pod, token: words.next()?.parse().ok()?, version: words.next()?.parse().ok()? })
        });
        Some(Self { at: call.at, end: call.end, act, done })
    }
}

/// The outcome of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// The entries.
    pub entries: usize,
    /// Acknowledged writes.
    pub written: usize,
    /// Answered reads.
    pub read: usize,
    /// Terms in which a write was acknowledged.
    pub terms: usize,
    /// Entries with a smaller token than one before them.
    pub fallen: Vec<String>,
    /// Acknowledged writes that are not there once as acknowledged, and writes that are there twice.
    pub wrong: Vec<String>,
    /// Answers that are older than what was known when the request began.
    pub stale: Vec<String>,
}

impl Audit {
    /// The number of violations.
    pub fn violations(&self) -> usize {
        self.fallen.len() + self.wrong.len() + self.stale.len()
    }
}

/// Checks a book against what its clients were told.
pub fn audit(entries: &[Entry], operations: &[Operation]) -> Audit {
    let mut out = Audit { entries: entries.len(), ..Audit::default() };
    let mut in_order: Vec<&Entry> = entries.iter().collect();
    in_order.sort_by_key(|entry| entry.version);
    let mut largest = i64::MIN;
    for entry in &in_order {
        if entry.token < largest {
            let Entry { version, token, pod, .. } = entry;
            out.fallen
                .push(format!("version {version} was written by {pod} with token {token} after {largest}"));
        }
        largest = largest.max(entry.token);
    }
    let mut requests: BTreeMap<(&str, u64), Vec<&Entry>> = BTreeMap::new();
    for entry in in_order {
        requests.entry((&entry.writer, entry.number)).or_default().push(entry);
    }
    for ((writer, number), found) in requests.iter().filter(|(_, found)| found.len() > 1) {
        out.wrong.push(format!("{number} of {writer} is there {} times", found.len()));
    }
    let known = Known::new(operations);
    let mut terms: Vec<i64> = Vec::new();
    for Operation { at, act, done, .. } in operations {
        let Some(done) = done else { continue };
        let known = known.at(*at);
        match act {
            Act::Write { writer, number } => {
                out.written += 1;
                terms.push(done.token);
                let found = requests.get(&(writer.as_str(), *number)).and_then(|found| found.first());
                let right = found.is_some_and(|entry| {
                    (entry.version, entry.token, &entry.pod) == (done.version, done.token, &done.pod)
                });
                if !right {
                    out.wrong
                        .push(format!("{number} of {writer} was acknowledged as {done:?}, and is {found:?}"));
                }
                if done.version <= known {
                    out.stale
                        .push(format!("a write at {at} has version {}, and {known} was known", done.version));
                }
            }
            Act::Read => {
                out.read += 1;
                if done.version < known {
                    let Done { pod, version, .. } = done;
                    out.stale.push(format!("{pod} read version {version} at {at}, and {known} was known"));
                }
            }
        }
    }
    terms.sort_unstable();
    terms.dedup();
    out.terms = terms.len();
    out
}

/// The newest version that had been acknowledged, by time.
struct Known(Vec<(Moment, i64)>);

impl Known {
    fn new(operations: &[Operation]) -> Self {
        let ended = operations.iter().filter_map(|it| Some((it.end, it.done.as_ref()?.version)));
        let mut ended: Vec<(Moment, i64)> = ended.collect();
        ended.sort_unstable();
        let mut newest = 0;
        for (_, version) in &mut ended {
            newest = newest.max(*version);
            *version = newest;
        }
        Self(ended)
    }

    /// What had been acknowledged before a moment.
    fn at(&self, moment: Moment) -> i64 {
        let before = self.0.partition_point(|(end, _)| *end < moment);
        before.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::default().plus(Duration::from_millis(ms))
    }

    fn entry(version: i64, token: i64, pod: &str, number: u64) -> Entry {
        Entry { version, token, pod: pod.into(), writer: "w".into(), number }
    }

    /// The same entry, as its writer was told.
    fn write(at: u64, entry: &Entry) -> Operation {
        let Entry { version, token, pod, writer, number } = entry.clone();
        let act = Act::Write { writer, number };
        Operation { at: ms(at), end: ms(at + 10), act, done: Some(Done { pod, token, version }) }
    }

    fn read(at: u64, version: i64) -> Operation {
        let done = Some(Done { pod: "a".into(), token: 1, version });
        Operation { at: ms(at), end: ms(at + 10), act: Act::Read, done }
    }

    fn clean() -> (Vec<Entry>, Vec<Operation>) {
        let entries = vec![entry(3, 2, "b", 4), entry(1, 1, "a", 1), entry(2, 1, "a", 2)];
        let lost = Operation { done: None, ..write(5, &entry(9, 1, "a", 3)) };
        let unknown = Operation { done: None, ..write(30, &entries[2]) };
        let operations = vec![
            write(0, &entries[1]),
            lost,
            unknown,
            write(60, &entries[0]),
            read(5, 0),
            read(45, 2),
            read(90, 3),
        ];
        (entries, operations)
    }

    #[test]
    fn clean_books_are_clean() {
        let (entries, operations) = clean();
        let expected = Audit { entries: 3, written: 2, read: 3, terms: 2, ..Audit::default() };
        assert_eq!(audit(&entries, &operations), expected);
    }

    #[test]
    fn a_write_of_an_old_holder_is_found() {
        let (mut entries, operations) = clean();
        entries.extend([entry(4, 1, "a", 7), entry(5, 1, "a", 8)]);
        let found = audit(&entries, &operations);
        assert_eq!((found.fallen.len(), found.violations()), (2, 2));
    }

    #[test]
    fn a_write_that_was_acknowledged_must_be_there_once() {
        let (mut entries, operations) = clean();
        let lost = audit(&entries[1..], &operations);
        assert_eq!((lost.wrong.len(), lost.violations()), (1, 1));
        entries.push(entry(4, 2, "b", 4));
        assert_eq!(audit(&entries, &operations).wrong.len(), 1, "it is there twice");
        entries[0].version = 5;
        entries.pop();
        assert_eq!(audit(&entries, &operations).wrong.len(), 1, "it was acknowledged as another version");
    }

    #[test]
    fn a_write_that_was_not_acknowledged_must_not_be_there_twice() {
        let (mut entries, operations) = clean();
        entries.push(entry(4, 2, "b", 2));
        assert_eq!(audit(&entries, &operations).wrong.len(), 1);
    }

    #[test]
    fn an_answer_that_is_older_than_what_was_known_is_stale() {
        let (entries, operations) = clean();
        let stale = |operation| {
            let all = [operations.clone(), vec![operation]].concat();
            audit(&entries, &all).stale.len()
        };
        // The write of version 1 ended at 10, a read of version 2 at 55, and the write of version 3 at 70.
        assert_eq!(stale(read(10, 0)), 0, "both at the same time");
        assert_eq!(stale(read(11, 0)), 1);
        assert_eq!(stale(read(56, 1)), 1, "another client had read a newer version");
        assert_eq!(stale(read(71, 2)), 1);
        assert_eq!(stale(write(71, &entries[2])), 1, "a write is newer than what was known");
    }

    #[test]
    fn a_slow_answer_that_is_older_does_not_hide_what_was_known() {
        let (entries, mut operations) = clean();
        // It began before the write of version 3 ended.
        operations.push(Operation { end: ms(86), ..read(56, 2) });
        assert_eq!(audit(&entries, &operations).stale.len(), 0);
        operations.push(read(87, 2));
        assert_eq!(audit(&entries, &operations).stale.len(), 1);
    }

    #[test]
    fn a_call_of_another_book_is_no_operation() {
        let call = |path: &str, answer: Result<&str, &str>| Call {
            path: path.into(),
            ..Call::through_any(ms(0), ms(10), answer.map(str::to_owned).map_err(str::to_owned))
        };
        let write = call("/write/fenced/w/1", Ok("a 1 1"));
        assert_eq!(Operation::of(&write, "fenced"), Some(super::tests::write(0, &entry(1, 1, "a", 1))));
        assert_eq!(Operation::of(&write, "plain"), None);
        assert_eq!(Operation::of(&call("/read/plain", Ok("a 1 7")), "plain"), Some(read(0, 7)));
        let refused = Operation::of(&call("/read/plain", Err("status 503")), "plain");
        assert_eq!(refused, Some(Operation { done: None, ..read(0, 0) }));
        assert_eq!(Operation::of(&call("/", Ok("a")), "plain"), None);
    }
}
