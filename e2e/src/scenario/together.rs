//! What the scenarios leave for the checks of all of them together: their faults and deadlines, and the namespaces of
//! groups at rest.

use parking_lot::Mutex;

use crate::history::{Deadline, Fault, History};

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

    /// Whether scenarios run side by side.
    pub(super) fn is_going_on(&self) -> bool {
        self.0.lock().kept.is_some()
    }

    /// Whether a namespace is kept.
    pub(super) fn keep(&self, namespace: &str) -> bool {
        self.0.lock().kept.as_mut().is_some_and(|kept| {
            kept.push(namespace.to_owned());
            true
        })
    }

    /// Ends this, and returns the namespaces that were kept.
    pub(super) fn end(&self) -> Vec<String> {
        self.0.lock().kept.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::moment::Moment;

    #[test]
    fn the_faults_of_all_scenarios_explain_the_whole_history() {
        let fault =
            |uid: &str| Fault { uid: uid.into(), reasons: vec![], from: Moment::default(), until: None };
        let deadline = Deadline::usual("a", Moment::default(), "Silent", Duration::ZERO, Duration::ZERO);
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
        assert!(together.is_going_on());
        assert!(together.keep("one") && together.keep("other"));
        assert_eq!(together.end(), ["one", "other"]);
        assert!(!together.keep("alone") && !together.is_going_on());
    }
}
