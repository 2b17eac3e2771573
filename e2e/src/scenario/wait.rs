//! Waiting for a condition, with a deadline and the last reason why it did not hold.

use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::time;

use crate::moment::Moment;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit of one check. If it takes longer, the server does not answer, and the check is repeated.
const LOOK: Duration = Duration::from_secs(10);

/// Repeats a check until it succeeds. An error is the reason why the condition does not hold yet; the last one is
/// reported when the time is over.
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
            return Err(error.context(format!("timed out after {} s waiting for {what}", within.as_secs())));
        }
        time::sleep(LOOK_EVERY).await;
    }
}

/// Repeats a check for the time `during`, and fails as soon as it fails.
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
    async fn the_last_reason_is_reported() {
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
        assert_eq!(error, "timed out after 0 s waiting for a miracle: none today");
    }

    #[tokio::test]
    async fn throughout_fails_at_the_first_failing_check() {
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
