//! The order in which tasks are started, and how many are under way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How many tasks may be under way.
const PLACES: usize = 32;
/// How many of these may be less urgent than the steps of elections.
const PLACES_FOR_THE_REST: usize = PLACES / 2;
/// How many of those the reports always find, whatever else is under way.
const PLACES_FOR_REPORTS: usize = 2;
/// How many less urgent tasks of each lane may be under way even while steps of elections wait, so that they are late
/// but do not stop.
const RESERVED: usize = 2;
/// How many writes may wait for webhooks without a place. With those that have one they are fewer than the API server
/// allows on one connection.
const LATE_WRITES: usize = 64;
/// How many of these may be of one namespace and lane.
const LATE_WRITES_OF_A_NAMESPACE: usize = 16;
/// How many other tasks of a namespace and lane may be under way while a write of one waits for a webhook.
const PLACES_BESIDE_LATE_WRITES: usize = 8;

/// In which order tasks are started, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::operator) enum Urgency {
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
    /// Stamps of standbys, and their dry runs.
    Stamp,
}

/// Tasks that take each other's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

type Turn = (Lane, Urgency, u64);
type InNamespace<T> = (Option<Arc<str>>, T);

/// Tasks that wait for a place.
pub(in crate::operator) struct Queue<T> {
    /// By lane and urgency, then in the order in which they came, each with its namespace.
    waiting: BTreeMap<Turn, InNamespace<T>>,
    came: u64,
    steps: Count,
    routine: Count,
    reports: Count,
    /// The namespaces with tasks under way, by lane: stamps that hang must not hold up failovers.
    namespaces: HashMap<(Arc<str>, Lane), Namespace>,
    late: Arc<Semaphore>,
    given_way: Arc<Notify>,
}

/// Counts its clones.
#[derive(Clone, Default)]
struct Count(Arc<()>);

impl Count {
    /// How many clones there are, besides the one in the queue.
    fn taken(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// What is under way in a namespace and lane.
#[derive(Default)]
struct Namespace {
    tasks: Count,
    late: Count,
    /// Tasks with writes that wait for webhooks and keep their places, because too many writes do.
    refused: Count,
}

/// A taken place. It is free again when this is dropped.
pub(in crate::operator) struct Place {
    lane: Mutex<Option<Count>>,
    namespace: Mutex<Option<Counted>>,
    late: Arc<Semaphore>,
    given_way: Arc<Notify>,
}

/// Counts a task in its namespace.
struct Counted {
    _task: Count,
    /// Counts the writes there that wait for webhooks.
    late: Weak<()>,
    refused: Weak<()>,
    /// Counts this task as refused.
    is_refused: Mutex<Option<Arc<()>>>,
}

/// A write that waits for a webhook, until this is dropped.
pub(in crate::operator) struct Late {
    _permit: OwnedSemaphorePermit,
    _in_namespace: Option<Arc<()>>,
}

impl Place {
    /// Leaves the place to others, because a write of this task waits for a webhook. None if too many writes do.
    ///
    /// So webhooks that hang delay the groups that they concern, and no others. While one hangs, most other tasks of
    /// its namespace and lane wait: they may hang as well, and each would take a place from others for a second.
    pub(in crate::operator) fn give_way(&self) -> Option<Late> {
        let namespace = self.namespace.lock();
        let in_namespace = namespace.as_ref().and_then(|counted| counted.late.upgrade());
        // One is the queue's own, and one is this one.
        let others = in_namespace.as_ref().map_or(0, |late| Arc::strong_count(late).saturating_sub(2));
        if others >= LATE_WRITES_OF_A_NAMESPACE {
            return None;
        }
        let Ok(permit) = self.late.clone().try_acquire_owned() else {
            if let Some(counted) = &*namespace {
                *counted.is_refused.lock() = counted.refused.upgrade();
            }
            return None;
        };
        drop(self.lane.lock().take());
        self.given_way.notify_one();
        Some(Late { _permit: permit, _in_namespace: in_namespace })
    }

    /// Leaves the place to others for good. What follows must be bounded in another way.
    pub(in crate::operator) fn leave(&self) {
        drop((self.lane.lock().take(), self.namespace.lock().take()));
        self.given_way.notify_one();
    }
}

impl<T> Queue<T> {
    pub(in crate::operator) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            came: 0,
            steps: Count::default(),
            routine: Count::default(),
            reports: Count::default(),
            namespaces: HashMap::new(),
            late: Arc::new(Semaphore::new(LATE_WRITES)),
            given_way: Arc::default(),
        }
    }

    pub(in crate::operator) fn put(&mut self, urgency: Urgency, namespace: Option<&str>, task: T) {
        self.came += 1;
        self.waiting.insert((urgency.lane(), urgency, self.came), (namespace.map(Arc::from), task));
        self.namespaces.retain(|_, namespace| namespace.tasks.taken() > 0);
    }

    /// The task to start next, with its place, if there is a place for one.
    pub(in crate::operator) fn take(&mut self) -> Option<(T, Place)> {
        let lanes = [Lane::AtOnce, Lane::Steps, Lane::Routine, Lane::Reports];
        let lane = lanes.into_iter().find(|lane| self.allows(*lane) && self.first(*lane).is_some())?;
        let (namespace, task) = self.waiting.remove(&self.first(lane)?)?;
        let taken = match lane {
            Lane::AtOnce => None,
            Lane::Steps => Some(self.steps.clone()),
            Lane::Routine => Some(self.routine.clone()),
            Lane::Reports => Some(self.reports.clone()),
        };
        let namespace = namespace.map(|name| {
            let namespace = self.namespaces.entry((name, lane)).or_default();
            Counted {
                _task: namespace.tasks.clone(),
                late: Arc::downgrade(&namespace.late.0),
                refused: Arc::downgrade(&namespace.refused.0),
                is_refused: Mutex::default(),
            }
        });
        let place = Place {
            lane: Mutex::new(taken),
            namespace: Mutex::new(namespace),
            late: self.late.clone(),
            given_way: self.given_way.clone(),
        };
        Some((task, place))
    }

    /// Tells when a task has given way to others.
    pub(in crate::operator) fn given_way(&self) -> Arc<Notify> {
        self.given_way.clone()
    }

    /// Whether the tasks of this namespace and lane that wait are to go on waiting.
    fn is_held_up(&self, namespace: Option<&Arc<str>>, lane: Lane) -> bool {
        let found = namespace.and_then(|name| self.namespaces.get(&(name.clone(), lane)));
        found.filter(|_| lane != Lane::AtOnce).is_some_and(|namespace| {
            let (tasks, writes) = (namespace.tasks.taken(), namespace.late.taken());
            writes + namespace.refused.taken() > 0
                && tasks.saturating_sub(writes) >= PLACES_BESIDE_LATE_WRITES
        })
    }

    /// Whether a task of this urgency would be started at once.
    pub(in crate::operator) fn has_room(&self, urgency: Urgency) -> bool {
        let lane = urgency.lane();
        self.allows(lane) && self.first(lane).is_none_or(|(_, first, _)| first > urgency)
    }

    /// The task of a lane that is started next.
    fn first(&self, lane: Lane) -> Option<(Lane, Urgency, u64)> {
        let of_lane = self.waiting.range((lane, Urgency::AtOnce, 0)..).take_while(|(key, _)| key.0 == lane);
        let mut ready = of_lane.filter(|(_, (namespace, _))| !self.is_held_up(namespace.as_ref(), lane));
        ready.next().map(|(key, _)| *key)
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

    type Taken = Vec<(Urgency, Place)>;

    fn queue(tasks: &[(Urgency, usize)]) -> Queue<Urgency> {
        let mut queue = Queue::new();
        for (urgency, count) in tasks {
            (0..*count).for_each(|_| queue.put(*urgency, None, *urgency));
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
        queue.put(U::Finish, None, U::Finish);
        assert_eq!(take_all(&mut queue)[0].0, U::Finish);
    }

    #[test]
    fn what_is_not_urgent_takes_no_place_beyond_the_last() {
        for (urgency, most) in [
            (Urgency::Routine, PLACES_FOR_THE_REST - PLACES_FOR_REPORTS),
            (Urgency::Report, PLACES_FOR_THE_REST),
        ] {
            let mut queue = queue(&[(Urgency::Step, PLACES)]);
            let steps = take_all(&mut queue);
            assert_eq!(steps.len(), PLACES);
            (0..2 * PLACES).for_each(|_| queue.put(urgency, None, urgency));
            assert!(queue.take().is_none() && !queue.has_room(urgency), "{urgency:?}");
            drop(steps);
            assert_eq!(take_all(&mut queue).len(), most, "{urgency:?}");
        }
    }

    #[test]
    fn what_may_take_its_full_time_limit_leaves_places_for_steps() {
        let mut queue = queue(&[(Urgency::Routine, 100)]);
        let slow = take_all(&mut queue);
        assert_eq!(slow.len(), PLACES_FOR_THE_REST - PLACES_FOR_REPORTS);
        queue.put(Urgency::Failover, None, Urgency::Failover);
        let taken = take_all(&mut queue);
        assert_eq!(count(&taken, Urgency::Failover), 1);
    }

    #[test]
    fn reports_and_stamps_find_a_place_beside_slow_tasks() {
        let mut queue = queue(&[(Urgency::Routine, 100), (Urgency::Stamp, 1)]);
        let slow = take_all(&mut queue);
        assert_eq!((count(&slow, Urgency::Stamp), queue.has_room(Urgency::Report)), (1, true));
        queue.put(Urgency::Report, None, Urgency::Report);
        assert_eq!(count(&take_all(&mut queue), Urgency::Report), 1);
    }

    #[test]
    fn writes_that_wait_for_webhooks_take_no_places_from_other_namespaces() {
        let mut queue = Queue::new();
        for _ in 0..200 {
            queue.put(Urgency::Failover, Some("hanging"), Urgency::Failover);
        }
        let first = take_all(&mut queue);
        assert_eq!(first.len(), PLACES, "it is not known yet that they hang");
        queue.put(Urgency::Failover, Some("shop"), Urgency::Failover);
        assert!(queue.take().is_none());
        let late: Vec<_> = first.iter().map(|(_, place)| place.give_way()).collect();
        assert_eq!(late.iter().flatten().count(), LATE_WRITES_OF_A_NAMESPACE, "the others end sooner");
        let shop = take_all(&mut queue);
        assert_eq!(
            (shop.len(), queue.has_room(Urgency::Failover)),
            (1, true),
            "only that of the other namespace"
        );
        // As they end, a few at a time follow.
        drop((first, late));
        let (_, one) = queue.take().expect("one is to be started");
        let late = one.give_way();
        let few = take_all(&mut queue);
        assert_eq!(few.len(), PLACES_BESIDE_LATE_WRITES);
        drop(late);
        assert!(take_all(&mut queue).len() > PLACES_BESIDE_LATE_WRITES, "none hangs");
    }

    #[test]
    fn stamps_that_wait_for_a_webhook_hold_up_no_failover_of_their_namespace() {
        let mut queue = Queue::new();
        for _ in 0..2 * PLACES_BESIDE_LATE_WRITES {
            queue.put(Urgency::Stamp, Some("shop"), Urgency::Stamp);
        }
        let stamps = take_all(&mut queue);
        let late: Vec<_> =
            stamps[PLACES_BESIDE_LATE_WRITES..].iter().map(|(_, place)| place.give_way()).collect();
        for urgency in [Urgency::AtOnce, Urgency::Finish, Urgency::Stamp] {
            queue.put(urgency, Some("shop"), urgency);
        }
        let taken = take_all(&mut queue);
        let counts = [Urgency::AtOnce, Urgency::Finish, Urgency::Stamp].map(|it| count(&taken, it));
        assert_eq!(counts, [1, 1, 0]);
        drop(late);
    }

    /// Writes that wait for webhooks, each of another namespace.
    fn as_many_late_as_may_be(queue: &mut Queue<Urgency>) -> Vec<(Place, Late)> {
        let late = (0..LATE_WRITES).map(|n| {
            queue.put(Urgency::Failover, Some(&n.to_string()), Urgency::Failover);
            let (_, place) = queue.take().expect("the one before has given way");
            let late = place.give_way().expect("there are not too many yet");
            (place, late)
        });
        late.collect()
    }

    #[test]
    fn the_number_of_writes_that_wait_for_webhooks_is_bounded() {
        let mut queue = Queue::new();
        let mut places = as_many_late_as_may_be(&mut queue);
        queue.put(Urgency::Failover, Some("one more"), Urgency::Failover);
        let (_, place) = queue.take().expect("it has a place");
        assert!(place.give_way().is_none());
        places.pop();
        assert!(place.give_way().is_some());
    }

    #[test]
    fn a_namespace_whose_writes_may_not_wait_without_a_place_takes_few_places() {
        let mut queue = Queue::new();
        let _late = as_many_late_as_may_be(&mut queue);
        for _ in 0..2 * PLACES {
            queue.put(Urgency::Failover, Some("hanging"), Urgency::Failover);
        }
        let (_, first) = queue.take().expect("it has a place");
        assert!(first.give_way().is_none());
        let few = take_all(&mut queue);
        assert_eq!(few.len() + 1, PLACES_BESIDE_LATE_WRITES);
        queue.put(Urgency::Failover, Some("shop"), Urgency::Failover);
        assert_eq!(take_all(&mut queue).len(), 1, "that of the other namespace");
        drop(first);
        assert_eq!(take_all(&mut queue).len(), PLACES - few.len(), "none is known to hang");
    }

    /// As hooks do.
    #[test]
    fn tasks_that_leave_their_places_do_not_count_any_more() {
        let mut queue = Queue::new();
        for name in ["one", "two", "three"] {
            (0..PLACES).for_each(|_| queue.put(Urgency::Finish, Some(name), Urgency::Finish));
        }
        let mut started = Vec::new();
        loop {
            let taken = take_all(&mut queue);
            if taken.is_empty() {
                break;
            }
            for (_, place) in &taken {
                place.leave();
            }
            started.extend(taken);
        }
        assert_eq!(started.len(), 3 * PLACES);
        (0..PLACES).for_each(|_| queue.put(Urgency::Finish, Some("one"), Urgency::Finish));
        assert_eq!(take_all(&mut queue).len(), PLACES, "their namespace has all places, too");
    }
}
