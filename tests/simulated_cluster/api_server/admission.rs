//! Admission: webhooks and policies of the harness, which refuse, fail or hang.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{
    failure::Failure,
    faults::{RequestInfo, Verb},
};

/// A change that a hook is asked about.
pub struct Review<'a> {
    pub request: &'a RequestInfo,
    pub verb: Verb,
    /// The object after; `None` if it is deleted.
    pub new: Option<&'a Value>,
}

/// The answer of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// It denies the change with this status. As an admission policy does it: 422, or any other number for 403.
    Deny(u16, String),
    /// The webhook cannot be called, for this reason.
    Fail(String),
    /// The webhook does not answer.
    Hang,
    /// The webhook takes so long.
    After(Duration, Box<Verdict>),
}

/// A webhook, or an admission policy, with what it answers.
pub struct Hook {
    pub name: String,
    /// A policy is part of the API server: it answers at once, and before webhooks are asked.
    pub is_policy: bool,
    /// After this time a call of a webhook has failed.
    pub timeout: Duration,
    /// Whether failures let the change pass (`failurePolicy: Ignore`).
    pub ignores_failures: bool,
    pub review: Box<dyn FnMut(&Review<'_>) -> Verdict + Send>,
}

impl Hook {
    /// A webhook with the usual time limit that must answer.
    pub fn webhook(name: &str, review: impl FnMut(&Review<'_>) -> Verdict + Send + 'static) -> Self {
        Self {
            name: name.to_owned(),
            is_policy: false,
            timeout: Duration::from_secs(10),
            ignores_failures: false,
            review: Box::new(review),
        }
    }

    pub fn policy(name: &str, review: impl FnMut(&Review<'_>) -> Verdict + Send + 'static) -> Self {
        Self { is_policy: true, ..Self::webhook(name, review) }
    }

    /// What the webhook answers, and after which time. A policy's verdict counts at once.
    fn ask(&mut self, review: &Review<'_>) -> (Duration, Result<(), Failure>) {
        let (mut taken, mut verdict) = (Duration::ZERO, (self.review)(review));
        while let Verdict::After(time, inner) = verdict {
            taken += time;
            verdict = *inner;
        }
        let failed = |problem: &str| {
            if self.ignores_failures { Ok(()) } else { Err(Failure::uncallable(&self.name, problem)) }
        };
        if verdict == Verdict::Hang || taken >= self.timeout {
            let url = format!("https://{}/?timeout={}s", self.name, self.timeout.as_secs());
            return (self.timeout, failed(&format!("Post \"{url}\": context deadline exceeded")));
        }
        let answer = match verdict {
            Verdict::Deny(code, problem) if self.is_policy => {
                let (kind, name) = (review.request.kind, review.request.name.as_str());
                Err(Failure::denied_by_policy(kind, name, &self.name, code == 422, &problem))
            }
            Verdict::Deny(code, problem) => Err(Failure::denied(&self.name, code, &problem)),
            Verdict::Fail(problem) => failed(&problem),
            Verdict::Allow | Verdict::Hang | Verdict::After(..) => Ok(()),
        };
        (taken, answer)
    }
}

/// The answers of all hooks to one change.
pub(super) struct Answers {
    /// Webhooks are called side by side, and all are waited for.
    takes: Duration,
    answer: Result<(), Failure>,
}

impl Answers {
    /// Asks the policies, and then the webhooks.
    pub(super) fn ask(hooks: &mut [Hook], review: &Review<'_>) -> Self {
        for policy in hooks.iter_mut().filter(|hook| hook.is_policy) {
            if let (_, Err(denied)) = policy.ask(review) {
                return Self { takes: Duration::ZERO, answer: Err(denied) };
            }
        }
        let webhooks = hooks.iter_mut().filter(|hook| !hook.is_policy);
        let answers: Vec<_> = webhooks.map(|hook| hook.ask(review)).collect();
        let takes = answers.iter().map(|(taken, _)| *taken).max().unwrap_or_default();
        let answer = answers.into_iter().try_for_each(|(_, answer)| answer);
        Self { takes, answer }
    }

    pub(super) async fn wait(self) -> Result<(), Failure> {
        if !self.takes.is_zero() {
            sleep(self.takes).await;
        }
        self.answer
    }
}
