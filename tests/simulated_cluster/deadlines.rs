//! I6: single faults. An active pod that certainly fails while nothing else is disturbed must be replaced within the
//! time that the design promises, and the Service must route to the next one.

use std::{collections::BTreeSet, time::Duration};

use leadergroup::api::{HealthSpec, ROLE_LABEL};
use leadergroup_agent::contract::outlasts;
use leadergroup_e2e::{
    deck::Deck,
    history::{ACTS, Deadline},
    random::Random,
};

use crate::{
    api_server::{Kind, Object, Store},
    cluster::NAMESPACE,
    faults::{self, Undo},
    network::Program,
    played::Failed,
    recorded::moment,
    replica,
    services::routed_to,
    simulation::Simulation,
    slices::FAMILIES,
};

/// The longest pause between a fault and the next one, when everything works again.
const PAUSE: Duration = Duration::from_secs(4);
/// How long that may take.
const WORKS: Duration = Duration::from_mins(1);
/// How long after the deadline the fault lasts, and the Service may still route elsewhere.
const AFTER: Duration = Duration::from_millis(500);

/// A certain failure of an active pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    Hangs,
    Fails,
    Deleted,
    DeletedByForce,
    /// Its node is lost, with the replica there.
    NodeLost,
}

impl Failure {
    pub const ALL: [Self; 5] =
        [Self::Hangs, Self::Fails, Self::Deleted, Self::DeletedByForce, Self::NodeLost];

    /// When a pod that fails so now must be replaced. `left`: the nodes of the other pods of its group that are not
    /// lost.
    fn deadline(self, pod: &Pod, left: &BTreeSet<&str>, now: Duration) -> Deadline {
        let uid = pod.uid.as_str();
        let HealthSpec { interval, silence_timeout, failure_threshold, .. } = HealthSpec::default();
        let usual = |reason, silence| {
            Deadline::usual(uid, moment(now), reason, silence, interval.0 * failure_threshold)
        };
        let settings = replica::settings("replica", "node");
        let deadline = match self {
            Self::Hangs => usual("Silent", silence_timeout.0),
            Self::Fails => usual("ProbeRefused", silence_timeout.0),
            // There is no request of the test that takes time.
            Self::Deleted | Self::DeletedByForce => {
                Deadline { within: ACTS, ..usual("PodDeleted", silence_timeout.0) }
            }
            // If all pods that are left are on the owner's node, it reaches no other node until it probes the pods of
            // the lost replica, whose heartbeats are late. The silence counts from then on.
            Self::NodeLost if left.len() == 1 => usual("Silent", silence_timeout.0 + settings.ttl),
            // The next owner waits for the end of the lost replica's session, from its last heartbeat on.
            Self::NodeLost => usual("Silent", silence_timeout.0.max(settings.ttl + settings.retry_interval)),
        };
        // The next pod becomes active when the program of the former one is over. Nobody says so of a pod that does not
        // answer, or is gone at once: then the change waits for the lease. The program of a pod that is deleted may
        // ignore that until the agent kills it. A report that such an active pod is not ready is no evidence.
        let Some(lease) = pod.lease else { return deadline };
        let over = outlasts(lease);
        let from_evidence = match self {
            Self::Deleted | Self::DeletedByForce => deadline.from_evidence + over,
            Self::Hangs | Self::Fails | Self::NodeLost => Duration::MAX,
        };
        Deadline { within: deadline.within + over, from_evidence, ..deadline }
    }
}

/// A pod as the API server shows it.
struct Pod {
    name: String,
    uid: String,
    group: String,
    node: String,
    is_active: bool,
    /// The lease of the program of its group, if that has agents.
    lease: Option<Duration>,
}

/// Lets active pods fail, one after the other in each of these ways. Returns how, for those that must be replaced.
pub fn single_faults(run: &mut Simulation, seed: u64) -> Result<Vec<Failure>, Failed> {
    run.random = Random::new(seed ^ 5);
    let (mut deck, mut due) = (Deck::new(&Failure::ALL), Vec::new());
    for _ in Failure::ALL {
        until_everything_works(run)?;
        let pause = run.millis(PAUSE);
        run.run(pause);
        let pods = pods(&run.api.store());
        let active: Vec<&Pod> = pods.iter().filter(|pod| pod.is_active).collect();
        let Some(chosen) = run.random.pick(&active) else { continue };
        let Some(failure) = deck.deal(&mut run.random, |failure, _| Some(failure)) else { continue };
        let is_lost = |pod: &Pod| match failure {
            Failure::NodeLost => pod.node == chosen.node,
            _ => pod.uid == chosen.uid,
        };
        let replaceable = |lost: &&&Pod| {
            is_lost(lost) && pods.iter().any(|other| other.group == lost.group && !is_lost(other))
        };
        let lost: Vec<&&Pod> = active.iter().filter(replaceable).collect();
        let deadline = |pod: &&&Pod| {
            let left = pods.iter().filter(|other| other.group == pod.group && !is_lost(other));
            failure.deadline(pod, &left.map(|other| other.node.as_str()).collect(), run.now)
        };
        let deadlines: Vec<Deadline> = lost.iter().map(deadline).collect();
        let Some(within) = deadlines.iter().map(|deadline| deadline.within).max() else { continue };
        tracing::info!(?failure, pod = chosen.name, at = ?run.now, "a single fault");
        due.extend(deadlines.iter().map(|_| failure));
        run.deadlines.extend(deadlines);
        let undo = run.act(|run| strike(run, failure, chosen));
        let (against, reasons) = undo.as_ref().map_or_else(Default::default, |undo| undo.counts_against(run));
        let recorded = run.fault(against, reasons);
        run.run(within + AFTER);
        lost.iter().try_for_each(|pod| is_routed_elsewhere(run, pod, failure))?;
        if let Some(undo) = undo {
            let now = run.now;
            run.act(|run| faults::undo(run, undo, now, recorded));
        }
    }
    until_everything_works(run)?;
    Ok(due)
}

fn strike(run: &mut Simulation, failure: Failure, pod: &Pod) -> Option<Undo> {
    match failure {
        Failure::Hangs | Failure::Fails => {
            let program = if failure == Failure::Hangs { Program::Hangs } else { Program::Fails };
            assert!(run.cluster.set_program(&pod.name, program, run.now), "{} works", pod.name);
            return Some(Undo::Program(pod.name.clone()));
        }
        Failure::Deleted => assert!(run.cluster.delete_pod(&pod.name, false), "{} is there", pod.name),
        Failure::DeletedByForce => assert!(run.cluster.delete_pod(&pod.name, true), "{} is there", pod.name),
        Failure::NodeLost => {
            assert!(run.cluster.power(&pod.node, false), "{} is on", pod.node);
            run.stop_replicas_on(&pod.node);
            return Some(Undo::Power(pod.node.clone()));
        }
    }
    None
}

/// Lets time pass until all pods of all groups are ready and all groups, too.
fn until_everything_works(run: &mut Simulation) -> Result<(), Failed> {
    let until = run.now + WORKS;
    while !everything_works(run) {
        if run.now >= until {
            return Err(Failed::new("it does not work again", run.state()));
        }
        run.run(Duration::from_millis(500));
    }
    Ok(())
}

fn everything_works(run: &Simulation) -> bool {
    if !run.programs_at_rest().is_empty() {
        return false;
    }
    let store = run.api.store();
    let groups = store.objects(Kind::LeaderGroup).values();
    let pods = pods(&store);
    groups.into_iter().all(|group| {
        let of = pods.iter().filter(|pod| pod.group == group.key.name);
        is(group, "Ready") && of.clone().count() == 3 && of.filter(|pod| pod.is_active).count() == 1
    })
}

/// Whether a condition of an object is true.
fn is(object: &Object, condition: &str) -> bool {
    let conditions = object.value()["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|it| it["type"] == condition && it["status"] == "True")
}

/// The pods that are ready and stay.
fn pods(store: &Store) -> Vec<Pod> {
    let pods = store.objects(Kind::Pod).values().filter(|pod| is(pod, "Ready") && !pod.is_being_deleted());
    let pod = |pod: &Object| {
        let label = |name: &str| pod.labels()?.get(name)?.as_str();
        let group = store.get(Kind::LeaderGroup, NAMESPACE, label("app")?);
        let run = group.map(|group| &group.value()["status"]["declaration"]["run"]);
        let lease = run.and_then(|run| run["leaseMilliseconds"].as_u64());
        Some(Pod {
            lease: lease.map(Duration::from_millis),
            name: pod.key.name.clone(),
            uid: pod.uid().to_owned(),
            group: label("app")?.to_owned(),
            node: pod.value()["spec"]["nodeName"].as_str()?.to_owned(),
            is_active: label(ROLE_LABEL) == Some("active"),
        })
    };
    pods.filter_map(|it| pod(it)).collect()
}

/// The operator's slices list the next active pod, in both families. Whether there is one is for the checker to say.
fn is_routed_elsewhere(run: &Simulation, former: &Pod, failure: Failure) -> Result<(), Failed> {
    let store = run.api.store();
    let Some(listed) = routed_to(&store, &former.group) else { return Ok(()) };
    let mut active = pods(&store).into_iter().filter(|pod| pod.group == former.group && pod.is_active);
    let Some(next) = active.next().filter(|next| next.uid != former.uid) else { return Ok(()) };
    if listed.len() == FAMILIES.len() && listed.iter().all(|slice| *slice == [next.uid.as_str()]) {
        return Ok(());
    }
    let (to, from, group) = (&next.uid, &former.name, &former.group);
    let text = format!("{failure:?}: {to} replaces {from}, and {group} is routed to {listed:?}");
    Err(Failed::new("late endpoints", text))
}
