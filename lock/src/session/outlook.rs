//! What those that wait for the loss of a key are told.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::SessionId;

/// What a loss depends on, apart from the terms themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outlook {
    pub(crate) session: Option<SessionId>,
    pub(crate) over: bool,
    pub(crate) in_jeopardy: bool,
    /// How often those that wait were asked to look again for another reason.
    pub(crate) alarms: u64,
}

/// Where those that wait learn that they have to look again.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    pub(crate) seen: watch::Sender<Outlook>,
    /// Whether there is a task.
    pub(crate) works: Mutex<bool>,
}

impl Lookout {
    /// Makes all that wait look again.
    pub(crate) fn alarm(&self) {
        self.seen.send_modify(|seen| seen.alarms += 1);
    }

    /// Whether the task has nobody to work for. It must end then.
    pub(crate) fn is_over(&self) -> bool {
        let mut works = self.works.lock();
        *works = self.seen.receiver_count() > 0;
        !*works
    }
}
