//! The order in which tasks are started, and how many are under way.

use std::{collections::BTreeMap, sync::Arc};

/// How many tasks may be under way.
const PLACES: usize = 32;
/// How many of these may be less urgent than the steps of elections.
const PLACES_FOR_THE_REST: usize = PLACES / 2;
/// How many of those the reports always find, whatever else is under way.
const PLACES_FOR_REPORTS: usize = 2;
/// How many less urgent tasks of each lane may be under way even while steps of elections wait, so that they are late
/// but do not stop.
const RESERVED: usize = 2;

/// In which order tasks are started, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Never waits here: it is rare, or uses only the lock's database, which combines statements and limits their
    /// number itself.
    AtOnce,
    /// A step after the declaration of a term. Until it is done, the group may be without an active pod.
    Finish,
    /// A step that begins a failover.
    Failover,
    /// A step that begins another change, such as the election of a first holder.
    Step,
    /// Reads of groups, deletions, and a step of an election whose last steps failed. Calls that do not succeed may
    /// take their full time limit, so they must not occupy all places.
    Routine,
    /// A status.
    Report,
    /// Stamps of standbys, and reads of pods' owners.
    Stamp,
}

/// Tasks that take each other's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    AtOnce,
    Steps,
    Routine,
    /// Reports, and what waits for them.
    Reports,
}

impl Urgency {
    fn lane(self) -> Lane {
        match self {
            Self::AtOnce => Lane::AtOnce,
            Self::Finish | Self::Failover | Self::Step => Lane::Steps,
            Self::Routine => Lane::Routine,
            Self::Report | Self::Stamp => Lane::Reports,
        }
    }
}

/// Tasks that wait for a place.
pub(super) struct Queue<T> {
    /// By lane and urgency, then in the order in which they came.
    waiting: BTreeMap<(Lane, Urgency, u64), T>,
    came: u64,
    steps: Place,
    routine: Place,
    reports: Place,
}

/// A taken place. It is free again when this is dropped.
#[derive(Clone, Default)]
pub(super) struct Place(Arc<()>);

impl Place {
    /// How many of these are taken, besides the one in the queue.
    fn taken(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let (steps, routine, reports) = (Place::default(), Place::default(), Place::default());
        Self { waiting: BTreeMap::new(), came: 0, steps, routine, reports }
    }

    pub(super) fn put(&mut self, urgency: Urgency, task: T) {
        self.came += 1;
        self.waiting.insert((urgency.lane(), urgency, self.came), task);
    }

    /// The task to start next, with its place, if there is a place for one.
    pub(super) fn take(&mut self) -> Option<(T, Option<Place>)> {
        let lanes = [Lane::AtOnce, Lane::Steps, Lane::Routine, Lane::Reports];
        let lane = lanes.into_iter().find(|lane| self.allows(*lane) && self.first(*lane).is_some())?;
        let task = self.waiting.remove(&self.first(lane)?)?;
        let place = match lane {
            Lane::AtOnce => None,
            Lane::Steps => Some(self.steps.clone()),
            Lane::Routine => Some(self.routine.clone()),
            Lane::Reports => Some(self.reports.clone()),
        };
        Some((task, place))
    }

    /// Whether a task of this urgency would be started at once.
    pub(super) fn has_room(&self, urgency: Urgency) -> bool {
        let lane = urgency.lane();
        self.allows(lane) && self.first(lane).is_none_or(|(_, first, _)| first > urgency)
    }

    /// The task of a lane that is started next.
    fn first(&self, lane: Lane) -> Option<(Lane, Urgency, u64)> {
        let (first, _) = self.waiting.range((lane, Urgency::AtOnce, 0)..).next()?;
        (first.0 == lane).then_some(*first)
    }

    fn allows(&self, lane: Lane) -> bool {
        let (steps, routine, reports) = (self.steps.taken(), self.routine.taken(), self.reports.taken());
        let (rest, all) = (routine + reports, steps + routine + reports);
        let steps_wait = self.first(Lane::Steps).is_some();
        match lane {
            Lane::AtOnce => true,
            Lane::Steps => all < PLACES,
            Lane::Routine if steps_wait => routine < RESERVED,
            Lane::Reports if steps_wait => reports < RESERVED,
            Lane::Routine => {
                routine < PLACES_FOR_THE_REST - PLACES_FOR_REPORTS
                    && rest < PLACES_FOR_THE_REST
                    && all < PLACES
            }
            Lane::Reports => rest < PLACES_FOR_THE_REST && all < PLACES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Taken = Vec<(Urgency, Option<Place>)>;

    fn queue(tasks: &[(Urgency, usize)]) -> Queue<Urgency> {
        let mut queue = Queue::new();
        for (urgency, count) in tasks {
            (0..*count).for_each(|_| queue.put(*urgency, *urgency));
        }
        queue
    }

    fn take_all(queue: &mut Queue<Urgency>) -> Taken {
        std::iter::from_fn(|| queue.take()).collect()
    }

    fn count(taken: &Taken, urgency: Urgency) -> usize {
        taken.iter().filter(|(it, _)| *it == urgency).count()
    }

    #[test]
    fn the_most_urgent_come_first_and_the_rest_does_not_stop() {
        use Urgency as U;
        let mut queue = queue(&[
            (U::Stamp, 50),
            (U::Report, 50),
            (U::Step, 100),
            (U::Failover, 20),
            (U::Finish, 10),
            (U::AtOnce, 100),
        ]);
        let taken = take_all(&mut queue);
        assert_eq!(taken[..100].iter().filter(|(it, _)| *it == U::AtOnce).count(), 100);
        let counts =
            [U::AtOnce, U::Finish, U::Failover, U::Step, U::Report, U::Stamp].map(|it| count(&taken, it));
        assert_eq!(counts, [100, 10, 20, 2, 2, 0]);
        assert!(!queue.has_room(U::Report) && !queue.has_room(U::Finish) && queue.has_room(U::AtOnce));
        // A place that becomes free goes to the most urgent of those that wait.
        drop(taken.into_iter().find(|(it, _)| *it == U::Step));
        queue.put(U::Finish, U::Finish);
        assert_eq!(take_all(&mut queue)[0].0, U::Finish);
    }

    #[test]
    fn what_may_take_its_full_time_limit_leaves_places_for_steps() {
        let mut queue = queue(&[(Urgency::Routine, 100)]);
        let slow = take_all(&mut queue);
        assert_eq!(slow.len(), PLACES_FOR_THE_REST - PLACES_FOR_REPORTS);
        queue.put(Urgency::Failover, Urgency::Failover);
        let taken = take_all(&mut queue);
        assert_eq!(count(&taken, Urgency::Failover), 1);
    }

    #[test]
    fn reports_and_stamps_find_a_place_beside_slow_tasks() {
        let mut queue = queue(&[(Urgency::Routine, 100), (Urgency::Stamp, 1)]);
        let slow = take_all(&mut queue);
        assert_eq!((count(&slow, Urgency::Stamp), queue.has_room(Urgency::Report)), (1, true));
        queue.put(Urgency::Report, Urgency::Report);
        assert_eq!(count(&take_all(&mut queue), Urgency::Report), 1);
    }
}
