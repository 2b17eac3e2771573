//! The answer of an agent to its probe.

use leadergroup_agent::answer::Answer;
use parking_lot::Mutex;

use crate::api::{LARGEST_TOKEN, Promise};

/// The path of the answer.
pub(super) const PATH: &str = "/answer";

/// The last answer of a target whose signature was checked. Agents repeat an answer until something changes, and
/// checking a signature is expensive beside the rest of a probe.
#[derive(Debug, Default)]
pub(in crate::health) struct Checked(Mutex<Option<(Answer, Promise)>>);

impl Checked {
    /// What the agent promises in this answer; `None` if it is not an answer, or not signed with the key of its boot.
    pub(super) fn promise(&self, body: &[u8]) -> Option<Promise> {
        let answer: Answer = serde_json::from_slice(body).ok()?;
        let mut last = self.0.lock();
        if let Some((_, promise)) = last.as_ref().filter(|(known, _)| *known == answer) {
            return Some(*promise);
        }
        // No operator has declared a term above the largest token, or one below zero.
        let promise =
            answer.verified().ok().filter(|promise| (0..=LARGEST_TOKEN).contains(&promise.floor))?;
        *last = Some((answer, promise));
        Some(promise)
    }
}

#[cfg(test)]
mod tests {
    use leadergroup_agent::answer::Keys;

    use super::*;

    #[test]
    fn an_answer_counts_if_the_boot_that_it_names_has_signed_it_although_it_resembles_the_last_one() {
        let (checked, keys) = (Checked::default(), Keys::generate().expect("random numbers"));
        let text = |floor: i64, idle: bool| {
            let answer = keys.sign(Promise { boot: keys.boot(), floor, idle });
            serde_json::to_string(&answer).expect("JSON")
        };
        for (floor, idle) in [(7, false), (7, false), (8, true)] {
            let promise = checked.promise(text(floor, idle).as_bytes());
            assert_eq!(promise, Some(Promise { boot: keys.boot(), floor, idle }));
        }
        for forged in [text(8, true).replace(":8", ":9"), text(9, false).replace("false", "true")] {
            assert_eq!(checked.promise(forged.as_bytes()), None, "{forged}");
        }
        for absurd in [i64::MIN, -1, LARGEST_TOKEN + 1, i64::MAX] {
            assert_eq!(checked.promise(text(absurd, true).as_bytes()), None, "{absurd}");
        }
        for other in ["", "ok", "{}", "null"] {
            assert_eq!(checked.promise(other.as_bytes()), None, "{other}");
        }
    }
}
