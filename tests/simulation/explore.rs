//! Schedules of the model: every one of a bounded length, or a long random one; and the shortest one that fails.

use std::{
    collections::HashSet,
    fmt::Write as _,
    hash::{DefaultHasher, Hasher as _},
    ops::RangeInclusive,
};

use crate::{action::Action, model::Model, random::Random};

/// Statistics of the exploration.
#[derive(Debug, Default)]
pub struct Explored {
    pub states: usize,
    pub promotions: u32,
}

struct Digest(DefaultHasher);

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

fn digest(model: &Model) -> u64 {
    let mut digest = Digest(DefaultHasher::new());
    write!(digest, "{model:?}").expect("a hasher takes everything");
    digest.0.finish()
}

/// Runs every schedule from `start` of at most `depth` actions, visiting each state once. Shorter schedules come
/// first, so that a schedule that fails is one of the shortest.
pub fn exhaust(start: &Model, depth: usize) -> Explored {
    let mut seen = HashSet::from([digest(start)]);
    let mut explored = Explored { states: 1, promotions: 0 };
    let mut layer = vec![(start.clone(), Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (model, way) in layer {
            for action in model.actions() {
                let mut after = model.clone();
                after.apply(action);
                if let Some(violation) = &after.server.violation {
                    let mut way: Vec<Action> = way.clone();
                    way.push(action);
                    panic!("{violation}\nafter {way:?}");
                }
                if seen.insert(digest(&after)) {
                    explored.states += 1;
                    explored.promotions = explored.promotions.max(after.server.promotions);
                    let mut way = way.clone();
                    way.push(action);
                    next.push((after, way));
                }
            }
        }
        layer = next;
    }
    println!("{explored:?}");
    explored
}

/// The relative frequency of an action. Most actions are ordinary work.
fn weight(action: &Action) -> usize {
    match action {
        Action::Answer { .. } => 240,
        Action::WatchPod { .. } | Action::WatchGroup { .. } | Action::Claim { .. } => 100,
        Action::Probe { .. } | Action::Beat { .. } | Action::Start { .. } | Action::Wake { .. } => 60,
        Action::Arrive { .. } | Action::Follow { .. } | Action::DatabaseUp | Action::CreateGroup => 16,
        Action::Create { .. }
        | Action::Permit
        | Action::Restarted { .. }
        | Action::Rejoin { .. }
        | Action::Pause { paused: false }
        | Action::Ail { health: crate::server::Health::Well, .. }
        | Action::Contest { contested: false }
        | Action::Gone { .. } => 24,
        Action::TimeOut { .. } | Action::MarkDead { .. } | Action::Stale { .. } => 8,
        // There are many of these, one for each pod or replica, in several forms.
        Action::Restamp { .. } | Action::RelistPods { .. } | Action::RelistGroup { .. } => 1,
        Action::Relabel { .. } | Action::Rival { .. } => 2,
        _ => 4,
    }
}

fn choose(random: &mut Random, actions: &[Action]) -> Action {
    let total: usize = actions.iter().map(weight).sum();
    let mut drawn = random.below(total * 2);
    // Half of the time choose only frequent actions, so that changes of holder complete.
    if drawn >= total {
        let busy: Vec<&Action> = actions.iter().filter(|action| weight(action) >= 60).collect();
        if !busy.is_empty() {
            return *busy[random.below(busy.len())];
        }
        drawn -= total;
    }
    for action in actions {
        let weight = weight(action);
        if drawn < weight {
            return *action;
        }
        drawn -= weight;
    }
    actions[0]
}

/// The variable that names the one seed to play, to replay a failure.
const SEED_VARIABLE: &str = "LEADERGROUP_SIMULATION_SEED";

/// The variable that says how many times as many schedules to play as usual.
const TIMES_VARIABLE: &str = "LEADERGROUP_SIMULATION_TIMES";

/// The variable that names the first seed, to play other schedules than usual.
const FIRST_VARIABLE: &str = "LEADERGROUP_SIMULATION_FIRST";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a whole number")))
}

/// The seeds of a test: as many as `count`, from 1 on, or the one to replay.
pub fn seeds(count: u64) -> RangeInclusive<u64> {
    let (times, first) = (number(TIMES_VARIABLE).unwrap_or(1), number(FIRST_VARIABLE).unwrap_or(1));
    number(SEED_VARIABLE).map_or(first..=first + count * times - 1, |seed| seed..=seed)
}

/// Whether the environment asks for the usual schedules.
pub fn is_usual() -> bool {
    number(SEED_VARIABLE).is_none() && number(FIRST_VARIABLE).is_none()
}

/// Prints how to replay a schedule if it fails, wherever the panic comes from.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            // libtest names the thread after the test, but for a run with a single thread.
            let test = match thread.name() {
                None | Some("main") => "long_random_schedules".to_owned(),
                Some(test) => format!("--exact {test}"),
            };
            let command = "cargo test -p leadergroup --test simulation --";
            eprintln!("replay it: {SEED_VARIABLE}={} {command} {test}", self.0);
        }
    }
}

/// A random schedule of `length` actions, then healing. Fails with the shortest schedule found that fails alike.
pub fn walk(start: &Model, seed: u64, length: usize) -> Explored {
    let _replay = Replay(seed);
    let mut random = Random::new(seed);
    let mut model = start.clone();
    let mut way = Vec::with_capacity(length);
    for _ in 0..length {
        let actions = model.actions();
        let action = choose(&mut random, &actions);
        way.push(action);
        model.apply(action);
        if model.server.violation.is_some() {
            fail(start, seed, &way);
        }
    }
    if model.conclude(seed).is_some() {
        fail(start, seed, &way);
    }
    Explored { states: length, promotions: model.server.promotions }
}

/// The violation after these actions, skipping those that are not possible at their turn.
fn verdict(start: &Model, seed: u64, way: &[Action]) -> (Vec<Action>, Option<String>) {
    let mut model = start.clone();
    let mut done = Vec::new();
    for action in way {
        if model.actions().contains(action) {
            model.apply(*action);
            done.push(*action);
        }
        if model.server.violation.is_some() {
            return (done, model.server.violation);
        }
    }
    let violation = model.conclude(seed);
    (done, violation)
}

/// Removes actions that are not needed for the failure.
fn fail(start: &Model, seed: u64, way: &[Action]) -> ! {
    let kind = |violation: &Option<String>| violation.as_ref().map(|text| text[..2].to_owned());
    let (mut way, mut violation) = verdict(start, seed, way);
    let mut size = way.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < way.len() {
            let mut shorter = way.clone();
            shorter.drain(from..(from + size).min(way.len()));
            let (done, other) = verdict(start, seed, &shorter);
            if other.is_some() && kind(&other) == kind(&violation) && done.len() < way.len() {
                (way, violation) = (done, other);
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    panic!("seed {seed}: {}\nafter {way:?}", violation.unwrap_or_default());
}
