//! What goes wrong in a run, chosen by its seed: each fault begins at some time, and most are undone later.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use leadergroup_e2e::deck::Deck;
use parking_lot::Mutex;

use crate::{
    api_server::{Hook, Kind, Review, Verdict},
    network::Program,
    services,
    simulation::{Cut, Simulation, Storm},
};

/// The longest time that a fault lasts.
const LONGEST: Duration = Duration::from_secs(20);
/// How soon a fault may follow on another one.
const CLOSE: Duration = Duration::from_millis(500);
/// For how long a request may be carried out: each replica that gets the group lets it wait for 30 s.
const REQUEST: Duration = Duration::from_secs(90);
/// For how long a replica may not see that a node is no longer cordoned: a watch that hangs fails after 30 s, and the
/// next one may hang, too.
const UNSEEN: Duration = Duration::from_mins(1);

/// What puts an end to a fault.
#[derive(Clone, Debug)]
pub enum Undo {
    Program(String),
    Power(String),
    Kubelet(String),
    Link(String, String),
    Resume(String),
    Reach(String),
    Server,
    Lag(Since),
    Hold(Since),
    Database,
    Writable,
    Storm,
    Cordon(String),
    Paused(String),
    Requested(String),
    Hooks,
    Endpoints(services::Disturbed),
}

/// What came of a fault.
#[derive(Debug)]
pub enum Begun {
    /// There was nothing to disturb, or it is disturbed already.
    Nothing,
    /// It has taken effect, and is over or stays.
    Done,
    /// It has taken effect, and lasts.
    Lasts(Undo),
    /// It lasts, and takes effect on what meets it: that notes it in [`Effects`].
    Waits(Undo),
}

/// A kind of faults.
struct Fault {
    name: &'static str,
    begin: fn(&mut Simulation, &'static str) -> Begun,
}

/// How often the faults of each kind took effect, by the kinds' names. Clones are the same.
#[derive(Clone, Default)]
pub struct Effects(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Effects {
    /// A fault of this kind has taken effect.
    pub fn note(&self, kind: &'static str) {
        *self.0.lock().entry(kind).or_default() += 1;
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u32> {
        self.0.lock().clone()
    }
}

/// The names of all kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

const fn fault(name: &'static str, begin: fn(&mut Simulation, &'static str) -> Begun) -> Fault {
    Fault { name, begin }
}

const KINDS: &[Fault] = &[
    fault("a program hangs", |run, _| program(run, Program::Hangs)),
    fault("a program fails", |run, _| program(run, Program::Fails)),
    fault("a program ends", |run, _| program(run, Program::Ended)),
    fault("a pod is deleted", |run, _| delete(run, false)),
    fault("a pod is deleted by force", |run, _| delete(run, true)),
    fault("a node is frozen", |run, _| {
        let node = run.any_node();
        let was_on = run.cluster.power(&node, false);
        run.stop_replicas_on(&node);
        lasts(was_on, Undo::Power(node))
    }),
    fault("a kubelet is cut off", |run, _| {
        let node = run.any_node();
        lasts(run.cluster.connect(&node, false), Undo::Kubelet(node))
    }),
    fault("two nodes are cut off from each other", |run, kind| {
        let nodes = run.cluster.nodes();
        let one = run.random.below(nodes.len());
        let other = (one + 1 + run.random.below(nodes.len() - 1)) % nodes.len();
        let (one, other) = (nodes[one].clone(), nodes[other].clone());
        waits(run.network.cut(&one, &other, kind), Undo::Link(one, other))
    }),
    fault("a replica is killed", |run, _| {
        let place = run.any_replica();
        run.kill_replica(place);
        Begun::Done
    }),
    fault("a replica is stopped", |run, _| {
        let place = run.any_replica();
        let replica = &mut run.replicas[place];
        lasts(replica.host.stop(), Undo::Resume(replica.name.clone()))
    }),
    // Another one takes its place when the fault is undone.
    fault("a replica is asked to stop", |run, _| {
        let place = run.any_replica();
        let replica = &run.replicas[place];
        let was_asked = replica.is_stopping();
        replica.ask_to_stop();
        lasts(!was_asked, Undo::Resume(replica.name.clone()))
    }),
    fault("a replica does not reach the API server", |run, kind| cut(run, kind, true, false)),
    fault("a replica does not reach the database", |run, kind| cut(run, kind, false, true)),
    fault("a replica reaches neither", |run, kind| cut(run, kind, true, true)),
    fault("the API server is stopped", |run, _| {
        let is_orderly = run.random.below(2) == 0;
        lasts(run.api.stop(is_orderly), Undo::Server)
    }),
    fault("a watch shows nothing", |run, kind| {
        let watched = watched(run);
        let mut store = run.api.store();
        store.hold(watched, true);
        Begun::Waits(Undo::Hold(Since { kind, watched, revision: store.revision() }))
    }),
    fault("a watch lags", |run, kind| {
        let watched = watched(run);
        let mut store = run.api.store();
        store.set_lag(watched, Duration::from_secs(2));
        Begun::Waits(Undo::Lag(Since { kind, watched, revision: store.revision() }))
    }),
    fault("compaction", |run, _| {
        run.api.store().compact();
        Begun::Done
    }),
    fault("the database is stopped", |run, _| {
        run.database.stop();
        Begun::Lasts(Undo::Database)
    }),
    fault("the database is restarted", |run, _| {
        run.database.restart();
        Begun::Done
    }),
    fault("the database fails over and loses commits", |run, _| {
        run.record_terms();
        let commits = run.random.below(4);
        let lost = run.database.fail_over_losing(commits);
        tracing::info!(lost);
        done(lost > 0)
    }),
    fault("the database is read-only", |run, _| {
        run.database.set_read_only(true);
        Begun::Lasts(Undo::Writable)
    }),
    fault("calls to the API server fail", |run, kind| storm(run, kind, true, false)),
    fault("calls to the database fail", |run, kind| storm(run, kind, false, true)),
    fault("calls to both fail", |run, kind| storm(run, kind, true, true)),
    fault("a switchover is requested", |run, _| {
        let group = run.any_group();
        lasts(run.cluster.request_switchover(&group), Undo::Requested(group))
    }),
    fault("a node is cordoned", |run, _| {
        let node = run.any_node();
        lasts(run.cluster.cordon(&node, true), Undo::Cordon(node))
    }),
    fault("a group is paused", |run, _| {
        let group = run.any_group();
        lasts(run.cluster.pause(&group, true), Undo::Paused(group))
    }),
    fault("a role is removed", |run, _| match run.any_pod() {
        Some(pod) => done(run.cluster.remove_role(&pod)),
        None => Begun::Nothing,
    }),
    fault("a webhook denies", |run, kind| {
        hook(run, kind, || Verdict::Deny(403, "it is forbidden".to_owned()))
    }),
    fault("a webhook fails", |run, kind| hook(run, kind, || Verdict::Fail("it is broken".to_owned()))),
    fault("a webhook hangs", |run, kind| hook(run, kind, || Verdict::Hang)),
    fault("a selector is edited", services::edit_selector),
    fault("a foreign slice", services::add_foreign_slice),
    fault("Endpoints are copied", services::add_endpoints),
    fault("a webhook refuses slices", services::refuse),
    fault("answers to writes of slices are lost", services::lose_answers),
];

fn done(took_effect: bool) -> Begun {
    if took_effect { Begun::Done } else { Begun::Nothing }
}

fn lasts(took_effect: bool, undo: Undo) -> Begun {
    if took_effect { Begun::Lasts(undo) } else { Begun::Nothing }
}

fn waits(is_new: bool, undo: Undo) -> Begun {
    if is_new { Begun::Waits(undo) } else { Begun::Nothing }
}

fn program(run: &mut Simulation, program: Program) -> Begun {
    let Some(pod) = run.any_pod() else { return Begun::Nothing };
    lasts(run.cluster.set_program(&pod, program, run.now), Undo::Program(pod))
}

fn delete(run: &mut Simulation, by_force: bool) -> Begun {
    let pod = run.any_pod();
    done(pod.is_some_and(|pod| run.cluster.delete_pod(&pod, by_force)))
}

fn storm(run: &mut Simulation, kind: &'static str, api: bool, database: bool) -> Begun {
    run.set_storm(Storm { kind, api, database });
    Begun::Waits(Undo::Storm)
}

/// A webhook behaves so towards all changes of one pod. The pod has also lost its role: otherwise the operator would
/// hardly ever write to it in that time.
fn hook(run: &mut Simulation, kind: &'static str, verdict: fn() -> Verdict) -> Begun {
    let Some(pod) = run.any_pod() else { return Begun::Nothing };
    run.cluster.remove_role(&pod);
    let effects = run.effects.clone();
    let review = move |review: &Review<'_>| {
        let concerned = review.request.kind == Kind::Pod && review.request.name == pod;
        if !concerned || !review.verb.writes() {
            return Verdict::Allow;
        }
        effects.note(kind);
        verdict()
    };
    run.api.hooks().push(Hook::webhook("check.example.com", review));
    Begun::Waits(Undo::Hooks)
}

fn cut(run: &mut Simulation, kind: &'static str, api: bool, database: bool) -> Begun {
    let place = run.any_replica();
    run.cut(place, Cut { kind, api, database });
    Begun::Waits(Undo::Reach(run.replicas[place].name.clone()))
}

fn watched(run: &mut Simulation) -> Kind {
    let kinds = [Kind::Pod, Kind::LeaderGroup, Kind::Node, Kind::Lease, Kind::EndpointSlice];
    kinds[run.random.below(kinds.len())]
}

/// Since which revision the watches of a kind of objects have been disturbed, by which fault.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    kind: &'static str,
    watched: Kind,
    revision: u64,
}

impl Since {
    /// It took effect if there was something that the watches did not show, or showed late.
    fn note(self, run: &Simulation) {
        let store = run.api.store();
        let changes = store.journal().iter().rev().take_while(|change| change.revision > self.revision);
        let mut objects = changes.filter_map(|change| change.new.as_ref().or(change.old.as_ref()));
        if objects.any(|object| object.kind == self.watched) {
            run.effects.note(self.kind);
        }
    }
}

impl Undo {
    /// Whether a user undoes it through the API server.
    fn needs_server(&self) -> bool {
        matches!(self, Self::Endpoints(_))
    }

    /// Against which pods it is a reason, by UID, and for which changes.
    pub fn counts_against(&self, run: &Simulation) -> (Vec<String>, &'static [&'static str]) {
        const PROBED: &[&str] = &["Silent", "ProbeRefused"];
        match self {
            Self::Program(pod) => (run.cluster.uid(pod).map(str::to_owned).into_iter().collect(), PROBED),
            Self::Power(node) => (run.cluster.on_node(node), PROBED),
            Self::Link(one, other) => {
                ([run.cluster.on_node(one), run.cluster.on_node(other)].concat(), &["Silent"])
            }
            Self::Cordon(node) => (run.cluster.on_node(node), &["NodeCordoned"]),
            Self::Requested(group) => (run.cluster.of_group(group), &["Switchover"]),
            _ => (Vec::new(), &[]),
        }
    }
}

/// Lets time pass with faults, about one in `every`, and undoes them all at the end. No kind comes again before each
/// other one has.
pub fn with_faults(run: &mut Simulation, time: Duration, every: Duration) {
    let (until, mut undoes) = (run.now + time, Vec::<(Duration, Undo, Range<usize>)>::new());
    let mut deck = Deck::new(&(0..KINDS.len()).collect::<Vec<_>>());
    while run.now < until {
        // Some come while the operator deals with the one before.
        let pause = if run.random.below(3) == 0 { run.millis(CLOSE) } else { run.millis(3 * every) };
        run.run(pause);
        let now = run.now;
        let serves = run.api.is_running();
        let due: Vec<_> =
            undoes.extract_if(.., |(at, what, _)| *at <= now && (serves || !what.needs_server())).collect();
        for (at, what, recorded) in due {
            run.act(|run| undo(run, what, at, recorded));
        }
        let Some(kind) = deck.deal(&mut run.random, |kind, _| Some(&KINDS[kind])) else { continue };
        let begun = run.act(|run| (kind.begin)(run, kind.name));
        tracing::info!(kind.name, ?begun, at = ?run.now, "a fault");
        if matches!(begun, Begun::Done | Begun::Lasts(_)) {
            run.effects.note(kind.name);
        }
        if let Begun::Lasts(what) | Begun::Waits(what) = begun {
            let lasts = if matches!(what, Undo::Requested(_)) { REQUEST } else { run.millis(LONGEST) };
            let (pods, reasons) = what.counts_against(run);
            let recorded = run.fault(pods, reasons);
            undoes.push((run.now + lasts, what, recorded));
        }
    }
    undoes.sort_by_key(|(_, what, _)| what.needs_server());
    for (at, what, recorded) in undoes {
        run.act(|run| undo(run, what, at, recorded));
    }
}

/// Undoes a fault that was to last until `at`.
pub fn undo(run: &mut Simulation, what: Undo, at: Duration, recorded: Range<usize>) {
    tracing::info!(?what, at = ?run.now, "a fault is undone");
    match &what {
        // A request cannot be taken back, and it is also one to pods that came after it.
        Undo::Requested(group) => {
            let pods = run.cluster.of_group(group);
            run.fault_since(recorded.start, pods, at);
            run.fault_is_over(recorded, at);
        }
        Undo::Cordon(_) => run.fault_is_over(recorded, run.now + UNSEEN),
        _ => run.fault_is_over(recorded, run.now),
    }
    match what {
        Undo::Requested(_) => {}
        Undo::Program(pod) => {
            run.cluster.set_program(&pod, Program::Serves, run.now);
        }
        Undo::Power(node) => {
            run.cluster.power(&node, true);
            run.resume_replicas_on(&node);
        }
        Undo::Kubelet(node) => {
            run.cluster.connect(&node, true);
        }
        Undo::Link(one, other) => run.network.join(&one, &other),
        Undo::Resume(name) => run.resume_or_replace(&name),
        Undo::Reach(name) => run.reach(&name),
        Undo::Server => run.api.start(),
        Undo::Lag(since) => {
            since.note(run);
            run.api.store().set_lag(since.watched, Duration::ZERO);
        }
        Undo::Hold(since) => {
            since.note(run);
            run.api.store().hold(since.watched, false);
        }
        Undo::Database => run.database.start(),
        Undo::Storm => run.set_storm(Storm::default()),
        Undo::Cordon(node) => {
            run.cluster.cordon(&node, false);
        }
        Undo::Paused(group) => {
            run.cluster.pause(&group, false);
        }
        Undo::Hooks => run.api.hooks().clear(),
        Undo::Endpoints(disturbed) => disturbed.undo(run),
        Undo::Writable => run.database.set_read_only(false),
    }
}
