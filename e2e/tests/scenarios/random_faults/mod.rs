//! Random faults, two at a time, over several groups: of nodes, networks, pods, PostgreSQL, the API server and the
//! operator. Among them are stopped kube-proxies, the database's clock (with the package faketime) and its failover to
//! a copy that lacks commits, cordoned nodes and requested switchovers. After each pair everything is mended, and all
//! groups must be served again, and all pods Ready. After the last pair the operator writes nothing for a minute (I8).
//! The history checker then finds out whether an invariant was broken at any revision. A fault that does not take place
//! fails the run. So does a run of an hour in which a kind of fault never took place.
//!
//! Active pods that certainly fail have deadlines (I6), where nothing else disturbs the failover before it is due
//! ([`Due`]). The run says how many there were, and a run of an hour without any fails.
//!
//! Clients on all nodes call and write to the groups `g0` and `g1`. After each pair they reach the active pod from
//! every node, and its writes to both books succeed. The books are judged until the database loses commits, which
//! happens only in the last quarter of a run.
//!
//! The pods of the group `g2` have agents, which run a program. No two of these programs run at the same moment (I9),
//! and after each pair of faults the active pod's runs.
//!
//! `LEADERGROUP_FAULTS_SEED`, `_MINUTES` and `_GROUPS` choose the sequence, how long it runs, and the number of groups.
//! The seed is printed. The same seed gives the same sequence of faults, not the same timing.

mod inject;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    rc::Rc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use kube::api::{ListParams, PostParams};
use leadergroup_e2e::{
    command::progress,
    deck::Deck,
    journal::{Journal, allow_reads},
    moment::Moment,
    random::Random,
    random_faults::{Due, Kind, LONG, Plan, Struck, Targets, proved},
    scenario::{STARTED, Scenario, Stage, TOLD, Workload, eventually, faults_setting, target_folder},
    timeline::{Injected, Timeline},
    view::{Fleet, deployment},
};
use tokio::time::{sleep, timeout};

use self::{
    inject::Injector,
    state::{active, first_served, served, targets, whole},
};
use crate::ownership::all_owned;

const NAMESPACE: &str = "e2e-random-faults";
/// In this part of a run no commits are lost: what applications have committed would be lost with them.
const BOOKS_ARE_JUDGED: f64 = 0.75;
/// The group whose pods have agents.
const SUPERVISED: u64 = 2;
/// Why its pods are replaced if an agent does not reach the API server: it ends its program, and says so.
const ENDED_PROGRAM: [&str; 2] = ["ProgramEnded", "ProbeRefused"];
/// How many pods a group has.
const REPLICAS: i32 = 2;
/// How long the last pair of faults may take. The scenario's own time limit is later, so that there is time for a page.
const LAST_PAIR: Duration = Duration::from_mins(2);

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    let seed = faults_setting("SEED")?.unwrap_or_else(|| u64::from(std::process::id()));
    let groups = faults_setting("GROUPS")?.unwrap_or(5);
    let lasts = Duration::from_mins(faults_setting("MINUTES")?.unwrap_or(1));
    progress(&format!("random faults: seed {seed}, {groups} groups, {} minutes", lasts.as_secs() / 60));
    let journal = Journal::new("random-faults")?;
    let workload = |group| workload(&journal, group);
    for group in (0..groups).filter(|group| watched(*group)) {
        Fleet::prepare(stage, NAMESPACE, &workload(group)?.name).await?;
    }
    let told = Scenario::play(stage, "random-faults", workload(0)?, async |s| {
        s.other_promotions = 0..=usize::MAX;
        allow_reads(s).await?;
        for group in 1..groups {
            s.deployments().create(&PostParams::default(), &workload(group)?.deployment()?).await?;
            s.services().create(&PostParams::default(), &workload(group)?.service()?).await?;
        }
        for group in 0..groups {
            let workload = workload(group)?;
            s.groups().create(&PostParams::default(), &workload.group(&workload.name)?).await?;
        }
        first_served(s, groups).await?;
        whole(s, groups).await.context("before any fault")?;
        let mut run = Run::new(s, seed, groups, &journal).await?;
        run.two_terms(s).await.context("before any fault")?;
        let (start, mut rounds, mut longest) = (Moment::now(), 0, Duration::ZERO);
        let told = async {
            while Moment::now().since(start) < lasts {
                rounds += 1;
                // From then on the clients' books are not judged.
                run.may_lose_commits = Moment::now().since(start) > lasts.mul_f64(BOOKS_ARE_JUDGED);
                let served = run.round(s).await.with_context(|| format!("seed {seed}, round {rounds}"))?;
                longest = longest.max(served);
            }
            anyhow::Ok(())
        };
        let told = timeout(lasts + LAST_PAIR, told).await.unwrap_or_else(|_| {
            Err(anyhow!("seed {seed}, round {rounds}: not over {LAST_PAIR:?} after the end of the run"))
        });
        let told = match told.and_then(|()| run.had_all_kinds(lasts)) {
            // The clients still call: their calls are no reason to write, either.
            Ok(()) => s.minute_of_quiet().await,
            told => told,
        };
        if told.is_err() {
            // The end of the scenario reads from the API server. Its error is not the one to report.
            if let Err(error) = run.injector.undo(s).await {
                progress(&format!("the faults could not be mended: {error:#}"));
            }
        }
        let text = format!(
            "seed {seed}: {rounds} pairs of faults over {groups} groups; served again after {:.1} s at most",
            longest.as_secs_f64()
        );
        run.note(s, text);
        let told = told.and(run.due(s, lasts).await);
        let told = told.and(run.programs(s));
        run.end(s, (start, Moment::now()), told).await
    })
    .await;
    told.and(journal.remove())
}

fn name(group: u64) -> String {
    format!("g{group}")
}

/// A group's workload. The operator writes the endpoints of every second group.
fn workload(journal: &Journal, group: u64) -> Result<Workload> {
    if group == SUPERVISED {
        return journal.workload(&name(group), REPLICAS);
    }
    let usual =
        Workload { name: name(group), replicas: REPLICAS, managed: group % 2 == 1, ..Workload::default() };
    let serving = || deployment(NAMESPACE, &usual.name, usual.replicas).map(Box::new);
    Ok(Workload { deployment: watched(group).then(serving).transpose()?, ..usual })
}

/// The state of a run.
struct Run<'a> {
    random: Random,
    kinds: Deck<Kind>,
    injector: Injector,
    groups: u64,
    /// The faults so far.
    faults: Vec<Injected>,
    /// The failovers that can be asked for.
    due: Due,
    /// The clients of the groups that have some, by the group's name.
    fleets: BTreeMap<String, Fleet>,
    may_lose_commits: bool,
    /// What the programs of the group with agents have written, and which pods have stood still.
    journal: &'a Journal,
    stood_still: BTreeSet<String>,
    /// What there is to say at the end.
    notes: Vec<String>,
}

/// Whether clients on all nodes call and write to this group: one by selector, and one with managed endpoints.
fn watched(group: u64) -> bool {
    group < 2
}

impl<'a> Run<'a> {
    async fn new(s: &Scenario, seed: u64, groups: u64, journal: &'a Journal) -> Result<Self> {
        let injector = Injector::new(s).await?;
        let mut fleets = BTreeMap::new();
        for name in (0..groups).filter(|group| watched(*group)).map(|group| format!("g{group}")) {
            fleets.insert(name.clone(), Fleet::start(s, &name).await?);
        }
        Ok(Self {
            random: Random::new(seed),
            kinds: Deck::new(Kind::ALL),
            injector,
            groups,
            faults: Vec::new(),
            due: Due::new(s.workload.group("x")?.spec.health.silence_timeout.0),
            fleets,
            may_lose_commits: false,
            journal,
            stood_still: BTreeSet::new(),
            notes: Vec::new(),
        })
    }

    /// Lets the groups with clients change their holder once. Otherwise a short run may show nothing about the fence.
    async fn two_terms(&self, s: &mut Scenario) -> Result<()> {
        const REQUEST: &str = "before any fault";
        for (group, fleet) in &self.fleets {
            fleet.reaches(&active(s, group).await?).await?;
            let pods = s.pods().list(&ListParams::default().labels(&format!("app={group}"))).await?;
            s.fails_for(pods.items.into_iter().filter_map(|pod| pod.metadata.uid), &["Switchover"]);
            s.request_switchover(group, REQUEST, None).await?;
            eventually("the requested switchover", STARTED, async || {
                let last = s.groups().get(group).await?.status.unwrap_or_default().switchover;
                let is_done = last.as_ref().is_some_and(|last| last.request == REQUEST);
                ensure!(is_done, "{group} has {last:?}");
                Ok(())
            })
            .await?;
            served(s, self.groups).await?;
            fleet.reaches(&active(s, group).await?).await?;
        }
        s.all_recover();
        Ok(())
    }

    /// Tells the clients what to expect of a fault.
    fn warn(&mut self, plan: &Plan, targets: &Targets) {
        for fleet in self.fleets.values_mut() {
            for node in plan.outdated(targets) {
                fleet.node_is_away(node);
            }
            for pod in plan.hanging(targets) {
                fleet.pod_hangs(&pod);
            }
            if plan.kind == Kind::DatabaseFailedOver {
                fleet.loses_commits();
            }
        }
    }

    /// Fails if a run was long enough for all kinds of faults, and one of them never took place.
    fn had_all_kinds(&self, lasts: Duration) -> Result<()> {
        let never = self.kinds.undealt();
        ensure!(lasts < LONG || never.is_empty(), "these kinds of faults never took place: {never:?}");
        Ok(())
    }

    /// Hands the deadlines of the run to the checker. Fails if it was long, and there is none.
    async fn due(&mut self, s: &mut Scenario, lasts: Duration) -> Result<()> {
        let due = s.are_replaced(self.due.take()).await.context("the deadlines of failovers")?;
        self.note(s, proved(due, lasts)?);
        Ok(())
    }

    /// Whether there is a group with agents.
    fn has_agents(&self) -> bool {
        self.groups > SUPERVISED
    }

    /// Judges when the programs of the group with agents ran (I9).
    fn programs(&mut self, s: &mut Scenario) -> Result<()> {
        if self.has_agents() {
            let terms = self.journal.terms(&self.stood_still)?;
            self.note(s, format!("{}: programs in {terms}", name(SUPERVISED)));
        }
        Ok(())
    }

    /// Waits until the program of the active pod runs.
    async fn works(&self, s: &Scenario) -> Result<()> {
        if self.has_agents() {
            eventually("the program of the active pod", STARTED, async || {
                self.journal.is_written(&active(s, &name(SUPERVISED)).await?)
            })
            .await?;
        }
        Ok(())
    }

    fn note(&mut self, s: &mut Scenario, text: String) {
        progress(&format!("  {text}"));
        s.note(text.clone());
        self.notes.push(text);
    }

    /// Judges what the clients saw, and writes down the run for its page.
    async fn end(self, s: &mut Scenario, during: (Moment, Moment), told: Result<()>) -> Result<()> {
        let calls = self.fleets.iter().map(|(group, fleet)| (group.clone(), fleet.calls())).collect();
        let mut run = Timeline::of(&s.objects().await?, during, self.faults, &calls);
        run.title.push_str("Random faults");
        run.notes.extend(self.notes);
        let mut verdicts = Ok(());
        if told.is_ok() {
            let history = s.history().await?;
            for (group, fleet) in self.fleets {
                let verdict = fleet.verdict(&history).await?;
                let text = format!("{group}: {verdict}");
                progress(&format!("  {text}"));
                s.note(text.clone());
                run.notes.push(text);
                verdicts = verdicts.and(verdict.ensure().with_context(|| group));
            }
        }
        let told = told.and(verdicts);
        run.found.extend(told.as_ref().err().map(|error| format!("{error:#}")));
        let file = target_folder()?.join("random-faults.json");
        fs::write(&file, serde_json::to_vec(&run)?).with_context(|| format!("writing {}", file.display()))?;
        progress(&format!("`leadergroup-e2e page {}` makes a page of this run", file.display()));
        told
    }

    /// Two faults, for some seconds each. Returns how long it took after they were mended until all groups were served.
    async fn round(&mut self, s: &mut Scenario) -> Result<Duration> {
        let targets = targets(s).await?;
        let began = self.faults.len();
        let mut struck: Vec<Struck> = Vec::new();
        for _ in 0..2 {
            let may = |kind| self.may_lose_commits || kind != Kind::DatabaseFailedOver;
            let first = struck.first().map(|fault| fault.plan.clone());
            let plan = targets.choose(&mut self.kinds, may, &mut self.random, first.as_ref());
            let plan = plan.context("there is nothing to disturb")?;
            let fault = self.strike(s, plan, first.as_ref(), &targets).await?;
            struck.push(fault);
        }
        self.injector.undo(s).await?;
        let mended = Moment::now();
        for fault in self.faults.iter_mut().skip(began) {
            fault.until = mended;
        }
        // A program with an agent is replaced only when its lease is over.
        self.due.add(&targets.without(&name(SUPERVISED)), &struck, mended);
        served(s, self.groups).await?;
        let took = Moment::now().since(mended);
        for Struck { plan, .. } in &struck {
            let checked = self.injector.took_place(s, plan, &targets).await;
            checked.with_context(|| format!("{:?} {} did not take place", plan.kind, plan.target()))?;
        }
        s.stage.operator.ready(STARTED).await?;
        whole(s, self.groups).await?;
        self.works(s).await?;
        // The next faults have deadlines, which assume that the operator works.
        all_owned(s, self.groups).await?;
        for (group, fleet) in &mut self.fleets {
            fleet.mended().await?;
            eventually(&format!("the clients of {group} to reach its active pod"), TOLD, async || {
                // A change that the faults have delayed may still take place.
                fleet.has_reached(&active(s, group).await?)
            })
            .await?;
        }
        // Only now: what the API server said of a group while it was served may be from before the faults.
        s.all_recover();
        Ok(took)
    }

    /// Causes a fault while `first` lasts, and waits for some seconds.
    async fn strike(
        &mut self,
        s: &mut Scenario,
        plan: Plan,
        first: Option<&Plan>,
        targets: &Targets,
    ) -> Result<Struck> {
        progress(&format!("  {:?} {}", plan.kind, plan.target()));
        let pods = plan.excused(targets, first);
        s.fails_for(pods.clone(), plan.kind.reasons());
        if let Some(first) = first {
            let pods = first.excused(targets, Some(&plan));
            if let Some(injected) = self.faults.last_mut() {
                injected.pods.clone_from(&pods);
            }
            s.fails_for(pods, first.kind.reasons());
        }
        self.warn(&plan, targets);
        let agents = targets.pods.iter().filter(|pod| pod.group == name(SUPERVISED));
        // Where an agent does not reach the API server, its lease ends, and with it the program.
        s.fails_for(agents.map(|pod| pod.uid.clone()), &ENDED_PROGRAM);
        let still = plan.standing(targets).map(|pod| pod.name.clone());
        self.stood_still.extend(still);
        let now = Moment::now();
        let kind = format!("{:?}", plan.kind);
        self.faults.push(Injected { kind, target: plan.target(), pods, from: now, until: now });
        let caused = self.injector.begin(s, &plan, &mut self.random).await;
        let from = caused.with_context(|| format!("{:?} {} did not take place", plan.kind, plan.target()))?;
        let pause = 1_000 + self.random.below(9_000);
        sleep(Duration::from_millis(u64::try_from(pause)?)).await;
        // What comes next may disturb a failover from now on.
        Ok(Struck { plan, from, until: Moment::now() })
    }
}
