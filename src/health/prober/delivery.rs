//! Delivers events from the prober's thread to their receiver. Waking another thread is expensive beside
//! a probe, so events that change nothing wait briefly and are delivered together.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::target::ProbeEvent;

/// An event on its way.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) event: ProbeEvent,
    /// Whether it is delivered at once, together with everything reported before it.
    pub(super) is_urgent: bool,
}

/// Delivers events in order, until one of the channels is closed. None waits longer than `longest_wait`.
pub(super) async fn deliver(
    mut reports: mpsc::Receiver<Report>,
    events: mpsc::Sender<ProbeEvent>,
    longest_wait: Duration,
) {
    let mut waiting = Vec::new();
    let mut due = Instant::now();
    loop {
        tokio::select! {
            biased;
            report = reports.recv() => {
                let Some(Report { event, is_urgent }) = report else { return };
                if is_urgent {
                    due = Instant::now();
                } else if waiting.is_empty() {
                    due = Instant::now() + longest_wait;
                }
                waiting.push(event);
            }
            () = sleep_until(due), if !waiting.is_empty() => {}
            () = events.closed() => return,
        }
        if Instant::now() < due {
            continue;
        }
        for event in waiting.drain(..) {
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::join};

    use super::*;
    use crate::health::ProbeStep;

    fn report(seq: u64, is_urgent: bool) -> Report {
        let event = ProbeEvent { uid: "u".into(), seq, sent_at: Duration::ZERO, step: ProbeStep::Sent };
        Report { event, is_urgent }
    }

    #[tokio::test]
    async fn events_wait_for_an_urgent_one_and_keep_their_order() {
        let (reports, told) = mpsc::channel(8);
        let (events, mut received) = mpsc::channel(8);
        let mut delivery = Box::pin(deliver(told, events, Duration::from_hours(1)));
        for (seq, is_urgent, delivered) in [(1, false, 0), (2, false, 0), (3, true, 3), (4, false, 3)] {
            reports.try_send(report(seq, is_urgent)).expect("room");
            assert!((&mut delivery).now_or_never().is_none());
            assert_eq!(received.len(), delivered, "after {seq}");
        }
        let mut seqs = Vec::new();
        while let Ok(event) = received.try_recv() {
            seqs.push(event.seq);
        }
        assert_eq!(seqs, [1, 2, 3]);
        drop(received);
        delivery.await;
        assert!(reports.try_send(report(5, false)).is_err(), "the tasks learn that nobody listens");
    }

    #[tokio::test]
    async fn no_event_waits_longer_than_the_limit() {
        let (reports, told) = mpsc::channel(8);
        let (events, mut received) = mpsc::channel::<ProbeEvent>(8);
        reports.try_send(report(1, false)).expect("room");
        let received = async move { received.recv().await.expect("an event").seq };
        let ((), seq) = join(deliver(told, events, Duration::from_millis(1)), received).await;
        assert_eq!(seq, 1);
    }
}
