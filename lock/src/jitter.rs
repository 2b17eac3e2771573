//! Random fractions, so that programs that wait for the same thing do not all ask at the same moment.

/// A random number between 0 and 1.
pub(crate) fn portion() -> f64 {
    // The first 32 bits of such a UUID are all random.
    let (random, ..) = uuid::Uuid::new_v4().as_fields();
    f64::from(random) / f64::from(u32::MAX)
}
