//! Runs work only while a key is held.

use std::time::Duration;

use tokio::time::sleep;

use crate::jitter::portion;
use crate::{Client, ClientError, Guard, Key};

/// How work under a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held<T> {
    /// The work was done, and the key released.
    Done(T),
    /// The key was lost before the work was done: its future was dropped.
    Lost,
}

impl Client {
    /// Waits for the key, but not for longer than `wait`, works while it is held, and releases it. The work's future is
    /// dropped as soon as the key is [lost](Guard::lost): it stops at its next `.await`. What it has started outside of
    /// this process may still take effect later; pass the [token](Guard::token) to it.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// use leadergroup_lock::{Held, Key};
    ///
    /// let key = Key::new("nightly-report")?;
    /// let wait = Duration::from_secs(60);
    /// match client.run_while_held(&key, wait, async |guard| write_report(guard.token().get()).await).await? {
    ///     Held::Done(pages) => println!("{pages} pages"),
    ///     Held::Lost => eprintln!("another holder may be writing it"),
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
    ) -> Result<Held<T>, ClientError> {
        let guard = self.lock(key, wait).await?;
        Ok(run(guard, work).await)
    }

    /// Campaigns for the key, works while it holds the key, and campaigns again, in an endless loop: after the work has
    /// returned, after the key was lost, and after the database has failed. Between two terms it pauses for a moment,
    /// so that others get their turn. Returns an error only where trying again does not help: the key belongs to a
    /// group, or the client was shut down.
    ///
    /// ```no_run
    /// # async fn example(client: leadergroup_lock::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leadergroup_lock::Key;
    ///
    /// let error = client.campaign(&Key::new("scheduler")?, async |guard| schedule(guard.token().get()).await).await;
    /// # Err(error.into())
    /// # }
    /// # async fn schedule(token: i64) {}
    /// ```
    pub async fn campaign(&self, key: &Key, mut work: impl AsyncFnMut(&Guard)) -> ClientError {
        loop {
            match self.lock_whenever(key).await {
                Ok(guard) => match run(guard, &mut work).await {
                    Held::Done(()) => {}
                    Held::Lost => tracing::warn!(%key, "the lock was lost; campaigning again"),
                },
                Err(
                    error @ (ClientError::Refused { .. } | ClientError::Lock(crate::LockError::SessionDead)),
                ) => {
                    return error;
                }
                Err(error) => tracing::warn!(%key, %error, "the lock was not acquired; campaigning again"),
            }
            sleep(self.applicant.process.config.retry_interval.mul_f64(0.5 + portion() / 2.0)).await;
        }
    }
}

async fn run<T>(guard: Guard, work: impl AsyncFnOnce(&Guard) -> T) -> Held<T> {
    let done = tokio::select! {
        biased;
        () = guard.lost() => return Held::Lost,
        done = work(&guard) => done,
    };
    // A release that fails is repeated in the background.
    if let Err(error) = guard.release().await {
        tracing::debug!(%error, "the lock was not released; trying again");
    }
    Held::Done(done)
}
