//! Runs side by side. Each has a thread of its own, and shares nothing with the others.

use std::{
    collections::BTreeMap,
    num::NonZero,
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::{available_parallelism, scope},
};

use parking_lot::Mutex;

/// What came of the runs with these seeds, as many at a time as there are cores. After a run that failed no other one
/// begins.
pub fn on_all_cores<T: Send, E: Send>(
    seeds: Range<u64>,
    play: impl Fn(u64) -> Result<T, E> + Sync,
) -> BTreeMap<u64, Result<T, E>> {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let played = Mutex::new(BTreeMap::new());
    let play_some = || {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = play(seed);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            played.lock().insert(seed, result);
        }
    };
    scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(play_some);
        }
    });
    played.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_played_once_until_one_fails() {
        let all = on_all_cores(3..40, |seed| Ok::<_, ()>(seed * 2));
        let expected: Vec<_> = (3..40).map(|seed| (seed, Ok(seed * 2))).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
        let some = on_all_cores(3..1_000_000, |seed| if seed < 6 { Ok(()) } else { Err(()) });
        assert!(some.len() < 1_000 && some[&3].is_ok() && some[&6].is_err(), "{}", some.len());
    }
}
