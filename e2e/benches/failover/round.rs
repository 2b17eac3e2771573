//! One round: a client calls, something happens to the pod that serves, and the client is served again.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use leadergroup_e2e::{
    client::{Calls, Client},
    moment::Moment,
    scenario::{STARTED, eventually},
};
use serde::Serialize;

use crate::{
    candidate::{Candidate, Kind, Serving},
    fault::Fault,
    measure::milliseconds,
};

/// Calls before the fault.
const BEFORE: usize = 50;
/// Calls that one pod must answer without a failure until the round is over: one second of calls, because kube-proxy
/// may apply a change that late.
const AFTER: usize = 100;
/// Kubernetes replaces a pod of a lost node after a minute.
const SERVED_AGAIN: Duration = Duration::from_mins(3);

/// The result of a round. Times are in milliseconds from the fault, as seen by the benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Until the new holder was decided on, where the API server shows it.
    pub(crate) decided: Option<f64>,
    /// Until it was labelled.
    pub(crate) labelled: Option<f64>,
    /// Until it was the only ready endpoint.
    pub(crate) endpoint: Option<f64>,
    /// Until it answered.
    pub(crate) answered: Option<f64>,
    /// The longest time between two answers.
    pub(crate) gap: f64,
    /// Calls without an answer.
    pub(crate) lost: usize,
    /// Answers of the former pod to calls that began after the new one had answered.
    pub(crate) stale: usize,
    /// Answers of a pod that was neither the former holder nor the next one. They count as lost. After a rollout the
    /// holders in between are not known.
    pub(crate) misrouted: Option<usize>,
    /// More than one pod was a ready endpoint at a time.
    pub(crate) two_endpoints: bool,
    /// The replica of the operator that owned the group was on the node that failed.
    pub(crate) with_owner: bool,
}

/// A candidate that is served, with a client that calls it.
pub(crate) struct Round<'a> {
    candidate: &'a Candidate,
    pub(crate) serving: Serving,
    client: Client,
}

impl<'a> Round<'a> {
    /// Waits until the candidate is settled, and starts a client on another node.
    pub(crate) async fn prepare(candidate: &'a Candidate) -> Result<Self> {
        let serving = candidate.settled().await?;
        let node = candidate.scenario.another_node(&serving.node)?;
        // The kernel still tracks connections of earlier rounds, and some of them lead to pods that hung.
        let service = candidate.scenario.service_address().await?.parse()?;
        candidate.scenario.stage.own()?.forget_connections(&node, service).await?;
        let client = candidate.call_from(&node).await?;
        client
            .until("answers", STARTED, |calls| calls.latest(BEFORE).answered_by(&serving.pod) == BEFORE)
            .await?;
        Ok(Self { candidate, serving, client })
    }

    /// Causes the fault, measures until the candidate is served again, and undoes the fault.
    pub(crate) async fn of(self, fault: Fault) -> Result<Figures> {
        let (candidate, serving) = (self.candidate, self.serving.clone());
        let figures = async {
            let at = fault.cause(candidate, &serving).await?;
            self.since(fault, at).await
        };
        let figures = figures.await;
        fault.undo(candidate, &serving).await?;
        figures
    }

    /// Measures from a fault that has happened.
    pub(crate) async fn since(self, fault: Fault, at: Moment) -> Result<Figures> {
        let (candidate, former) = (self.candidate, self.serving.pod.as_str());
        let served = eventually("the Service to be served again", SERVED_AGAIN, async || {
            let latest = self.client.latest(AFTER);
            let pod = server(&latest, at).with_context(|| latest.to_string())?;
            let only: BTreeSet<String> = [pod.clone()].into();
            let observed = &candidate.observed;
            ensure!(observed.endpoints.now() == only, "the endpoints are {:?}", observed.endpoints.now());
            let labelled = candidate.kind == Kind::Kubernetes || observed.labelled.now() == only;
            ensure!(labelled, "labelled active: {:?}", observed.labelled.now());
            ensure!(fault.is_over(candidate).await?, "it is not over");
            let same = !fault.moves() && self.client.calls().from(at).lost() > 0;
            ensure!(pod != former || same, "{former} still answers");
            Ok(pod)
        });
        let pod = served.await?;
        self.figures(fault, at, &pod).await
    }

    async fn figures(self, fault: Fault, at: Moment, pod: &str) -> Result<Figures> {
        let (observed, former) = (&self.candidate.observed, self.serving.pod.as_str());
        // The benchmark may see the label after the first answer.
        let decided = observed.decided.since(at).or(observed.labelled.since(at)).map(|after| at.plus(after));
        let is_wrong = |end: Moment, who: &str| {
            let early = who == pod && decided.is_some_and(|decided| end < decided);
            who != former && (who != pod || early) && end > at && fault != Fault::Rollout
        };
        let (all, misrouted) = self.client.stop().await?.losing(is_wrong);
        let calls = all.around(at);
        let switch = if pod == former { None } else { all.switch(former, pod, at) };
        let answered = switch.as_ref().map_or_else(|| calls.recovered(), |switch| Some(switch.first_new));
        // After a rollout the last change is not the only one.
        let single = |seen: Option<Duration>| seen.filter(|_| fault != Fault::Rollout).map(milliseconds);
        Ok(Figures {
            decided: single(observed.decided.since(at)),
            labelled: single(observed.labelled.since(at)),
            endpoint: single(observed.endpoints.since(at)),
            answered: single(answered.map(|answered| answered.since(at))),
            gap: milliseconds(calls.longest_gap()),
            lost: calls.lost(),
            stale: switch.map_or(0, |switch| switch.stale),
            misrouted: (fault != Fault::Rollout).then_some(misrouted),
            two_endpoints: observed.endpoints.most_since(at) > 1,
            with_owner: false,
        })
    }
}

/// The pod that has answered all of the last calls, if they began after a moment.
fn server(latest: &Calls, at: Moment) -> Option<String> {
    let latest = latest.from(at);
    let pods = latest.pods();
    (latest.len() == AFTER && latest.lost() == 0 && pods.len() == 1).then(|| pods[0].to_owned())
}
