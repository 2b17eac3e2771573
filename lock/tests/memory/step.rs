//! The steps that are carried out on both databases.

use proptest::prelude::*;

pub const SLOTS: usize = 3;
pub const KEYS: usize = 3;
pub const GROUPS: usize = 2;

/// One operation. Sessions are numbered by slot; a slot's session may be dead.
#[derive(Debug, Clone)]
pub enum Step {
    Register {
        slot: usize,
        peers: bool,
    },
    Beat {
        by: usize,
        watch: usize,
    },
    Kill {
        victim: usize,
        behind: u64,
    },
    Close {
        by: usize,
    },
    Claim {
        by: usize,
        group: usize,
        keys: usize,
        may_create: bool,
        supersedes: Option<usize>,
    },
    Unclaim {
        by: usize,
        keys: usize,
    },
    Grant(Grant),
    Confirm {
        by: usize,
        key: usize,
        behind: i64,
    },
    Vacate {
        by: usize,
        key: usize,
        behind: i64,
        one: bool,
    },
    Tombstone {
        by: usize,
        group: usize,
        keys: usize,
        floor: i64,
    },
    Reassign {
        key: usize,
        group: usize,
        behind: Option<i64>,
        floor: i64,
        force: bool,
    },
    Ask(Ask),
    /// Two slots ask for two keys in one statement.
    AskTwice(Ask, Ask),
    Release {
        by: usize,
        holder: bool,
        key: usize,
        behind: i64,
    },
    Transfer {
        by: usize,
        key: usize,
        behind: i64,
        to: usize,
        by_uid: bool,
    },
    Force {
        key: usize,
        behind: i64,
    },
    GiveUp {
        by: usize,
        key: usize,
    },
    Publish {
        by: usize,
        holder: bool,
        key: usize,
        behind: i64,
        change: i64,
    },
    Tell {
        words: usize,
    },
    /// Remembers the state, to be restored by a failover.
    Backup,
    /// A failover, to the state that was remembered or without a loss.
    FailOver {
        loses: bool,
    },
    BeginEra {
        floor: i64,
    },
    EndQuarantine,
    Prune {
        terms: u32,
        at_once: bool,
    },
}

#[derive(Debug, Clone)]
pub struct Grant {
    pub by: usize,
    pub key: usize,
    /// The group, if not the one that has the key.
    pub group: Option<usize>,
    pub behind: i64,
    pub floor: i64,
    pub to: u8,
    /// The last grant of the key once more.
    pub again: bool,
}

#[derive(Debug, Clone)]
pub struct Ask {
    pub by: usize,
    pub key: usize,
    /// The slot's last request for the key once more.
    pub again: bool,
    pub queue: bool,
    pub delay: bool,
    pub sat_out: bool,
    pub void_after: Option<u64>,
}

fn grant() -> impl Strategy<Value = Grant> {
    let group = prop::option::weighted(0.15, 0..GROUPS);
    (0..SLOTS, key(), group, behind(), floor(), 0..3_u8, prop::bool::weighted(0.2)).prop_map(
        |(by, key, group, behind, floor, to, again)| Grant { by, key, group, behind, floor, to, again },
    )
}

fn ask() -> impl Strategy<Value = Ask> {
    let flag = prop::bool::weighted;
    let void_after = prop::option::weighted(0.2, 0..3_u64);
    (0..SLOTS, key(), flag(0.5), flag(0.8), flag(0.3), flag(0.3), void_after).prop_map(
        |(by, key, again, queue, delay, sat_out, void_after)| Ask {
            by,
            key,
            again,
            queue,
            delay,
            sat_out,
            void_after,
        },
    )
}

/// Mostly the same key, so that the steps meet there.
fn key() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0), 1 => 0..KEYS]
}

/// Mostly the right token, sometimes an old one or one from the future.
fn behind() -> impl Strategy<Value = i64> {
    prop_oneof![8 => Just(0_i64), 1 => Just(1), 1 => Just(-1)]
}

fn floor() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0_i64), 2 => 0..12_i64, 1 => Just(5_000_000)]
}

fn sessions() -> impl Strategy<Value = Step> {
    let by = || 0..SLOTS;
    prop_oneof![
        8 => (by(), any::<bool>()).prop_map(|(slot, peers)| Step::Register { slot, peers }),
        4 => (by(), by()).prop_map(|(by, watch)| Step::Beat { by, watch }),
        5 => (by(), prop_oneof![3 => Just(0_u64), 1 => Just(1)])
            .prop_map(|(victim, behind)| Step::Kill { victim, behind }),
        2 => by().prop_map(|by| Step::Close { by }),
        1 => (0..4_usize).prop_map(|words| Step::Tell { words }),
        2 => Just(Step::Backup),
        2 => any::<bool>().prop_map(|loses| Step::FailOver { loses }),
        1 => floor().prop_map(|floor| Step::BeginEra { floor }),
        6 => Just(Step::EndQuarantine),
        2 => (1..3_u32, any::<bool>()).prop_map(|(terms, at_once)| Step::Prune { terms, at_once }),
    ]
}

fn groups() -> impl Strategy<Value = Step> {
    let (by, group) = (|| 0..SLOTS, || 0..GROUPS);
    // Sets of keys, as bits.
    let keys = || 1..1_usize << KEYS;
    let likely = prop::bool::weighted(0.8);
    let supersedes = prop::option::weighted(0.3, 0..GROUPS);
    prop_oneof![
        8 => (by(), group(), keys(), likely, supersedes).prop_map(|(by, group, keys, may_create, supersedes)| {
            Step::Claim { by, group, keys, may_create, supersedes }
        }),
        1 => (by(), keys()).prop_map(|(by, keys)| Step::Unclaim { by, keys }),
        10 => grant().prop_map(Step::Grant),
        5 => (by(), key(), behind()).prop_map(|(by, key, behind)| Step::Confirm { by, key, behind }),
        3 => (by(), key(), behind(), any::<bool>())
            .prop_map(|(by, key, behind, one)| Step::Vacate { by, key, behind, one }),
        2 => (by(), group(), keys(), floor())
            .prop_map(|(by, group, keys, floor)| Step::Tombstone { by, group, keys, floor }),
        2 => (key(), group(), prop::option::weighted(0.8, behind()), floor(), any::<bool>())
            .prop_map(|(key, group, behind, floor, force)| Step::Reassign { key, group, behind, floor, force }),
    ]
}

fn programs() -> impl Strategy<Value = Step> {
    let by = || 0..SLOTS;
    prop_oneof![
        20 => ask().prop_map(Step::Ask),
        3 => (ask(), ask()).prop_map(|(one, two)| Step::AskTwice(one, two)),
        10 => (by(), prop::bool::weighted(0.7), key(), behind())
            .prop_map(|(by, holder, key, behind)| Step::Release { by, holder, key, behind }),
        4 => (by(), key(), behind(), by(), any::<bool>())
            .prop_map(|(by, key, behind, to, by_uid)| Step::Transfer { by, key, behind, to, by_uid }),
        2 => (key(), behind()).prop_map(|(key, behind)| Step::Force { key, behind }),
        2 => (by(), key()).prop_map(|(by, key)| Step::GiveUp { by, key }),
        3 => (by(), prop::bool::weighted(0.8), key(), behind(), 0..3_i64)
            .prop_map(|(by, holder, key, behind, change)| Step::Publish { by, holder, key, behind, change }),
    ]
}

/// Sequences in which groups, programs or both use the keys. A key that a group has had is no program's any more.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of_groups = prop_oneof![1 => sessions(), 2 => groups()];
    let of_programs = prop_oneof![1 => sessions(), 2 => programs()];
    let of_both = prop_oneof![2 => sessions(), 1 => groups(), 3 => programs()];
    prop_oneof![
        2 => prop::collection::vec(of_groups, 1..50),
        3 => prop::collection::vec(of_programs, 1..60),
        1 => prop::collection::vec(of_both, 1..50),
    ]
}
