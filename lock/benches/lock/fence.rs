//! The fence: what it costs an application's transaction, and how long such transactions delay a takeover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leadergroup_lock::{Token, controller::Granted};
use serde_json::json;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::keeping::{grant, hold, key};
use crate::machine::{Bench, connect, execute, store};
use crate::measure::{Latencies, milliseconds};
use crate::postgres::Database;
use crate::report::{Report, number};

const CLIENTS: [usize; 2] = [1, 32];
/// The takeover has to pass the transactions of this many clients, each as long as `WORK`.
const STREAM: usize = 32;
const WORK: Duration = Duration::from_millis(20);
const TAKEOVERS: usize = 5;
/// A takeover that takes longer is given up, and reported as such.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    None,
    Ours,
    /// The rival: the token's row, locked FOR KEY SHARE.
    Row,
}

impl Fence {
    const ALL: [Self; 3] = [Self::None, Self::Ours, Self::Row];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no fence",
            Self::Ours => "ours",
            Self::Row => "row lock",
        }
    }

    /// The first statement of a fenced transaction, with the key and the token. An error or no row: the token is stale.
    fn sql(self) -> &'static str {
        match self {
            Self::None => "select $1::text, $2::bigint",
            Self::Ours => "select leadergroup.fence($1, $2)",
            Self::Row => "select from rival where key = $1 and token = $2 for key share",
        }
    }
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut figures = Vec::new();
    let table = Report::table(
        "Fence: an application's transaction (fence, one update, commit)",
        &[("clients", 7), ("", -14), ("tx/s", 9), ("p50 ms", 8), ("p99 ms", 8), ("WAL B/tx", 9)],
    );
    for clients in CLIENTS {
        let mut rates = Vec::new();
        for fence in Fence::ALL {
            let (rate, times, wal) = cost(bench, fence, clients).await?;
            table.row(&[
                clients.to_string(),
                fence.name().to_owned(),
                number(rate),
                number(times.quantile(0.5)),
                number(times.quantile(0.99)),
                number(wal),
            ]);
            figures.push(json!({
                "clients": clients, "fence": fence.name(), "transactions_per_second": rate, "times": times.json(),
                "wal_bytes_per_transaction": wal,
            }));
            rates.push(rate);
        }
        if clients > 1 {
            report.summarise(format!(
                "fenced transactions: {:.0} % of the rate without, with a row lock {:.0} %",
                100.0 * rates[1] / rates[0],
                100.0 * rates[2] / rates[0],
            ));
        }
    }
    report.figures("fence", figures);

    let mut figures = Vec::new();
    let table = Report::table(
        "Takeover under 32 clients of fenced 20 ms transactions",
        &[("", -14), ("count", 5), ("median ms", 10), ("longest ms", 10)],
    );
    let mut medians = Vec::new();
    for fence in [Fence::Ours, Fence::Row] {
        let mut times = Vec::new();
        for _ in 0..TAKEOVERS {
            let time = takeover(bench, fence).await?;
            times.push(time);
            if time >= PATIENCE {
                break;
            }
        }
        let times = Latencies::of(times);
        let given_up = |time: f64| time >= milliseconds(PATIENCE);
        let cell = |share| {
            let time = times.quantile(share);
            format!("{}{}", if given_up(time) { "> " } else { "" }, number(time))
        };
        table.row(&[fence.name().to_owned(), times.count().to_string(), cell(0.5), cell(1.0)]);
        if fence == Fence::Ours {
            report.at_most(
                "take-over under 32 clients of fenced transactions, ms",
                times.quantile(0.5),
                100.0,
            );
        }
        medians.push(cell(0.5));
        figures.push(json!({ "fence": fence.name(), "given_up": given_up(times.quantile(1.0)), "times": times.json() }));
    }
    report.figures("takeover", figures);
    report.summarise(format!(
        "takeover from fenced transactions: {} ms, with a row lock {} ms",
        medians[0], medians[1]
    ));
    Ok(())
}

/// A database with accounts to write to, a key with its holder, and the rival's row.
async fn prepare(bench: &Bench) -> Result<Database> {
    let database = bench.migrated().await?;
    execute(
        &database,
        "create table account (id bigint primary key, balance bigint not null) with (fillfactor = 20);
         insert into account select g, 0 from generate_series(0, 999) as g;
         create table rival (key text primary key, token bigint not null) with (fillfactor = 20)",
    )
    .await?;
    let name = key(0)?;
    execute(&database, &format!("insert into rival values ('{name}', 1)")).await?;
    let store = store(&database, 4)?;
    let (session, _) = store.register("holder", Duration::from_secs(5), None, None).await?;
    hold(&store, session, std::slice::from_ref(&name)).await?;
    Ok(database)
}

/// Runs one transaction. Returns whether its token was the current one.
async fn transaction(
    connection: &mut PgConnection,
    fence: Fence,
    account: usize,
    work: Duration,
) -> Result<bool> {
    let key = key(0)?;
    let mut transaction = connection.begin().await?;
    if fence != Fence::None {
        let fenced =
            sqlx::query(fence.sql()).bind(key.as_str()).bind(1_i64).fetch_optional(&mut *transaction).await;
        match fenced {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("LG001") => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !work.is_zero() {
        sleep(work).await;
    }
    sqlx::query("update account set balance = balance + 1 where id = $1")
        .bind(i64::try_from(account)?)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(true)
}

async fn cost(bench: &Bench, fence: Fence, clients: usize) -> Result<(f64, Latencies, f64)> {
    let database = prepare(bench).await?;
    let mut connections = Vec::new();
    for account in 0..clients {
        let mut connection = connect(&database).await?;
        transaction(&mut connection, fence, account, Duration::ZERO).await?;
        connections.push(connection);
    }
    let meter = bench.meter().await?;
    let began = Instant::now();
    let end = began + bench.time;
    let mut tasks = JoinSet::new();
    for (account, mut connection) in connections.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                ensure!(
                    transaction(&mut connection, fence, account, Duration::ZERO).await?,
                    "the token is stale"
                );
                times.push(began.elapsed());
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended??);
    }
    let elapsed = began.elapsed();
    let usage = meter.stop().await?;
    let count = times.len() as f64;
    Ok((count / elapsed.as_secs_f64(), Latencies::of(times), usage.wal as f64 / count))
}

/// How long a change of holder takes during a stream of transactions of the old holder.
async fn takeover(bench: &Bench, fence: Fence) -> Result<Duration> {
    let database = prepare(bench).await?;
    let store = store(&database, 4)?;
    let (next, _) = store.register("next", Duration::from_secs(5), None, None).await?;
    // Frees the claim; the key still has its holder.
    let admin = &mut database.admin().await;
    admin.execute("update leadergroup.session set dead = true where name = 'holder'").await?;
    let name = key(0)?;
    let claim = leadergroup_lock::controller::Claim {
        key: name.clone(),
        group: "group".into(),
        may_create: false,
        supersedes: None,
    };
    store.claim(next, &[claim]).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for account in 0..STREAM {
        let mut connection = connect(&database).await?;
        let stop = Arc::clone(&stop);
        tasks.spawn(async move {
            let mut committed = 0_u64;
            while !stop.load(Ordering::Relaxed) && transaction(&mut connection, fence, account, WORK).await? {
                committed += 1;
            }
            anyhow::Ok(committed)
        });
    }
    // Waits until the stream has started.
    let enough = i64::try_from(STREAM * 3)?;
    while database.number("select sum(balance)::bigint from account").await < enough {
        sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    if fence == Fence::Row {
        // `FOR UPDATE`, because the transactions' row lock does not block an update that does not change the key.
        let taken = async {
            let mut connection = connect(&database).await?;
            let mut transaction = connection.begin().await?;
            sqlx::query("select from rival where key = $1 for update")
                .bind(name.as_str())
                .execute(&mut *transaction)
                .await?;
            sqlx::query("update rival set token = 2 where key = $1")
                .bind(name.as_str())
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            anyhow::Ok(())
        };
        // If it is given up, the stream ends, and with it the wait.
        if let Ok(taken) = tokio::time::timeout(PATIENCE, taken).await {
            taken?;
        }
    } else {
        let granted = store.grant(next, grant(&name, Token::new(1), "next")).await?;
        ensure!(matches!(granted, Granted::Granted { .. }), "the takeover was refused: {granted:?}");
    }
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let mut committed = 0;
    while let Some(ended) = tasks.join_next().await {
        committed += ended??;
    }
    ensure!(committed >= enough.unsigned_abs(), "the stream did not flow: {committed} transactions");
    Ok(took)
}
