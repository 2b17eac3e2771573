//! The watch cache of one kind: the latest changes, in their order, each visible to watches some time after it was
//! committed.

use std::{collections::VecDeque, sync::Arc, sync::OnceLock, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::object::Object;

/// The real cache keeps the changes of this time, and at least so many.
const KEPT: Duration = Duration::from_secs(75);
const LEAST: usize = 100;

/// A change of one object.
#[derive(Debug)]
pub struct Event {
    pub revision: u64,
    /// The object before; `None` if it was created.
    pub old: Option<Arc<Object>>,
    /// The object after; `None` if it was removed.
    pub new: Option<Arc<Object>>,
    /// The object before, with the revision of the change: watches that no longer see the object get this.
    gone: OnceLock<Arc<Object>>,
    visible_at: Instant,
}

impl Event {
    pub fn gone(&self) -> Option<&Arc<Object>> {
        let old = self.old.as_ref()?;
        Some(self.gone.get_or_init(|| Arc::new(Object::new(old.kind, old.value().clone(), self.revision))))
    }
}

/// The place of a watch among the events of its kind.
pub type Position = u64;

/// What comes next for a watch.
pub enum Next {
    Event(Arc<Event>),
    /// The next event becomes visible at this time.
    At(Instant),
    /// There is none yet, or the cache is held.
    Nothing,
    /// The events at this place are no longer kept.
    Lost,
}

/// The changes of one kind.
#[derive(Debug)]
pub struct History {
    events: VecDeque<Arc<Event>>,
    /// The position of the first of them.
    first: Position,
    /// Watches may begin after this revision, and not before it.
    since: u64,
    lag: Duration,
    /// The first event that is not visible until the cache is released.
    held: Option<Position>,
    last_visible: Instant,
    /// Wakes those who wait in their order. A `watch` channel would choose a random one.
    changed: Arc<Notify>,
}

impl History {
    pub fn new(now: Instant) -> Self {
        Self {
            events: VecDeque::new(),
            first: 0,
            since: 0,
            lag: Duration::ZERO,
            held: None,
            last_visible: now,
            changed: Arc::default(),
        }
    }

    pub fn push(&mut self, revision: u64, old: Option<Arc<Object>>, new: Option<Arc<Object>>, now: Instant) {
        // In their order, also after the lag has become shorter.
        self.last_visible = self.last_visible.max(now + self.lag);
        let event = Event { revision, old, new, gone: OnceLock::new(), visible_at: self.last_visible };
        self.events.push_back(Arc::new(event));
        while self.events.len() > LEAST
            && self.events.front().is_some_and(|event| event.visible_at + KEPT < now)
            && self.held.is_none_or(|held| held > self.first)
        {
            self.drop_first();
        }
        self.changed.notify_waiters();
    }

    fn drop_first(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.since = event.revision;
            self.first += 1;
        }
    }

    /// From now on events become visible after this time. Earlier ones stay before later ones.
    pub fn set_lag(&mut self, lag: Duration) {
        self.lag = lag;
    }

    /// Whether events stay invisible until the cache is released.
    pub fn hold(&mut self, held: bool) {
        let end = self.first + self.events.len() as u64;
        self.held = held.then(|| self.held.unwrap_or(end));
        self.changed.notify_waiters();
    }

    /// Forgets all changes, as a restart does: what is known now is read from the store. Watches can begin only after
    /// this revision.
    pub fn forget(&mut self, revision: u64, now: Instant) {
        self.first += self.events.len() as u64;
        self.events.clear();
        self.held = self.held.map(|_| self.first);
        self.last_visible = now;
        self.since = revision;
        self.changed.notify_waiters();
    }

    /// The changes before this revision can no longer be watched. Those that are not visible yet stay.
    pub fn compact(&mut self, revision: u64, now: Instant) {
        while let Some(event) = self.events.front()
            && event.revision <= revision
            && self.is_visible(self.first, event, now)
        {
            self.drop_first();
        }
        self.since = self.since.max(revision.min(self.visible_revision(revision, now)));
    }

    /// Notified of new events.
    pub fn changes(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Where a watch of what comes after this revision begins; otherwise the oldest revision that is possible.
    pub fn position_after(&self, revision: u64) -> Result<Position, u64> {
        if revision < self.since {
            return Err(self.since);
        }
        let before = self.events.partition_point(|event| event.revision <= revision);
        Ok(self.first + before as u64)
    }

    pub fn next(&self, position: Position, now: Instant) -> Next {
        let Some(index) = position.checked_sub(self.first) else { return Next::Lost };
        let event = usize::try_from(index).ok().and_then(|index| self.events.get(index));
        match event {
            None => Next::Nothing,
            Some(_) if self.held.is_some_and(|held| position >= held) => Next::Nothing,
            Some(event) if event.visible_at > now => Next::At(event.visible_at),
            Some(event) => Next::Event(event.clone()),
        }
    }

    fn is_visible(&self, position: Position, event: &Event, now: Instant) -> bool {
        self.held.is_none_or(|held| position < held) && event.visible_at <= now
    }

    /// The number of the last events that are not visible yet.
    fn hidden(&self, now: Instant) -> usize {
        let of_time = self.events.partition_point(|event| event.visible_at <= now);
        let of_hold =
            self.held.and_then(|held| usize::try_from(held - self.first).ok()).unwrap_or(self.events.len());
        self.events.len() - of_time.min(of_hold)
    }

    /// The revision that the cache has reached, if the store is at `revision`.
    pub fn visible_revision(&self, revision: u64, now: Instant) -> u64 {
        let hidden = self.hidden(now);
        let first_hidden = self.events.get(self.events.len() - hidden);
        first_hidden.filter(|_| hidden > 0).map_or(revision, |event| event.revision - 1)
    }

    /// When the cache will have reached this revision; `None` if it is held before it.
    pub fn reaches(&self, revision: u64) -> Option<Instant> {
        let count = self.events.partition_point(|event| event.revision <= revision);
        let last = self.first + count as u64;
        if self.held.is_some_and(|held| held < last) {
            return None;
        }
        count.checked_sub(1).and_then(|index| self.events.get(index)).map(|event| event.visible_at).or(Some(
            // Nothing to wait for.
            self.last_visible,
        ))
    }

    /// The changes after this revision, the latest first; `None` if not all of them are kept.
    pub fn undo(&self, revision: u64) -> Option<impl Iterator<Item = &Arc<Event>>> {
        (revision >= self.since)
            .then(|| self.events.iter().rev().take_while(move |event| event.revision > revision))
    }
}
