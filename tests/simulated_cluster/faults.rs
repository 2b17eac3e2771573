//! What goes wrong in a run, chosen by its seed: each fault begins at some time, and most are undone later.

use std::{ops::Range, time::Duration};

use crate::{
    api_server::{Hook, Kind, Review, Verdict},
    network::Program,
    simulation::{Cut, Simulation, Storm},
};

/// The longest time that a fault lasts.
const LONGEST: Duration = Duration::from_secs(20);
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
    Lag(Kind),
    Hold(Kind),
    Database,
    Writable,
    Storm,
    Cordon(String),
    Paused(String),
    Requested(String),
    Hooks,
}

/// The kinds of faults.
const KINDS: &[fn(&mut Simulation) -> Option<Undo>] = &[
    |run| program(run, Program::Hangs),
    |run| program(run, Program::Fails),
    |run| program(run, Program::Ended),
    |run| {
        let pod = run.any_pod()?;
        run.cluster.delete_pod(&pod, false);
        None
    },
    |run| {
        let pod = run.any_pod()?;
        run.cluster.delete_pod(&pod, true);
        None
    },
    |run| {
        let node = run.any_node();
        run.cluster.power(&node, false);
        run.stop_replicas_on(&node);
        Some(Undo::Power(node))
    },
    |run| {
        let node = run.any_node();
        run.cluster.connect(&node, false);
        Some(Undo::Kubelet(node))
    },
    |run| {
        let (one, other) = (run.any_node(), run.any_node());
        run.network.connect(&one, &other, false);
        Some(Undo::Link(one, other))
    },
    |run| {
        let place = run.any_replica();
        run.kill_replica(place);
        None
    },
    |run| {
        let place = run.any_replica();
        run.replicas[place].host.stop();
        Some(Undo::Resume(run.replicas[place].name.clone()))
    },
    |run| {
        let place = run.any_replica();
        run.replicas[place].ask_to_stop();
        // Another one takes its place when the fault is undone.
        Some(Undo::Resume(run.replicas[place].name.clone()))
    },
    |run| Some(cut(run, Cut { api: true, database: false })),
    |run| Some(cut(run, Cut { api: false, database: true })),
    |run| Some(cut(run, Cut { api: true, database: true })),
    |run| {
        let is_orderly = run.random.below(2) == 0;
        run.api.stop(is_orderly);
        Some(Undo::Server)
    },
    |run| {
        let kind = watched(run);
        run.api.store().hold(kind, true);
        Some(Undo::Hold(kind))
    },
    |run| {
        let kind = watched(run);
        run.api.store().set_lag(kind, Duration::from_secs(2));
        Some(Undo::Lag(kind))
    },
    |run| {
        run.api.store().compact();
        None
    },
    |run| {
        run.database.stop();
        Some(Undo::Database)
    },
    |run| {
        run.database.restart();
        None
    },
    |run| {
        run.record_terms();
        let commits = run.random.below(4);
        tracing::info!(lost = run.database.fail_over_losing(commits));
        None
    },
    |run| {
        run.database.set_read_only(true);
        Some(Undo::Writable)
    },
    |run| Some(storm(run, Storm { api: true, database: false })),
    |run| Some(storm(run, Storm { api: false, database: true })),
    |run| Some(storm(run, Storm { api: true, database: true })),
    |run| {
        let group = run.any_group();
        run.cluster.request_switchover(&group);
        Some(Undo::Requested(group))
    },
    |run| {
        let node = run.any_node();
        run.cluster.cordon(&node, true);
        Some(Undo::Cordon(node))
    },
    |run| {
        let group = run.any_group();
        run.cluster.pause(&group, true);
        Some(Undo::Paused(group))
    },
    |run| {
        let pod = run.any_pod()?;
        run.cluster.remove_role(&pod);
        None
    },
    |run| hook(run, || Verdict::Deny(403, "it is forbidden".to_owned())),
    |run| hook(run, || Verdict::Fail("it is broken".to_owned())),
    |run| hook(run, || Verdict::Hang),
];

fn program(run: &mut Simulation, program: Program) -> Option<Undo> {
    let pod = run.any_pod()?;
    run.cluster.set_program(&pod, program, run.now);
    Some(Undo::Program(pod))
}

fn storm(run: &mut Simulation, storm: Storm) -> Undo {
    run.set_storm(storm);
    Undo::Storm
}

/// A webhook behaves so towards all changes of one pod.
fn hook(run: &mut Simulation, verdict: fn() -> Verdict) -> Option<Undo> {
    let pod = run.any_pod()?;
    let review = move |review: &Review<'_>| {
        let concerned = review.request.kind == Kind::Pod && review.request.name == pod;
        if concerned && review.verb.writes() { verdict() } else { Verdict::Allow }
    };
    run.api.hooks().push(Hook::webhook("check.example.com", review));
    Some(Undo::Hooks)
}

fn cut(run: &mut Simulation, cut: Cut) -> Undo {
    let place = run.any_replica();
    run.cut(place, cut);
    Undo::Reach(run.replicas[place].name.clone())
}

fn watched(run: &mut Simulation) -> Kind {
    let kinds = [Kind::Pod, Kind::LeaderGroup, Kind::Node, Kind::Lease];
    kinds[run.random.below(kinds.len())]
}

impl Undo {
    /// Against which pods it is a reason, by UID, and for which changes.
    fn counts_against(&self, run: &Simulation) -> (Vec<String>, &'static [&'static str]) {
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

/// Lets time pass with faults, about one in `every`, and undoes them all at the end.
pub fn with_faults(run: &mut Simulation, time: Duration, every: Duration) {
    let (until, mut undoes) = (run.now + time, Vec::<(Duration, Undo, Range<usize>)>::new());
    while run.now < until {
        let pause = run.millis(2 * every);
        run.run(pause);
        let now = run.now;
        let due: Vec<_> = undoes.extract_if(.., |(at, ..)| *at <= now).collect();
        for (at, what, recorded) in due {
            run.act(|run| undo(run, what, at, recorded));
        }
        let kind = run.random.below(KINDS.len());
        tracing::info!(kind, at = ?run.now, "a fault");
        if let Some(what) = run.act(KINDS[kind]) {
            tracing::info!(?what, "a fault");
            let lasts = if matches!(what, Undo::Requested(_)) { REQUEST } else { run.millis(LONGEST) };
            let (pods, reasons) = what.counts_against(run);
            let recorded = run.fault(pods, reasons);
            undoes.push((run.now + lasts, what, recorded));
        }
    }
    for (at, what, recorded) in undoes {
        run.act(|run| undo(run, what, at, recorded));
    }
}

/// Undoes a fault that was to last until `at`.
fn undo(run: &mut Simulation, what: Undo, at: Duration, recorded: Range<usize>) {
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
        Undo::Program(pod) => run.cluster.set_program(&pod, Program::Serves, run.now),
        Undo::Power(node) => {
            run.cluster.power(&node, true);
            run.resume_replicas_on(&node);
        }
        Undo::Kubelet(node) => run.cluster.connect(&node, true),
        Undo::Link(one, other) => run.network.connect(&one, &other, true),
        Undo::Resume(name) => run.resume_or_replace(&name),
        Undo::Reach(name) => run.reach(&name),
        Undo::Server => run.api.start(),
        Undo::Lag(kind) => run.api.store().set_lag(kind, Duration::ZERO),
        Undo::Hold(kind) => run.api.store().hold(kind, false),
        Undo::Database => run.database.start(),
        Undo::Storm => run.set_storm(Storm::default()),
        Undo::Cordon(node) => run.cluster.cordon(&node, false),
        Undo::Paused(group) => run.cluster.pause(&group, false),
        Undo::Hooks => run.api.hooks().clear(),
        Undo::Writable => run.database.set_read_only(false),
    }
}
