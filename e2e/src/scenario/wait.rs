//! Waiting for a condition, with a deadline and the last reason why it did not hold.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time;

use crate::moment::Moment;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A look that takes longer is a server that does not answer: look again.
const LOOK: Duration = Duration::from_secs(10);

/// Looks until there is something to see. An error is a reason why it is not there yet; the last one is reported when
/// the time is up.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let start = Moment::now();
    loop {
        let error = match time::timeout(LOOK, look()).await {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(error)) => error,
            Err(_) => anyhow!("no answer in {LOOK:?}"),
        };
        if Moment::now().since(start) > within {
            return Err(error.context(format!("waited {} s in vain for {what}", within.as_secs())));
        }
        time::sleep(LOOK_EVERY).await;
    }
}

/// Looks again and again for as long as `during`, and fails as soon as the condition does not hold.
pub async fn throughout(
    what: &str,
    during: Duration,
    mut look: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let start = Moment::now();
    while Moment::now().since(start) < during {
        look().await.map_err(|error| error.context(format!("{what} did not hold")))?;
        time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[tokio::test]
    async fn the_last_reason_is_told() {
        let mut looks = 0;
        let seen = eventually("three looks", Duration::from_secs(5), async || {
            looks += 1;
            ensure!(looks == 3, "only {looks}");
            Ok(looks)
        });
        assert_eq!(seen.await.ok(), Some(3));
        let never =
            eventually("a miracle", Duration::ZERO, async || -> Result<()> { Err(anyhow!("none today")) });
        let error = format!("{:#}", never.await.expect_err("it never holds"));
        assert_eq!(error, "waited 0 s in vain for a miracle: none today");
    }

    #[tokio::test]
    async fn what_is_to_hold_throughout_fails_at_once_when_it_does_not() {
        let mut looks = 0;
        let held = throughout("calm", Duration::from_mins(1), async || {
            looks += 1;
            ensure!(looks < 3, "noise");
            Ok(())
        });
        assert!(held.await.is_err());
        assert_eq!(looks, 3);
    }
}
