//! Random fractions, so that programs that wait for the same thing do not all ask at the same moment.

use uuid::Uuid;

/// A random number between 0 and 1.
pub(crate) fn portion() -> f64 {
    portion_of(Uuid::new_v4())
}

/// A number between 0 and 1 that is as random as this UUID.
pub(crate) fn portion_of(uuid: Uuid) -> f64 {
    // The first 32 bits of such a UUID are all random.
    let (random, ..) = uuid.as_fields();
    f64::from(random) / f64::from(u32::MAX)
}
