//! The loop without network, database and clock: messages go in, and the tests look at what it made of them. Calls are
//! started and never carried out; their results are messages as well.

mod adoption;
mod giving;
mod reporting;

use std::time::Duration;

use leadergroup_lock::{Claimed, Peer, SessionId};

use crate::{
    election::{Group as Election, Phase},
    operator::{
        bench::{Bench, answered, group, name, row},
        message::Message,
    },
    ownership::Yielded,
};

const SESSION_TTL: Duration = Duration::from_secs(4);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A replica on the node of the first pods, which are active, that has listed so many groups.
fn listed(groups: usize) -> Bench {
    let mut bench = Bench::before_lists(groups, Some("node-0"), SESSION_TTL);
    bench.list();
    bench
}

/// A replica on another node: each group whose active pod is on the first node falls to it.
fn elsewhere() -> Peer {
    Peer { session: SessionId::new(), place: Some("node-9".to_owned()) }
}

fn election(bench: &Bench, group: usize) -> &Election {
    bench.view(&name(group)).group.election()
}

fn owns(bench: &Bench, group: usize) -> bool {
    bench.view(&name(group)).group.is_owned()
}
