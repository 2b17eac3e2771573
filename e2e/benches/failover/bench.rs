//! The course of the benchmark: the candidates side by side on one cluster, round after round.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::{join_all, try_join_all};
use leadergroup_e2e::{
    cluster::Cluster,
    command::progress,
    images::{Content, Image},
    moment::Moment,
    provider::Provider,
    scenario::{STARTED, Stage, beside},
};
use tokio::sync::Semaphore;

use crate::{
    candidate::{CANDIDATES, Candidate, ELECTOR, Kind, PROGRAM, Serving},
    fault::Fault,
    outcome::Outcome,
    round::{Figures, Round},
};

/// How many candidates have a round at the same time. kube-proxy counts the changes of all Services together, so that a
/// change of one of them can put off another's. Where seconds of silence come first, this matters little.
const ALONE: usize = 1;
const SIDE_BY_SIDE: usize = 4;
/// A candidate that fails this often at a fault is not measured further.
const FAILURES: usize = 3;
/// Rounds of a rollout, which replaces all pods, and of a power-off for Kubernetes alone, which takes it a minute.
const SLOW_ROUNDS: usize = 10;
/// kube-proxy's `minSyncPeriod`: its default, and a short one.
pub(crate) const PROXY_DEFAULT: Duration = Duration::from_secs(1);
pub(crate) const PROXY_SHORT: Duration = Duration::from_millis(100);
/// What is measured with the short one.
const WITH_SHORT: [Fault; 2] = [Fault::Switchover, Fault::Deletion];

/// What to measure.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Parts of names of candidates and faults; empty for all.
    pub(crate) only: Vec<String>,
}

impl Plan {
    fn wants<'a>(&self, name: &str, mut all: impl Iterator<Item = &'a str>) -> bool {
        let names = |word: &String| name.contains(word.as_str());
        let concerns = |word: &String| all.any(|one| one.contains(word.as_str()));
        self.only.iter().any(names) || !self.only.iter().any(concerns)
    }

    fn wants_fault(&self, fault: Fault) -> bool {
        self.wants(fault.name(), Fault::ALL.iter().map(|fault| fault.name()))
    }

    fn wants_candidate(&self, name: &str) -> bool {
        self.wants(name, CANDIDATES.iter().map(|(_, namespace, _)| *namespace))
    }
}

/// The cluster, the candidates and the results so far.
pub(crate) struct Bench {
    plan: Plan,
    stage: Rc<Stage>,
    candidates: Vec<Candidate>,
    outcome: RefCell<Outcome>,
}

impl Bench {
    /// Sets up the candidates.
    pub(crate) async fn set_up(stage: Rc<Stage>, plan: Plan) -> Result<Self> {
        create_tables(stage.own()?).await?;
        let wanted = CANDIDATES.into_iter().filter(|(_, namespace, _)| plan.wants_candidate(namespace));
        let candidates = try_join_all(wanted.map(|one| Candidate::set_up(&stage, one))).await?;
        let outcome = RefCell::new(Outcome::new(&plan)?);
        Ok(Self { plan, stage, candidates, outcome })
    }

    pub(crate) async fn run(self) -> Result<()> {
        let all: Vec<_> = self.candidates.iter().collect();
        // A pod that failed lately is not preferred by a planned change, so these come first.
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Switchover, Fault::Deletion, Fault::Rollout], ALONE).await;
        self.of_nodes(Fault::Drain).await?;
        if WITH_SHORT.iter().any(|fault| self.plan.wants_fault(*fault)) {
            self.stage.own()?.set_proxy_min_sync_period(PROXY_SHORT).await?;
            // With managed endpoints the first change after a pause is applied at once.
            let by_selector = |candidate: &&Candidate| {
                !matches!(candidate.kind, Kind::Ours { managed: true, .. } | Kind::Baseline)
            };
            let candidates: Vec<_> = self.candidates.iter().filter(by_selector).collect();
            self.of_pods(PROXY_SHORT, &candidates, &WITH_SHORT, ALONE).await;
            self.stage.own()?.set_proxy_min_sync_period(PROXY_DEFAULT).await?;
        }
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Crash], ALONE).await;
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Freeze], SIDE_BY_SIDE).await;
        self.of_nodes(Fault::PowerOff).await?;
        let history = self.stage.recorder.as_ref().context("nothing records")?.history().await?;
        self.outcome.into_inner().finish(&history)
    }

    /// The faults of single pods: each candidate by itself.
    async fn of_pods(
        &self,
        proxy: Duration,
        candidates: &[&Candidate],
        faults: &[Fault],
        side_by_side: usize,
    ) {
        let permits = Semaphore::new(side_by_side);
        let wanted = |fault: &&Fault| self.plan.wants_fault(**fault);
        join_all(candidates.iter().map(|candidate| async {
            for fault in faults.iter().filter(wanted).filter(|fault| fault.concerns(candidate.kind)) {
                let mut failures = 0;
                for _ in 0..self.rounds(candidate, *fault) {
                    let _permit = permits.acquire().await;
                    let figures = async { Round::prepare(candidate).await?.of(*fault).await };
                    failures += usize::from(!self.note(candidate, *fault, proxy, figures.await));
                    if failures == FAILURES {
                        break;
                    }
                }
                progress(&format!("{}: {} measured", candidate.name, fault.name()));
            }
        }))
        .await;
    }

    /// Faults of a node.
    async fn of_nodes(&self, fault: Fault) -> Result<()> {
        let (mut measured, mut failures) = (BTreeMap::new(), 0);
        for number in 0..if self.plan.wants_fault(fault) { self.plan.rounds } else { 0 } {
            let result = self.of_node(fault, &mut measured).await;
            self.stage.own()?.heal(STARTED).await?;
            for node in self.stage.own()?.nodes() {
                self.candidates[0].scenario.cordon(&node.name, false).await?;
            }
            self.stage.operator.ready(STARTED).await?;
            if let Err(error) = result {
                self.outcome.borrow_mut().failed(format!("{}: {error:#}", fault.name()));
                failures += 1;
            }
            if failures == FAILURES {
                break;
            }
            if (number + 1).is_multiple_of(10) {
                progress(&format!("{}: {} rounds", fault.name(), number + 1));
            }
        }
        Ok(())
    }

    /// One fault of a node, for all candidates that have their active pod there. Those of ours are moved there first.
    async fn of_node(&self, fault: Fault, measured: &mut BTreeMap<&'static str, usize>) -> Result<()> {
        let all: Vec<&Candidate> = self.candidates.iter().collect();
        let serving = try_join_all(all.iter().map(|candidate| candidate.settled())).await?;
        let left = |candidate: &Candidate| {
            self.rounds(candidate, fault).saturating_sub(measured.get(candidate.name).copied().unwrap_or(0))
        };
        let node = node_of_most(&all, &serving, left)?;
        let mut there = Vec::new();
        for (candidate, serving) in all.iter().zip(&serving) {
            let at_node = serving.node == node || candidate.move_to(&node).await?;
            if at_node && left(candidate) > 0 {
                there.push(*candidate);
            }
        }
        let rounds = try_join_all(there.iter().map(|candidate| Round::prepare(candidate))).await?;
        ensure!(rounds.iter().all(|round| round.serving.node == node), "a pod is not on {node} any more");
        let at = if fault == Fault::Drain {
            let at = Moment::now();
            self.candidates[0].scenario.cordon(&node, true).await?;
            at
        } else {
            Moment::from(self.stage.own()?.power_off(&node).await?)
        };
        let figures = join_all(rounds.into_iter().map(|round| async {
            fault.cause(round.candidate(), &round.serving).await?;
            round.since(fault, at).await
        }));
        for (candidate, figures) in there.iter().zip(figures.await) {
            if self.note(candidate, fault, PROXY_DEFAULT, figures) {
                *measured.entry(candidate.name).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Fewer rounds of what takes long.
    fn rounds(&self, candidate: &Candidate, fault: Fault) -> usize {
        let slow =
            fault == Fault::Rollout || (candidate.kind == Kind::Kubernetes && fault == Fault::PowerOff);
        if slow { self.plan.rounds.min(SLOW_ROUNDS) } else { self.plan.rounds }
    }

    /// Keeps the result of a round. False if it failed.
    fn note(&self, candidate: &Candidate, fault: Fault, proxy: Duration, figures: Result<Figures>) -> bool {
        let mut outcome = self.outcome.borrow_mut();
        match figures {
            Ok(figures) => {
                outcome.add(candidate.name, fault, proxy, figures);
                true
            }
            Err(error) => {
                outcome.failed(format!("{}, {}: {error:#}", candidate.name, fault.name()));
                false
            }
        }
    }
}

/// Starts the cluster with the operator and the images of the candidates.
pub(crate) async fn stage() -> Result<Rc<Stage>> {
    let provider = Box::pin(Provider::from_environment()).await?;
    let cluster = provider.faults().context("the benchmark needs its own cluster")?;
    load_images(cluster).await?;
    Stage::start(provider, &beside("leadergroup-e2e")?, &beside("leadergroup")?).await
}

/// The node with the most active pods of candidates that cannot be moved and still have to be measured.
fn node_of_most(
    all: &[&Candidate],
    serving: &[Serving],
    left: impl Fn(&Candidate) -> usize,
) -> Result<String> {
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    for (candidate, serving) in all.iter().zip(serving).filter(|(candidate, _)| !candidate.is_ours()) {
        *waiting.entry(&serving.node).or_default() += left(candidate);
    }
    let most = waiting.into_iter().max_by_key(|(_, left)| *left).map(|(node, _)| node);
    let any = serving.first().map(|serving| serving.node.as_str());
    Ok(most.or(any).context("there is no candidate")?.to_owned())
}

async fn load_images(cluster: &Cluster) -> Result<()> {
    let installed = |name: &str| format!("/usr/local/bin/{name}");
    let own = std::env::current_exe().context("cannot tell which program this is")?;
    let elector = cluster.program("elector")?;
    for (name, path, program) in [(PROGRAM, own, "failover"), (ELECTOR, elector, "elector")] {
        let content = Content::Program { path, installed: installed(program) };
        cluster.load_image(&Image { name: name.to_owned(), content }).await?;
    }
    Ok(())
}

async fn create_tables(cluster: &Cluster) -> Result<()> {
    use sqlx::{Connection as _, Executor as _, postgres::PgConnection};
    let mut connection = PgConnection::connect(&cluster.database().admin_url()).await?;
    connection.execute(crate::rivals::TABLES).await.context("creating the baseline's table")?;
    Ok(())
}
