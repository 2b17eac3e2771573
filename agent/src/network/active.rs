//! Whether this pod is active, for programs that run all the time and ask. What the machine would run is active.
//!
//! After the agent has promised that nothing runs, no program may be told that the pod is active. So everything here
//! happens under one lock, and the machine learns of the end only when the file is gone.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::sync::watch;

use crate::{
    answer::{Answer, Keys},
    contract::{Declared, LONGEST_LEASE},
    files::{remove, unfinished},
    log::say,
    machine::{Effect, Event, Machine, Settings, Why},
    messages::{Counts, State},
    moment::Moment,
};

/// What programs are told while the pod is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Term {
    /// The lock's key.
    pub(super) key: String,
    /// The fencing token.
    pub(super) token: i64,
    /// The end of the lease on `CLOCK_BOOTTIME`, which all containers of the node share. A program that finds an old
    /// file, because the agent was killed, sees by this that it does not count any more.
    #[serde(rename = "endsAtBoottimeMilliseconds", serialize_with = "milliseconds")]
    pub(super) ends_at: Duration,
}

fn milliseconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Whether the pod is active.
#[derive(Debug)]
pub(super) struct Active {
    keys: Keys,
    file: Option<PathBuf>,
    state: watch::Sender<State>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: Machine,
    key: String,
    lease: Duration,
    counts: Counts,
    /// The pod is not active any more, but the file may still say so.
    ends: Option<Why>,
    leaves: bool,
    /// What the file says.
    written: Option<Term>,
    /// The file could not be written, and the log says so.
    has_failed: bool,
}

impl Active {
    /// Not active. A file that an earlier start has left behind is removed. The sender publishes what has changed.
    pub(super) fn new(
        keys: Keys,
        settings: Settings,
        file: Option<PathBuf>,
        state: watch::Sender<State>,
    ) -> io::Result<Self> {
        file.as_deref().map_or(Ok(()), remove)?;
        let inner = Inner {
            machine: Machine::new(keys.boot(), settings),
            key: String::new(),
            lease: LONGEST_LEASE,
            counts: Counts::default(),
            ends: None,
            leaves: false,
            written: None,
            has_failed: false,
        };
        let active = Self { keys, file, state, inner: Mutex::new(inner) };
        active.wake();
        Ok(active)
    }

    /// Takes into account what a read has shown.
    pub(super) fn read(&self, sent_at: Moment, key: Option<String>, shown: Option<Declared>) {
        let mut inner = self.lock();
        if !inner.leaves {
            inner.key = key.unwrap_or_default();
            let run = shown.as_ref().and_then(|declared| declared.run.as_ref());
            inner.lease = run.map_or(inner.lease, |run| run.lease.min(LONGEST_LEASE));
            self.step(&mut inner, &Event::Read { sent_at, shown });
        }
    }

    /// Takes into account that time has passed.
    pub(super) fn wake(&self) {
        self.step(&mut self.lock(), &Event::Woke);
    }

    /// The container is being ended: the pod is not active any more, and will not be again. Returns whether the file is
    /// gone.
    pub(super) fn leave(&self) -> bool {
        let mut inner = self.lock();
        inner.leaves = true;
        self.step(&mut inner, &Event::Woke);
        inner.machine.promise().idle
    }

    /// What the agent promises now.
    pub(super) fn promise(&self) -> Answer {
        let mut inner = self.lock();
        self.step(&mut inner, &Event::Woke);
        self.keys.sign(inner.machine.promise())
    }

    /// The term in which the pod is active now, and how long its lease lasts.
    pub(super) fn term(&self) -> Option<(Term, Duration)> {
        let mut inner = self.lock();
        // The process may have been frozen.
        self.step(&mut inner, &Event::Woke);
        let now = Moment::now();
        let (_, deadline) = inner.machine.running()?;
        Some((inner.term()?, now.until(deadline)))
    }

    /// How often programs that watch are told, at least.
    pub(super) fn pace(&self) -> Duration {
        self.lock().lease / 3
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, inner: &mut Inner, event: &Event) {
        for effect in inner.machine.step(event, Moment::now()) {
            match effect {
                Effect::Start(token) => {
                    inner.counts.starts += 1;
                    say(&format!("the pod is active with token {token}"));
                }
                Effect::Terminate(why) => {
                    inner.ends = Some(why);
                    say(&format!("the pod is not active any more: {why}"));
                }
                // It has no program.
                Effect::Kill(_) => {}
            }
        }
        let had_to_end = inner.ends.is_some() || inner.leaves;
        if had_to_end && inner.machine.running().is_some() && self.write(inner) {
            let _ = inner.machine.step(&Event::Ended, Moment::now());
            if let Some(why) = inner.ends.take() {
                inner.counts.ended(why, None);
            }
        }
        self.write(inner);
        self.publish(inner);
    }

    /// Makes the file say what is true, and returns whether it does. It is tried again when time has passed.
    fn write(&self, inner: &mut Inner) -> bool {
        let Some(file) = &self.file else { return true };
        let term = inner.term();
        if term == inner.written {
            return true;
        }
        let written = match &term {
            Some(term) => replace(file, term),
            None => remove(file),
        };
        match written {
            Ok(()) => (inner.written, inner.has_failed) = (term, false),
            Err(error) if !std::mem::replace(&mut inner.has_failed, true) => {
                say(&format!("{} cannot be written; trying again: {error}", file.display()));
            }
            Err(_) => {}
        }
        inner.written.as_ref().map(|term| term.token) == inner.term().map(|term| term.token)
    }

    fn publish(&self, inner: &Inner) {
        let state = State {
            ends: inner.ends,
            leaves: inner.leaves,
            counts: inner.counts.clone(),
            ..State::of(self.keys.boot(), &inner.machine)
        };
        self.state.send_if_modified(|last| {
            let is_new = *last != state;
            *last = state;
            is_new
        });
    }
}

impl Inner {
    fn term(&self) -> Option<Term> {
        let (token, deadline) = self.machine.running().filter(|_| self.ends.is_none() && !self.leaves)?;
        Some(Term { key: self.key.clone(), token, ends_at: deadline.boottime })
    }
}

/// Replaces the file in one step: a reader finds either the former text or the new one.
fn replace(file: &Path, term: &Term) -> io::Result<()> {
    let unfinished = unfinished(file);
    fs::write(&unfinished, serde_json::to_vec(term)?)?;
    fs::rename(unfinished, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Run;

    const LEASE: Duration = Duration::from_mins(1);

    fn active(file: Option<PathBuf>) -> Active {
        let settings = Settings { stop_timeout: Duration::ZERO, lapse_timeout: Duration::from_secs(2) };
        let keys = Keys::generate().expect("random numbers");
        Active::new(keys, settings, file, watch::Sender::default()).expect("a directory")
    }

    fn declare(active: &Active, token: i64, stop: bool) {
        let run = Run { cleared: true, stop, ..Run::uncleared(token, active.keys.boot(), LEASE) };
        active.read(Moment::now(), Some("shop/web".to_owned()), Some(Declared { token, run: Some(run) }));
    }

    fn promised(active: &Active) -> (i64, bool) {
        let promise = active.promise().verified().expect("a signature");
        (promise.floor, promise.idle)
    }

    #[test]
    fn nothing_is_promised_as_long_as_the_file_says_that_the_pod_is_active() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let file = directory.path().join("active");
        fs::write(&file, "of an earlier start").expect("a file");
        let active = active(Some(file.clone()));
        assert!(!file.exists());
        declare(&active, 7, false);
        let text = fs::read_to_string(&file).expect("a file");
        assert!(text.starts_with("{\"key\":\"shop/web\",\"token\":7,\"endsAt"), "{text}");
        assert_eq!(promised(&active), (7, false));
        // It cannot be removed: something else is there.
        fs::remove_file(&file).expect("a file");
        fs::create_dir(&file).expect("a directory");
        declare(&active, 7, true);
        assert_eq!(active.term(), None, "programs that ask are told at once");
        assert_eq!(promised(&active), (8, false));
        fs::remove_dir(&file).expect("a directory");
        assert_eq!(promised(&active), (8, true));
    }

    #[test]
    fn an_agent_that_was_frozen_says_nothing_that_was_true_before() {
        let active = active(None);
        let run = Run { cleared: true, ..Run::uncleared(7, active.keys.boot(), Duration::from_millis(40)) };
        let sent_at = Moment::now();
        active.read(sent_at, None, Some(Declared { token: 7, run: Some(run.clone()) }));
        while !Moment::now().is_past(sent_at.after(run.lease)) {
            std::hint::spin_loop();
        }
        assert_eq!(active.term(), None);
    }

    #[test]
    fn an_agent_that_leaves_is_not_active_again() {
        let active = active(None);
        declare(&active, 7, false);
        let (term, remaining) = active.term().expect("active");
        assert_eq!((term.key.as_str(), term.token), ("shop/web", 7));
        assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
        assert!(active.leave());
        assert_eq!(active.term(), None);
        assert_eq!(promised(&active), (8, true));
        declare(&active, 9, false);
        assert_eq!(active.term(), None);
    }
}
