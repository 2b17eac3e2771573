//! Random sequences of steps that are the same in every run, and can be repeated.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestRunner};

/// Other sequences than those of every run.
const SEED: &str = "LEADERGROUP_MODEL_SEED";
/// So many times as many.
const TIMES: &str = "LEADERGROUP_MODEL_TIMES";

/// Runs `test` with `cases` values from a fixed seed, after those that once failed, which `regressions` keeps. The
/// variables ask for other values, or for more.
pub fn run<S: Strategy>(
    name: &str,
    regressions: &'static str,
    cases: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let (seed, times) = (variable(SEED).unwrap_or(1), variable(TIMES).unwrap_or(1));
    let config = Config {
        cases: cases * u32::try_from(times).expect("a number that ends within a lifetime"),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        ..Config::default()
    };
    if let Err(failure) = TestRunner::new(config).run(strategy, test) {
        panic!(
            "{failure}\nrepeat it: {SEED}={seed} {TIMES}={times} cargo test -p leadergroup-lock --test {} -- --exact \
             {name}\n{regressions} has the case now, which every later run begins with: commit it with the fix",
            env!("CARGO_CRATE_NAME")
        );
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
