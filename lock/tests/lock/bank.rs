//! A bank account that only the present holder may write to. Holders are paused in the middle of their transactions,
//! lose the lock, resume, and try to continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leadergroup_lock::{FencePolicy, Overrun, admin::FENCE_SEEN_SQL};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cast::{grant, grant_one, granted, key, session, take};
use crate::fence::{Application, LEVELS, STALE, application, run};
use crate::postgres::{DEADLINE, Database, database, eventually, migrated};

const TERMS: i64 = 6;
/// How long a change of holder waits before it ends the old holder's transactions.
const PATIENCE: Duration = Duration::from_millis(30);

/// The state that all holders share.
#[derive(Clone)]
struct Bank {
    application: Application,
    level: &'static str,
    fence: &'static str,
    /// Holders with a smaller token than this continue after their pauses.
    awake: watch::Receiver<i64>,
    /// The number of commits of the present holder.
    commits: Arc<AtomicUsize>,
    /// Whether the present holder has a transaction that is paused.
    paused: Arc<AtomicBool>,
    interrupted: Arc<AtomicUsize>,
}

async fn open_account(application: &Application) -> PgConnection {
    let mut connection = application.connect().await;
    connection
        .execute(
            "create table bank.account (balance int, version int);
             insert into bank.account values (0, 0);
             create table bank.ledger (version int primary key, token bigint)",
        )
        .await
        .unwrap();
    connection
}

impl Bank {
    fn new(
        application: &Application,
        level: &'static str,
        fence: &'static str,
    ) -> (Self, watch::Sender<i64>) {
        let (wake, awake) = watch::channel(0);
        let bank = Self {
            application: application.clone(),
            level,
            fence,
            awake,
            commits: Arc::default(),
            paused: Arc::default(),
            interrupted: Arc::default(),
        };
        (bank, wake)
    }

    /// A holder with two connections. Once it has written something, transactions on the first one are paused, each at
    /// a different place, until the next term.
    fn hold(&mut self, token: i64) -> [JoinHandle<()>; 2] {
        // Commits of earlier holders are not counted.
        self.commits = Arc::default();
        self.paused = Arc::default();
        [true, false].map(|pauses| {
            let bank = self.clone();
            tokio::spawn(async move { bank.work(token, pauses).await })
        })
    }

    /// Writes until the fence refuses it.
    async fn work(&self, token: i64, pauses: bool) {
        let mut connection = self.application.connect().await;
        for attempt in 0_usize.. {
            let pause = pauses && self.commits.load(Ordering::Relaxed) >= 3;
            let place = pause.then_some((attempt + usize::try_from(token).unwrap()) % 4);
            match self.write(&mut connection, token, place).await {
                Ok(()) => {
                    self.commits.fetch_add(1, Ordering::Relaxed);
                }
                Err(state) if state == STALE => return,
                Err(state) => {
                    self.interrupted.fetch_add(1, Ordering::Relaxed);
                    // Serialization failure, deadlock, lock timeout: start again. Otherwise the connection is gone.
                    if !["40001", "40P01", "55P03"].contains(&state.as_str())
                        || run(&mut connection, "rollback").await.is_err()
                    {
                        connection = self.application.connect().await;
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        connection: &mut PgConnection,
        token: i64,
        pause: Option<usize>,
    ) -> Result<(), String> {
        let pause = async |place: usize| {
            if pause == Some(place) {
                let mut awake = self.awake.clone();
                self.paused.store(true, Ordering::Relaxed);
                awake.wait_for(|awake| *awake > token).await.unwrap();
            }
        };
        run(connection, &format!("begin isolation level {}", self.level)).await?;
        // Reading first is against the rules, and must not do harm.
        run(connection, "select balance from bank.account").await?;
        pause(0).await;
        run(connection, &format!("select {}('a', {token})", self.fence)).await?;
        pause(1).await;
        run(connection, "update bank.account set balance = balance + 10, version = version + 1").await?;
        pause(2).await;
        run(connection, &format!("insert into bank.ledger select version, {token} from bank.account"))
            .await?;
        pause(3).await;
        run(connection, "commit").await
    }

    async fn in_full_swing(&self) {
        // By then it has also written at least three times.
        eventually("a transaction of the holder is paused", async || self.paused.load(Ordering::Relaxed))
            .await;
    }
}

async fn finish(holders: Vec<JoinHandle<()>>) {
    for holder in holders {
        tokio::time::timeout(DEADLINE, holder).await.expect("each old holder is refused in the end").unwrap();
    }
}

/// Checks what must hold for the books in any case.
async fn audit(database: &Database, bank: &Bank) {
    let disorder = "select count(*) from (select token, lag(token) over (order by version) as before from bank.ledger) l \
                    where token < before";
    assert_eq!(database.number(disorder).await, 0, "{}: an old holder wrote after a new one", bank.level);
    let lost = "select (select balance from bank.account) - 10 * (select count(*) from bank.ledger)";
    assert_eq!(database.number(lost).await, 0, "{}: money was lost or created", bank.level);
    assert_eq!(database.number("select count(distinct token) from bank.ledger").await, TERMS);
    assert!(
        bank.interrupted.load(Ordering::Relaxed) > 0,
        "no transaction was interrupted: the test shows nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_old_holder_writes_once_the_next_one_was_granted() {
    for level in LEVELS {
        let (database, store) = migrated().await;
        let store = store.with_fence_policy(FencePolicy { patience: PATIENCE, overrun: Overrun::Terminate });
        let own = session(&store).await;
        take(&store, own, &key("a")).await;
        let application = application(&database).await;
        let mut books = open_account(&application).await;
        let (mut bank, wake) = Bank::new(&application, level, "leadergroup.fence");
        let (mut holders, mut written) = (Vec::new(), Vec::new());
        for term in 1..=TERMS + 1 {
            let answer = grant_one(&store, own, grant(&key("a"), term - 1, "p")).await;
            assert_eq!(answer, granted(term), "{level}: the answer to a takeover");
            written.push((term, count(&mut books, term).await));
            if term <= TERMS {
                holders.extend(bank.hold(term));
                bank.in_full_swing().await;
            }
            wake.send(term).unwrap();
        }
        finish(holders).await;
        for (term, before) in written {
            assert_eq!(count(&mut books, term).await, before, "{level}: written after term {term} began");
        }
        audit(&database, &bank).await;
    }
}

async fn count(books: &mut PgConnection, below: i64) -> i64 {
    let sql = format!("select count(*) from bank.ledger where token < {below}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(books).await.unwrap()
}

/// The lock is in another database, and the data's database sees only tokens.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_lock_elsewhere_no_old_holder_writes_once_the_next_one_has_written() {
    for level in LEVELS {
        let database = database().await;
        database.sql(FENCE_SEEN_SQL).await;
        let application = application(&database).await;
        database
            .sql(&format!(
                "alter database {} set leadergroup.fence_patience = {}",
                database.name,
                PATIENCE.as_millis()
            ))
            .await;
        open_account(&application).await;
        let (mut bank, wake) = Bank::new(&application, level, "leadergroup.fence_seen");
        let mut holders = Vec::new();
        for term in 1..=TERMS {
            holders.extend(bank.hold(term));
            bank.in_full_swing().await;
            wake.send(term).unwrap();
        }
        let last = format!("select leadergroup.fence_seen('a', {})", TERMS + 1);
        assert_eq!(run(&mut application.connect().await, &last).await, Ok(()));
        wake.send(TERMS + 1).unwrap();
        finish(holders).await;
        audit(&database, &bank).await;
    }
}
