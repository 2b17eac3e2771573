//! When the programs of pods ran, as the machine's list of processes shows it. It needs no help of the programs, so it
//! is for those that keep no [journal](crate::journal), such as servers. What does not run does not write.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use parking_lot::Mutex;
use rustix::process::Pid;

use crate::{
    cgroup,
    process::{of_programs, uptime},
};

/// How often the processes are read. The kernel tells when a process began, but nobody when it has ended: an overlap
/// that is shorter than this is not noticed.
const LOOK: Duration = Duration::from_millis(20);

/// When a process of a pod's program ran, since the machine's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pod's name.
    pub pod: String,
    /// When it began.
    pub begun: Duration,
    /// When it was seen last.
    pub seen: Duration,
}

/// The pods that are watched: the name and the control group of each, by its UID.
type Pods = BTreeMap<String, (String, PathBuf)>;

/// Watches the programs of pods.
pub struct Watch {
    pods: Arc<Mutex<Pods>>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Run>>>,
}

impl Watch {
    /// Begins to watch, at first no pod.
    pub fn begin() -> Self {
        let (pods, ends) = (Arc::<Mutex<Pods>>::default(), Arc::<AtomicBool>::default());
        let thread = thread::spawn({
            let (pods, ends) = (Arc::clone(&pods), Arc::clone(&ends));
            move || watch(&pods, &ends)
        });
        Self { pods, ends, thread }
    }

    /// Whether this pod is watched.
    pub fn has(&self, uid: &str) -> bool {
        self.pods.lock().contains_key(uid)
    }

    /// Watches a pod with this control group, too, until the end.
    pub fn add(&self, uid: &str, pod: &str, group: PathBuf) {
        self.pods.lock().insert(uid.to_owned(), (pod.to_owned(), group));
    }

    /// What was seen.
    pub fn end(self) -> Result<Vec<Run>> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| anyhow!("the thread that watches programs has panicked"))?
    }
}

fn watch(pods: &Mutex<Pods>, ends: &AtomicBool) -> Result<Vec<Run>> {
    let mut runs: HashMap<(Pid, Duration), Run> = HashMap::new();
    while !ends.load(Ordering::Relaxed) {
        for (pod, group) in pods.lock().values() {
            // Read before the processes: they ran at this moment at least.
            let now = uptime()?;
            for program in of_programs(cgroup::processes(group)) {
                let new = || Run { pod: pod.clone(), begun: program.begun, seen: now };
                let run = runs.entry((program.pid, program.begun)).or_insert_with(new);
                run.seen = run.seen.max(now);
            }
        }
        thread::park_timeout(LOOK);
    }
    Ok(runs.into_values().collect())
}

/// For how long no program ran, each time that one of another pod followed. Fails if programs of two pods ran at the
/// same moment.
pub fn gaps(mut runs: Vec<Run>) -> Result<Vec<Duration>> {
    runs.sort_by_key(|run| run.begun);
    let mut runs = runs.into_iter();
    let mut latest = runs.next().context("no program ran")?;
    let mut gaps = Vec::new();
    for run in runs {
        if run.pod == latest.pod {
            latest.seen = latest.seen.max(run.seen);
            continue;
        }
        ensure!(
            run.begun > latest.seen,
            "the program ran in {} until {:.2} s, and in {} from {:.2} s on",
            latest.pod,
            latest.seen.as_secs_f64(),
            run.pod,
            run.begun.as_secs_f64()
        );
        gaps.push(run.begun.saturating_sub(latest.seen));
        latest = run;
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pod: &str, begun: u64, seen: u64) -> Run {
        let [begun, seen] = [begun, seen].map(Duration::from_millis);
        Run { pod: pod.to_owned(), begun, seen }
    }

    #[test]
    fn programs_of_two_pods_follow_each_other() -> Result<()> {
        let runs = vec![run("b", 500, 900), run("a", 0, 300), run("a", 100, 200), run("a", 1_000, 1_000)];
        assert_eq!(gaps(runs)?, [200, 100].map(Duration::from_millis));
        assert!(gaps(Vec::new()).is_err(), "nothing was seen");
        Ok(())
    }

    #[test]
    fn programs_of_two_pods_at_the_same_moment_are_noticed() {
        let at_once = [
            vec![run("a", 0, 300), run("b", 300, 400)],
            vec![run("a", 0, 300), run("a", 100, 200), run("b", 250, 400)],
            vec![run("a", 0, 300), run("b", 400, 900), run("a", 500, 500)],
            vec![run("b", 0, 900), run("a", 100, 200)],
        ];
        for runs in at_once {
            let error = gaps(runs.clone()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("and in"), "{runs:?}: {error}");
        }
    }
}
