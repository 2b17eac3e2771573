//! The places for connections. All targets share them, and none may take those that the others need.
//!
//! A pod that hangs keeps its places until its probes time out, and any user who can create pods can create pods that
//! hang. So the probes of pods that answer do not compete with those of pods that do not; half of the places of the
//! latter are for targets that have no other probe waiting, and for holders that have one; and half of the places for
//! late answers are for holders that have no other.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// How many probes of one target are listened to after their timeout. They are spread over the time in which an answer
/// is of use, so that a pod that needs most of this time is heard as well.
pub(super) const MOST_LATE: u32 = 8;

/// A place, which is free again when this is dropped.
pub(super) type Place = OwnedSemaphorePermit;

/// The places of all targets.
pub(super) struct Places {
    /// For pods that answered the last probe.
    answering: Lane,
    /// For pods that did not. Each of their probes takes its whole timeout, so that a lost node's pods would leave no
    /// place for the others.
    unanswered: Lane,
    /// For probes after their timeout, which may still be answered.
    late: Lane,
    /// For connections that are held open.
    held: Lane,
}

struct Lane {
    permits: Arc<Semaphore>,
    size: usize,
}

impl Places {
    /// So many for the probes of pods that answer, as many for those of pods that do not, and as many for late answers;
    /// a quarter of it for connections held open.
    pub(super) fn new(limit: usize) -> Self {
        let [answering, unanswered, late] = [(); 3].map(|()| Lane::of(limit));
        Self { answering, unanswered, late, held: Lane::of(limit / 4) }
    }

    /// A place for a probe, after a wait of at most `patience`. `doubtful`: the last probe of its target was not
    /// answered, or is still waiting.
    pub(super) async fn first(&self, doubtful: bool, patience: Duration) -> Option<Place> {
        let lane = if doubtful { &self.unanswered } else { &self.answering };
        timeout(patience, lane.permits.clone().acquire_owned()).await.ok()?.ok()
    }

    /// The place of a probe that has waited for a while: from now on it counts as one that is not answered, unless
    /// there is no place among these.
    pub(super) fn waits(&self, place: Place) -> Place {
        self.unanswered.take().unwrap_or(place)
    }

    /// A place for a probe of a target that has so many waiting already, if half of the places stay free after it. A
    /// holder always gets a second one: two probes without an answer may be needed for its failover.
    pub(super) fn further(&self, waiting: usize, is_holder: bool) -> Option<Place> {
        let stay_free = self.unanswered.free().saturating_sub(1);
        let fair = stay_free * 2 >= self.unanswered.size || (is_holder && waiting <= 1);
        fair.then(|| self.unanswered.take())?
    }

    /// A place for listening to an answer that is late, for a target that has taken so many. Half of the places are for
    /// holders that have none. Of the other half, a holder may take the more the more are free; another pod gets one.
    pub(super) fn late(&self, taken: usize, is_holder: bool) -> Option<Place> {
        let (most, size) = (MOST_LATE as usize, self.late.size);
        let spare = self.late.free().saturating_sub(size / 2);
        let fair = match (is_holder, taken) {
            (true, 0) => true,
            (true, _) => taken < most && taken * size < spare * 4 * most,
            (false, _) => taken == 0 && spare > 0,
        };
        fair.then(|| self.late.take())?
    }

    /// A place for a connection that is held open.
    pub(super) fn held(&self) -> Option<Place> {
        self.held.take()
    }
}

impl Lane {
    fn of(size: usize) -> Self {
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(size)), size }
    }

    fn free(&self) -> usize {
        self.permits.available_permits()
    }

    fn take(&self) -> Option<Place> {
        self.permits.clone().try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_probes_of_pods_that_hang_leave_half_of_the_places_to_the_first_ones() {
        let places = Places::new(8);
        for is_holder in [false, true] {
            let further: Vec<Place> = std::iter::from_fn(|| places.further(2, is_holder)).collect();
            assert_eq!((further.len(), places.unanswered.free()), (4, 4));
            assert!(places.further(1, false).is_none(), "the pod is not the holder");
            assert!(places.further(1, true).is_some(), "the second probe of a holder");
        }
    }

    #[test]
    fn holders_that_hang_leave_half_of_the_late_places_to_those_that_have_none() {
        let places = Places::new(64);
        // Each of them takes as many as it can get, one after the other.
        let mut hung: Vec<Vec<Place>> = Vec::new();
        for _ in 0..30 {
            let mut taken = Vec::new();
            while let Some(place) = places.late(taken.len(), true) {
                taken.push(place);
            }
            hung.push(taken);
        }
        let numbers: Vec<usize> = hung.iter().map(Vec::len).collect();
        assert_eq!(numbers[..2], [MOST_LATE as usize; 2]);
        assert!(numbers.iter().all(|number| *number >= 1), "{numbers:?}");
        assert!(places.late(0, true).is_some(), "{numbers:?}");
        assert!(places.late(0, false).is_none(), "what is left is for holders");
    }

    #[test]
    fn a_pod_that_is_not_the_holder_gets_one_late_place_while_there_is_plenty() {
        let places = Places::new(8);
        let taken: Vec<Place> = std::iter::from_fn(|| places.late(0, false)).collect();
        assert_eq!(taken.len(), 4, "half of them");
        assert!(places.late(1, false).is_none());
        drop(taken);
        assert_eq!(places.late.free(), 8);
    }
}
