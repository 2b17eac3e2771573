//! Runs work only while a key is held.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use crate::jitter::portion;
use crate::{Client, ClientError, Guard, Key, LockError};

impl Client {
    /// Waits for the key as [`lock`](Self::lock) does, works while it is held, and releases it. The work's future is
    /// dropped as soon as the key is [lost](Guard::lost): it stops at its next `.await`, and the answer is
    /// [`ClientError::Lost`]. The answer is the same if the work has ended, and the release finds that the key was lost
    /// before. What the work has started outside of this process may still take effect later; pass the
    /// [token](Guard::token) to it.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use leadergroup_lock::{ClientError, Key};
    ///
    /// let key = Key::new("nightly-report")?;
    /// let wait = Duration::from_secs(60);
    /// match client.run_while_held(&key, wait, async |guard| write_report(guard.token().get()).await).await {
    ///     Ok(pages) => println!("{pages} pages"),
    ///     Err(error @ ClientError::Lost { .. }) => eprintln!("it is not complete: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// # async fn write_report(token: i64) -> usize { 1 }
    /// ```
    pub async fn run_while_held<T>(
        &self,
        key: &Key,
        wait: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<T, ClientError> {
        let guard = self.lock(key, wait).await?;
        run(guard, work).await
    }

    /// Campaigns for the key, works while it holds the key, and campaigns again, in an endless loop: after the work has
    /// returned, after the key was lost, and after the database has failed. Between two terms it pauses for a moment,
    /// so that others get their turn. To resign for good, drop the future. Never returns `Ok`; returns an error if the
    /// key belongs to a group, or the client was shut down. All other errors are logged as warnings, and it tries
    /// again, also where only an administrator can help (missing privileges, a schema that is too new).
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leadergroup_lock::Key;
    ///
    /// client.campaign(&Key::new("scheduler")?, async |guard| schedule(guard.token().get()).await).await?;
    /// # Ok(())
    /// # }
    /// # async fn schedule(token: i64) {}
    /// ```
    pub async fn campaign(
        &self,
        key: &Key,
        mut work: impl AsyncFnMut(&Guard),
    ) -> Result<Infallible, ClientError> {
        loop {
            let term = async { run(self.lock_whenever(key).await?, &mut work).await };
            self.after_term(key, term.await).await?;
        }
    }

    /// Pauses before the next campaign, or returns the error that ends all of them.
    pub(crate) async fn after_term(
        &self,
        key: &Key,
        term: Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        match term {
            Ok(()) => {}
            Err(error @ ClientError::Lost { .. }) => tracing::warn!(%key, %error, "campaigning again"),
            Err(error @ (ClientError::Refused { .. } | ClientError::Lock(LockError::SessionDead))) => {
                return Err(error);
            }
            Err(error) => tracing::warn!(%key, %error, "the lock was not acquired; campaigning again"),
        }
        sleep(self.applicant.process.config.retry_interval.mul_f64(0.5 + portion() / 2.0)).await;
        Ok(())
    }
}

async fn run<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, ClientError> {
    let done = tokio::select! {
        biased;
        loss = guard.wait_for_loss() => return Err(loss),
        done = work(&guard) => done,
    };
    guard.finish().await?;
    Ok(done)
}
