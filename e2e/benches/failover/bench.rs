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
/// kube-proxy's `minSyncPeriod`: its default, and a short one.
pub(crate) const PROXY_DEFAULT: Duration = Duration::from_secs(1);
pub(crate) const PROXY_SHORT: Duration = Duration::from_millis(100);
/// The time between the last planned change and a power-off. A node seldom loses power right after a change of holder,
/// and within seconds of it groups go to owners on other nodes.
const REST: Duration = Duration::from_secs(15);
/// What is measured with the short one.
const WITH_SHORT: [Fault; 2] = [Fault::Switchover, Fault::Deletion];

/// How many rounds of a candidate ended, and how.
#[derive(Clone, Copy, Default)]
struct Ended {
    measured: usize,
    failed: usize,
}

/// What to measure.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Parts of names of candidates and faults; empty for all.
    pub(crate) only: Vec<String>,
}

impl Plan {
    /// Fails if a word selects nothing.
    pub(crate) fn check(&self) -> Result<()> {
        let names = || CANDIDATES.iter().map(|(_, namespace, _)| *namespace);
        for word in &self.only {
            let all = names().chain(Fault::ALL.iter().map(|fault| fault.name()));
            let known = all.collect::<Vec<_>>().join(", ");
            ensure!(
                known.split(", ").any(|name| name.contains(word.as_str())),
                "{word} is not part of any of {known}"
            );
        }
        Ok(())
    }

    fn wants(&self, name: &str, all: &[&str]) -> bool {
        let names = |word: &String| name.contains(word.as_str());
        let concerns = |word: &String| all.iter().any(|one| one.contains(word.as_str()));
        self.only.iter().any(names) || !self.only.iter().any(concerns)
    }

    fn wants_fault(&self, fault: Fault) -> bool {
        self.wants(fault.name(), &Fault::ALL.map(Fault::name))
    }

    fn wants_candidate(&self, name: &str) -> bool {
        self.wants(name, &CANDIDATES.map(|(_, namespace, _)| namespace))
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

    /// Measures everything. What was measured before an error is kept.
    pub(crate) async fn run(self) -> Result<()> {
        let course = self.measure().await;
        let history = self.stage.recorder.as_ref().context("nothing records")?.history().await?;
        self.outcome.into_inner().finish(&history)?;
        course
    }

    async fn measure(&self) -> Result<()> {
        let all: Vec<_> = self.candidates.iter().collect();
        // A pod that failed lately is not preferred by a planned change, so these come first.
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Switchover, Fault::Deletion, Fault::Rollout], ALONE).await;
        self.drains().await?;
        if WITH_SHORT.iter().any(|fault| self.plan.wants_fault(*fault)) {
            self.stage.own()?.set_proxy_min_sync_period(PROXY_SHORT).await?;
            // A change that is not measured: kube-proxy has started when a client notices it.
            Round::prepare(all[0]).await?.of(Fault::Deletion).await?;
            let candidates: Vec<_> =
                self.candidates.iter().filter(|candidate| candidate.kind != Kind::ClientGo(&[])).collect();
            self.of_pods(PROXY_SHORT, &candidates, &WITH_SHORT, ALONE).await;
            self.stage.own()?.set_proxy_min_sync_period(PROXY_DEFAULT).await?;
            Round::prepare(all[0]).await?.of(Fault::Deletion).await?;
        }
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Crash], ALONE).await;
        self.of_pods(PROXY_DEFAULT, &all, &[Fault::Freeze], SIDE_BY_SIDE).await;
        self.power_offs().await
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
                    let figures = async { Round::prepare(candidate).await?.of(*fault).await }.await;
                    let measured = self.outcome.borrow_mut().add(candidate, *fault, proxy, figures);
                    failures += usize::from(!measured);
                    if failures == FAILURES {
                        break;
                    }
                }
                progress(&format!("{}: {} measured", candidate.name, fault.name()));
            }
        }))
        .await;
    }

    /// Drains, each for one candidate. A cordon concerns every group with its active pod on the node, so the other
    /// groups are paused.
    async fn drains(&self) -> Result<()> {
        if !self.plan.wants_fault(Fault::Drain) {
            return Ok(());
        }
        let pause_all = async |paused| {
            try_join_all(self.candidates.iter().map(|candidate| candidate.pause(paused))).await.map(drop)
        };
        pause_all(true).await?;
        for candidate in &self.candidates {
            candidate.pause(false).await?;
            self.of_pods(PROXY_DEFAULT, &[candidate], &[Fault::Drain], ALONE).await;
            candidate.pause(true).await?;
        }
        pause_all(false).await
    }

    async fn power_offs(&self) -> Result<()> {
        let fault = Fault::PowerOff;
        if !self.plan.wants_fault(fault) {
            return Ok(());
        }
        let (mut ended, mut failures) = (BTreeMap::new(), 0);
        for number in 1..=self.rounds(&self.candidates[0], fault) {
            let result = self.power_off(&mut ended).await;
            self.stage.own()?.heal(STARTED).await?;
            self.stage.operator.ready(STARTED).await?;
            if let Err(error) = result {
                eprintln!("failed: {}: {error:#}", fault.name());
                failures += 1;
            }
            if failures == FAILURES {
                break;
            }
            if number.is_multiple_of(10) {
                progress(&format!("{}: {number} rounds", fault.name()));
            }
        }
        Ok(())
    }

    /// One power-off, for all candidates that have their active pod on the node. Those of ours are moved there first.
    async fn power_off(&self, ended: &mut BTreeMap<&'static str, Ended>) -> Result<()> {
        let fault = Fault::PowerOff;
        let left = |candidate: &Candidate, ended: &BTreeMap<&str, Ended>| {
            let ended = ended.get(candidate.name).copied().unwrap_or_default();
            let given_up = ended.failed >= FAILURES || !fault.concerns(candidate.kind);
            if given_up { 0 } else { self.rounds(candidate, fault).saturating_sub(ended.measured) }
        };
        let all: Vec<&Candidate> =
            self.candidates.iter().filter(|candidate| left(candidate, ended) > 0).collect();
        let serving = join_all(all.iter().map(|candidate| candidate.settled())).await;
        let serving: Vec<_> = all.into_iter().zip(serving).collect();
        let node = node_of_most(&serving, |candidate| left(candidate, ended))?;
        let node = node.as_str();
        let rounds = join_all(serving.into_iter().map(|(candidate, serving)| async move {
            let there = async { anyhow::Ok(serving?.node == node || candidate.move_to(node).await?) };
            match there.await {
                Ok(true) => Some((candidate, Round::prepare(candidate).await)),
                Ok(false) => None,
                Err(error) => Some((candidate, Err(error))),
            }
        }));
        let rounds: Vec<_> = rounds.await.into_iter().flatten().collect();
        tokio::time::sleep(REST).await;
        let owned = owned_on(self.stage.own()?, node).await?;
        let owned = owned.as_str();
        let at = Moment::from(self.stage.own()?.power_off(node).await?);
        let figures = join_all(rounds.into_iter().map(|(candidate, round)| async move {
            let figures = async {
                let round = round?;
                ensure!(round.serving.node == node, "{} is not on {node} any more", round.serving.pod);
                let key = format!("/{}/", candidate.scenario.namespace);
                Ok(Figures { with_owner: owned.contains(&key), ..round.since(fault, at).await? })
            };
            (candidate, figures.await)
        }));
        for (candidate, figures) in figures.await {
            let ended = ended.entry(candidate.name).or_default();
            let measured = self.outcome.borrow_mut().add(candidate, fault, PROXY_DEFAULT, figures);
            *(if measured { &mut ended.measured } else { &mut ended.failed }) += 1;
        }
        Ok(())
    }

    /// Fewer rounds of what takes a minute.
    fn rounds(&self, candidate: &Candidate, fault: Fault) -> usize {
        let takes_long = fault == Fault::PowerOff && candidate.kind == Kind::Kubernetes;
        if takes_long { self.plan.rounds.min(6) } else { self.plan.rounds }
    }
}

/// The keys of the groups whose owner is on a node.
async fn owned_on(cluster: &Cluster, node: &str) -> Result<String> {
    let owned = format!(
        "select l.key from leadergroup.lock l join leadergroup.session s on s.id = l.session \
         where not s.dead and s.place = '{node}'"
    );
    cluster.database().sql("leadergroup", &owned).await
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
    serving: &[(&Candidate, Result<Serving>)],
    left: impl Fn(&Candidate) -> usize,
) -> Result<String> {
    let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
    for (candidate, serving) in serving {
        let Ok(serving) = serving else { continue };
        *waiting.entry(&serving.node).or_default() += if candidate.is_ours() { 0 } else { left(candidate) };
    }
    let most = waiting.into_iter().max_by_key(|(_, left)| *left).map(|(node, _)| node.to_owned());
    most.context("no candidate is left, or none is served")
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
