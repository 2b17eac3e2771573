//! Wakes those that wait for the loss of a key. However many there are, one task of the process looks at the lease for
//! all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::session::outlook::Outlook;
use crate::session::process::Process;

/// The longest that the task sleeps at once: timers stop while the machine is suspended, but the lease does not.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// The shortest, so that a boundary that has just been reached is not looked at again and again.
pub(crate) const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

impl Process {
    /// Changes when a key may have been lost, or may be in jeopardy, other than by the end of the lease as it is known
    /// now, or of the longest time that a key may be held.
    pub(crate) fn look_out(self: &Arc<Self>) -> watch::Receiver<Outlook> {
        let seen = self.lookout.seen.subscribe();
        if !std::mem::replace(&mut *self.lookout.works.lock(), true) {
            self.runtime.spawn(look_out(Arc::clone(self)));
        }
        seen
    }

    fn outlook(&self) -> (Outlook, Duration) {
        let (lease, now) = (*self.lease.borrow(), self.now());
        let left = lease.until().unwrap_or_default().saturating_sub(now);
        let half = lease.lasts() / 2;
        let in_jeopardy = left < half;
        let session = Some(lease.session);
        let outlook = Outlook { session, over: left.is_zero(), in_jeopardy, alarms: 0 };
        (outlook, if in_jeopardy { left } else { left.saturating_sub(half) })
    }
}

/// Runs while there are any that wait.
async fn look_out(process: Arc<Process>) {
    let mut lease = process.lease.subscribe();
    while !process.lookout.is_over() {
        lease.borrow_and_update();
        let (outlook, lasts) = process.outlook();
        process.lookout.seen.send_if_modified(|seen| {
            let now = Outlook { alarms: seen.alarms, ..outlook };
            std::mem::replace(seen, now) != now
        });
        let (clock, timer) = (process.now(), Instant::now());
        let sleep = if outlook.over { LONGEST_SLEEP } else { lasts.clamp(SHORTEST_SLEEP, LONGEST_SLEEP) };
        let _ = timeout(sleep, lease.changed()).await;
        if process.now().saturating_sub(clock) > timer.elapsed() + LONGEST_SLEEP {
            // The machine was suspended, and all timers are late.
            process.lookout.alarm();
        }
    }
}
