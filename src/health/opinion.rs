//! The second opinion on a pod: before its silence counts, the other replicas are asked whether they hear it.

use std::time::Duration;

/// What this replica has asked of others about a pod, and others of this one.
#[derive(Clone, Debug, Default)]
pub(super) struct SecondOpinion {
    /// When this replica last asked.
    asked_at: Option<Duration>,
    /// Until when the answer counts.
    pub(super) vouched_until: Duration,
    /// What another replica asked.
    question: Option<Question>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    at: Duration,
    blind: bool,
}

impl SecondOpinion {
    /// Whether to ask now, if the last question is at least this old.
    pub(super) fn ask(&mut self, now: Duration, pause: Duration) -> bool {
        let due = self.asked_at.is_none_or(|at| now >= at + pause);
        if due {
            self.asked_at = Some(now);
        }
        due
    }

    /// Another replica asks. An earlier question is forgotten: a pod may have failed after it was answered.
    pub(super) fn asked(&mut self, blind: bool, now: Duration) {
        self.question = Some(Question { at: now, blind });
    }

    /// Whether the pod answered a probe that was sent after the question, or whether the evidence against it answers
    /// the question. Ends it. Questions from before `oldest` are forgotten.
    pub(super) fn answers(&mut self, heard_at: Option<Duration>, against: bool, oldest: Duration) -> bool {
        self.question.take_if(|question| question.at < oldest);
        let answered = |question: &mut Question| {
            heard_at.is_some_and(|at| at >= question.at) || (question.blind && against)
        };
        self.question.take_if(answered).is_some()
    }
}
