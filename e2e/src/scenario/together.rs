//! What the scenarios leave for the checks of all of them together: their faults, and groups at rest that are watched
//! for a minute.

use std::{rc::Rc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use parking_lot::Mutex;
use tokio::time::{self, Instant};

use super::stage::target_folder;
use super::{STARTED, Stage, eventually};
use crate::history::{Deadline, Fault, History, operator_writes};

/// How long the groups of the scenarios that ran side by side are watched. Longer than every interval of the operator
/// at which it might write: resync, anti-entropy, backoff of reports.
const MINUTE: Duration = Duration::from_mins(1);
/// How often it is looked for writes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the scenarios left.
#[derive(Debug, Default)]
pub struct Together(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    faults: Vec<Fault>,
    deadlines: Vec<Deadline>,
    /// The namespaces of scenarios that have ended well, while they are kept.
    kept: Option<Vec<String>>,
}

impl Together {
    /// Adds the faults and deadlines of a scenario.
    pub(super) fn add(&self, faults: &[Fault], deadlines: &[Deadline]) {
        let mut left = self.0.lock();
        left.faults.extend_from_slice(faults);
        left.deadlines.extend_from_slice(deadlines);
    }

    /// Adds those of scenarios that played on another stage of the same cluster.
    pub fn add_all(&self, other: &Self) {
        let other = other.0.lock();
        self.add(&other.faults, &other.deadlines);
    }

    /// A history of all namespaces, with the faults and deadlines of all scenarios: what must be checked at the end.
    #[must_use]
    pub fn explain(&self, history: History) -> History {
        let left = self.0.lock();
        History { faults: Some(left.faults.clone()), deadlines: left.deadlines.clone(), ..history }
    }

    /// From now on the namespaces of scenarios that end well are kept.
    pub(super) fn begin(&self) {
        self.0.lock().kept = Some(Vec::new());
    }

    /// Whether a namespace is kept.
    pub(super) fn keep(&self, namespace: &str) -> bool {
        self.0.lock().kept.as_mut().is_some_and(|kept| {
            kept.push(namespace.to_owned());
            true
        })
    }

    fn end(&self) -> Vec<String> {
        self.0.lock().kept.take().unwrap_or_default()
    }
}

/// I8: watches the groups of all kept namespaces for a minute, in which the operator must write nothing, and deletes the
/// namespaces.
pub(super) async fn minute_of_quiet(stage: &Rc<Stage>) -> Result<()> {
    let kept = stage.together.end();
    let Some(recorder) = stage.recorder.as_ref().filter(|_| !kept.is_empty()) else { return Ok(()) };
    let names: Vec<&str> = kept.iter().map(String::as_str).collect();
    let revision = recorder.revision().await?;
    let quiet = stays_quiet(MINUTE, async || {
        let history = recorder.objects().await?.of_namespaces(&names);
        let writes = operator_writes(&history, revision);
        if !writes.is_empty() {
            history.dump(&target_folder()?.join("e2e-dump/quiet.jsonl"))?;
        }
        Ok(writes)
    });
    let quiet = quiet.await.with_context(|| format!("a minute of quiet (I8) of the groups in {names:?}"));
    let namespaces: Api<Namespace> = Api::all(stage.kube.clone());
    for name in &names {
        namespaces.delete(name, &DeleteParams::default()).await.context("deleting a namespace")?;
    }
    // The next scenarios are not to be measured beside this.
    eventually("the namespaces to be gone", STARTED, async || {
        for name in &names {
            ensure!(namespaces.get_opt(name).await?.is_none(), "{name} is still there");
        }
        Ok(())
    })
    .await?;
    quiet
}

/// Fails as soon as there are writes within this time.
pub(super) async fn stays_quiet(
    lasting: Duration,
    mut writes: impl AsyncFnMut() -> Result<Vec<String>>,
) -> Result<()> {
    let end = Instant::now() + lasting;
    loop {
        time::sleep_until(end.min(Instant::now() + LOOK_EVERY)).await;
        // What is written from now on is not of this time.
        let is_over = Instant::now() >= end;
        let found = writes().await?;
        ensure!(found.is_empty(), "within {} s the operator wrote {found:?}", lasting.as_secs());
        if is_over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moment;

    #[test]
    fn the_faults_of_all_scenarios_explain_the_whole_history() {
        let fault =
            |uid: &str| Fault { uid: uid.into(), reasons: vec![], from: Moment::default(), until: None };
        let deadline = Deadline::usual("a", Moment::default(), "Silent", MINUTE, MINUTE);
        let (together, elsewhere) = (Together::default(), Together::default());
        together.add(&[fault("a")], std::slice::from_ref(&deadline));
        elsewhere.add(&[fault("b")], &[]);
        together.add_all(&elsewhere);
        let history = together.explain(History::default());
        assert_eq!(history.faults, Some(vec![fault("a"), fault("b")]));
        assert_eq!(history.deadlines, [deadline]);
        let none = Together::default().explain(History::default());
        assert_eq!(
            none.faults,
            Some(Vec::new()),
            "no fault is known, which is not the same as an unknown list"
        );
    }

    #[test]
    fn only_namespaces_of_scenarios_side_by_side_are_kept() {
        let together = Together::default();
        assert!(!together.keep("alone"));
        together.begin();
        assert!(together.keep("one") && together.keep("other"));
        assert_eq!(together.end(), ["one", "other"]);
        assert!(!together.keep("alone"));
    }

    #[tokio::test]
    async fn a_writer_is_noticed_at_the_last_look_at_the_latest() {
        assert_eq!(MINUTE, Duration::from_mins(1), "a writer every 3 s, and one every 40 s");
        let lasting = Duration::from_millis(30);
        let start = Instant::now();
        let late = async || {
            let is_late = start.elapsed() >= lasting;
            Ok(is_late.then(|| "LeaderGroup ns/web".to_owned()).into_iter().collect())
        };
        assert!(stays_quiet(lasting, late).await.is_err());
        assert!(stays_quiet(lasting, async || Ok(Vec::new())).await.is_ok());
        assert!(start.elapsed() >= lasting * 2, "it watches for all of the time");
    }
}
