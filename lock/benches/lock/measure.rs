//! Durations and their quantiles.

use std::time::Duration;

use serde_json::{Value, json};

/// Many durations.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that this share of all does not exceed, in milliseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the length"
        )]
        let position = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(position.saturating_sub(1)).map_or(f64::NAN, |found| milliseconds(*found))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50_ms": self.quantile(0.5),
            "p99_ms": self.quantile(0.99),
            "p999_ms": self.quantile(0.999),
            "max_ms": self.quantile(1.0),
        })
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Pseudo-random numbers, the same in each run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        #[allow(clippy::cast_possible_truncation, reason = "below `sides`")]
        let rolled = ((self.0 >> 11) % sides.max(1) as u64) as usize;
        rolled
    }
}
