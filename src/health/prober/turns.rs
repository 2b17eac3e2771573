//! The turns for which a waiting probe stands.
//!
//! Only a few probes of one target wait at a time, however long its timeout. A turn at which no further one is sent
//! counts like a probe all the same: the pod has been asked, this process listens, and nothing has come. If the probe
//! that stands for the turn is not answered, neither was the turn. If it is answered, the skipped turn is not counted.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;

/// What a probe stands for.
#[derive(Debug)]
pub(super) struct Turns(Mutex<Record>);

#[derive(Debug)]
struct Record {
    sent: bool,
    /// The last turn, by its sequence number: the probe's own at first.
    last: u64,
    /// The last of the other turns, with their times.
    others: VecDeque<(u64, Duration)>,
}

impl Turns {
    /// Of a probe with this sequence number that is not sent yet.
    pub(super) fn of(seq: u64) -> Self {
        Self(Mutex::new(Record { sent: false, last: seq, others: VecDeque::new() }))
    }

    /// The probe was sent.
    pub(super) fn sent(&self) {
        self.0.lock().sent = true;
    }

    /// Lets the probe stand for a turn at `at`; of several, for the last `most`. Returns false if the probe has not
    /// been sent.
    pub(super) fn add(&self, seq: u64, at: Duration, most: usize) -> bool {
        let mut record = self.0.lock();
        if !record.sent {
            return false;
        }
        record.last = seq;
        record.others.push_back((seq, at));
        let surplus = record.others.len().saturating_sub(most);
        record.others.drain(..surplus);
        true
    }

    /// The last turn.
    pub(super) fn last(&self) -> u64 {
        self.0.lock().last
    }

    /// The turns besides the probe's own.
    pub(super) fn others(&self) -> Vec<(u64, Duration)> {
        self.0.lock().others.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_stands_for_the_last_turns_once_it_was_sent() {
        let turns = Turns::of(7);
        let at = Duration::from_secs;
        assert!(!turns.add(8, at(8), 2), "nobody has asked the pod");
        assert_eq!((turns.last(), turns.others()), (7, vec![]));
        turns.sent();
        for second in 9..=11 {
            assert!(turns.add(second, at(second), 2));
        }
        assert_eq!((turns.last(), turns.others()), (11, vec![(10, at(10)), (11, at(11))]));
    }
}
