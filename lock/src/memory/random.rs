//! Random numbers that are the same in every run.

use uuid::{Builder, Uuid};

/// A stream of random numbers (`SplitMix64`). Two streams of one seed are equal.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn uuid(&mut self) -> Uuid {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// How many units the number of the next era grows by, 1 to 1,000.
    pub(super) fn step(&mut self) -> i64 {
        1 + i64::try_from(self.next() % 1_000).unwrap_or_default()
    }
}
