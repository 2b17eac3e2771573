//! The loop without network, database and clock: messages go in, and the tests look at what it made of them. Calls are
//! started and never carried out; their results are messages as well.

mod adoption;
mod events;
mod gauges;
mod giving;
mod measurements;
mod objects;
mod observing;
mod reporting;
mod stage;
mod traces;

use std::time::Duration;

use leadergroup_lock::{
    SessionId,
    controller::{Claimed, Peer},
};

use crate::{
    election::{Group as Election, Phase},
    operator::message::Message,
    ownership::Yielded,
};
use objects::{answered, group, name, row};
use stage::Stage;

const SESSION_TTL: Duration = Duration::from_secs(4);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A replica on the node of the first pods, which are active, that has listed so many groups.
fn listed(groups: usize) -> Stage {
    let mut stage = Stage::before_lists(groups, Some("node-0"), SESSION_TTL);
    stage.list();
    stage
}

/// A replica on another node: each group whose active pod is on the first node falls to it.
fn elsewhere() -> Peer {
    Peer { session: SessionId::new(), place: Some("node-9".to_owned()) }
}

fn election(stage: &Stage, group: usize) -> &Election {
    stage.view(&name(group)).group.election()
}

fn owns(stage: &Stage, group: usize) -> bool {
    stage.view(&name(group)).group.is_owned()
}
