//! Fenced transactions for the history, under each key's last tokens: also under the token of a term that is over, as
//! of a program that does not know that it has lost the lock.

use std::collections::BTreeMap;
use std::time::Duration;

use leadergroup_lock::monotonic;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use crate::process::{Answer, History, Line};

/// The pause between the writes.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a write may take. After that its outcome is unknown.
const LIMIT: Duration = Duration::from_secs(5);

/// How many tokens of each key write.
const TOKENS: usize = 2;

/// Writes until it is dropped.
#[derive(Debug)]
pub(crate) struct Writer {
    task: JoinHandle<()>,
    end: Option<oneshot::Sender<()>>,
}

impl Writer {
    /// Begins to write in the lock's own database, and adds to the history what became of it.
    pub(crate) fn start(database: PgConnectOptions, history: History) -> Self {
        let (end, ended) = oneshot::channel();
        Self { task: tokio::spawn(write(database, history, ended)), end: Some(end) }
    }

    /// Writes once more under each token, so that each history has a write after the last change of a term.
    pub(crate) async fn finish(mut self) {
        drop(self.end.take());
        let _ = timeout(LIMIT, &mut self.task).await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write(database: PgConnectOptions, history: History, mut ended: oneshot::Receiver<()>) {
    let mut connection = None;
    let mut pauses = interval(PAUSE);
    pauses.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_last = false;
    while !is_last {
        is_last = tokio::select! {
            _ = &mut ended => true,
            _ = pauses.tick() => false,
        };
        let terms = last_terms(&history.lock());
        for (who, key, token) in terms {
            let asked = monotonic();
            let done = timeout(LIMIT, fenced(&mut connection, &database, &key, token)).await;
            let answer = match done {
                Ok(Ok(())) => Answer::Ok,
                Ok(Err(sqlx::Error::Database(error))) if error.code().as_deref() == Some("LG001") => {
                    Answer::Refused
                }
                other => {
                    connection = None;
                    Answer::Error(format!("{other:?}"))
                }
            };
            let command = vec!["write".to_owned(), key, token.to_string()];
            history.lock().push(Line { who, asked, at: monotonic(), command, answer });
        }
    }
}

/// A transaction that consists of the fence.
async fn fenced(
    connection: &mut Option<PgConnection>,
    database: &PgConnectOptions,
    key: &str,
    token: i64,
) -> sqlx::Result<()> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(PgConnection::connect_with(database).await?),
    };
    sqlx::query("select leadergroup.fence($1, $2)").bind(key).bind(token).execute(open).await?;
    Ok(())
}

/// The clients, keys and tokens of the terms that were granted last.
fn last_terms(lines: &[Line]) -> Vec<(String, String, i64)> {
    let mut terms: BTreeMap<&str, Vec<(&str, i64)>> = BTreeMap::new();
    for line in lines.iter().rev() {
        if let (Answer::Granted(token), Some(key)) = (&line.answer, line.command.get(1)) {
            let last = terms.entry(key).or_default();
            if last.len() < TOKENS {
                last.push((&line.who, *token));
            }
        }
    }
    let owned = |(key, last): (&str, Vec<(&str, i64)>)| {
        let key = key.to_owned();
        last.into_iter().map(move |(who, token)| (who.to_owned(), key.clone(), token)).collect::<Vec<_>>()
    };
    terms.into_iter().flat_map(owned).collect()
}
