//! The second opinion on a pod: before its silence counts, the other replicas are asked whether they hear it.

use std::time::Duration;

/// For how long the owner of a group relies on the answers of others at least. A group that was handed over may not be
/// handed over again for a minute, and many groups take a while.
const RELIANCE: Duration = Duration::from_mins(2);

/// What this replica has asked of others about a pod, and others of this one.
#[derive(Clone, Debug, Default)]
pub(super) struct SecondOpinion {
    /// When this replica last asked.
    asked_at: Option<Duration>,
    /// Until when the answer counts.
    vouched_until: Duration,
    /// Since when, and until when last, this replica has owned the pod's group and received such answers.
    relied: Option<(Duration, Duration)>,
    /// What another replica asked.
    question: Option<Question>,
    /// When a question counted last.
    questioned_at: Option<Duration>,
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

    /// Another replica hears the pod, and is believed for one silence timeout. `heard_at`: when this replica heard the
    /// pod last.
    pub(super) fn vouched(&mut self, heard_at: Option<Duration>, silence_timeout: Duration, now: Duration) {
        self.vouched_until = now + silence_timeout;
        self.relied.take_if(|(first, last)| {
            heard_at.is_some_and(|at| at > *first) || now >= *last + reliance(silence_timeout)
        });
    }

    /// This replica received an answer as the owner of the pod's group, so the group should go to the one that gave it.
    /// If that does not happen, the answers are false: every user of the database can send them.
    pub(super) fn rely(&mut self, now: Duration) {
        self.relied.get_or_insert((now, now)).1 = now;
    }

    /// Until when another replica is believed that it hears the pod.
    pub(super) fn believed_until(&self, silence_timeout: Duration) -> Duration {
        let limit = self.relied.map_or(Duration::MAX, |(first, _)| first + reliance(silence_timeout));
        self.vouched_until.min(limit)
    }

    /// Another replica asks. Returns whether to probe the pod for it. An earlier question is forgotten: a pod may have
    /// failed after it was answered. Only one question in `pause` counts, because every user of the database can send
    /// them; its answer reaches all replicas.
    pub(super) fn asked(&mut self, blind: bool, now: Duration, pause: Duration) -> bool {
        let counts = self.questioned_at.is_none_or(|at| now >= at + pause);
        if counts {
            self.questioned_at = Some(now);
            self.question = Some(Question { at: now, blind });
        } else if let Some(question) = &mut self.question {
            question.blind |= blind;
        }
        counts
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

fn reliance(silence_timeout: Duration) -> Duration {
    RELIANCE.max(silence_timeout * 3)
}
