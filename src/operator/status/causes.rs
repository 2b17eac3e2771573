//! Which causes of failures were logged lately. A cause that is common to all groups, such as a missing permission or a
//! certificate that cannot be verified, is logged once and not once for each group; the groups' conditions name it.

use std::{collections::HashMap, time::Duration};

use crate::{api::Reason, operator::trouble::Trouble};

/// After this time a cause is logged again.
const REPEATED_AFTER: Duration = Duration::from_mins(10);
/// The most causes that are remembered.
const MOST: usize = 256;
/// The reasons of conditions that a thousand groups may have at the same time, for one cause.
const COMMON: [Reason; 3] = [Reason::LockStoreUnavailable, Reason::WatchFailed, Reason::WriteRefused];

/// The causes that were logged, and when.
#[derive(Debug, Default)]
pub(in crate::operator) struct Causes(HashMap<String, Duration>);

impl Causes {
    /// Whether to log this trouble of a group: none had it lately for the same cause.
    pub(in crate::operator) fn is_new(&mut self, trouble: &Trouble, now: Duration) -> bool {
        let (Trouble::Lock(problem) | Trouble::Refused(problem) | Trouble::Unreachable(problem)) = trouble;
        self.note(without_names(problem), now)
    }

    /// The same for why a group is not ready. Most reasons concern this group alone.
    pub(in crate::operator) fn is_new_reason(&mut self, reason: &str, problem: &str, now: Duration) -> bool {
        let common = COMMON.iter().any(|common| common.to_string() == reason);
        !common || self.note(format!("{reason}: {}", without_names(problem)), now)
    }

    fn note(&mut self, cause: String, now: Duration) -> bool {
        if self.0.get(&cause).is_some_and(|at| now.saturating_sub(*at) < REPEATED_AFTER) {
            return false;
        }
        self.0.retain(|_, at| now.saturating_sub(*at) < REPEATED_AFTER);
        if self.0.len() < MOST {
            self.0.insert(cause, now);
        }
        true
    }
}

/// The text without what stands in double quotes: there the API server and the lock name the object, the user and the
/// namespace.
fn without_names(problem: &str) -> String {
    problem.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn forbidden(pod: &str, verb: &str) -> Trouble {
        Trouble::Refused(format!(
            "could not {verb}: pods \"{pod}\" is forbidden: User \"lg\" cannot patch resource \"pods\" (HTTP 403)"
        ))
    }

    #[test]
    fn a_cause_is_new_once_whichever_group_has_it() {
        let mut causes = Causes::default();
        let verdicts: Vec<bool> =
            (0..1_000).map(|n| causes.is_new(&forbidden(&format!("web-{n}"), "write"), NOW)).collect();
        assert!(verdicts[0] && verdicts[1..].iter().all(|new| !new));
        assert!(causes.is_new(&forbidden("web-0", "read"), NOW), "another cause");
        assert!(!causes.is_new(&forbidden("web-7", "write"), NOW + REPEATED_AFTER / 2));
        assert!(causes.is_new(&forbidden("web-7", "write"), NOW + REPEATED_AFTER), "it goes on");
    }

    #[test]
    fn a_reason_that_concerns_one_group_is_always_new() {
        let mut causes = Causes::default();
        for new in [true, false] {
            assert_eq!(causes.is_new_reason("LockStoreUnavailable", "unknown CA", NOW), new);
            assert!(causes.is_new_reason("NoEligiblePod", "none of 3 pods could be active", NOW));
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_forgotten_is_logged() {
        let mut causes = Causes::default();
        for n in 0..3 * MOST {
            assert!(causes.is_new(&Trouble::Lock(format!("problem {n}")), NOW));
        }
        assert_eq!(causes.0.len(), MOST);
        assert!(!causes.is_new(&Trouble::Lock("problem 1".to_owned()), NOW));
        assert!(causes.is_new(&Trouble::Lock("another".to_owned()), NOW + REPEATED_AFTER));
        assert_eq!(causes.0.len(), 1);
    }
}
