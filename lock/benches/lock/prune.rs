//! Pruning a long history during normal work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leadergroup_lock::{Key, admin::Retention};
use serde_json::json;
use tokio::task::JoinSet;

use crate::contender::{Contender, Kind};
use crate::keeping::{hold, key};
use crate::machine::{Bench, execute, store};
use crate::measure::{Dice, Latencies};
use crate::postgres::Database;
use crate::report::{Report, number};
use crate::rivals::Outcome;

const TERMS: usize = 3_000_000;
const KEYS: usize = 500;
const CLIENTS: usize = 8;
/// Keys that the clients take and release.
const WORKED: usize = 1_000;
/// How long the clients run until their statements are prepared.
const RUN_UP: Duration = Duration::from_secs(1);

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let database = bench.migrated().await?;
    fill(&database).await?;
    let pause = async || {
        tokio::time::sleep(bench.time).await;
        Ok(())
    };
    let before = work(&database, pause).await?.1;
    let other = store(&database, 3)?;
    let began = Instant::now();
    let (pruned, during) = work(&database, async || Ok(other.prune(Retention::default()).await?)).await?;
    let took = began.elapsed().saturating_sub(RUN_UP);
    let left = database.number("select count(*) from leadergroup.term where holder_name = 'first'").await;
    ensure!(left <= i64::try_from(KEYS * 51)?, "{} terms were removed, and {left} are left", pruned.terms);
    let table = Report::table(
        &format!("Prune: {} terms of {KEYS} keys beside {CLIENTS} clients", number(TERMS as f64)),
        &[("", -16), ("s", 7), ("operations/s", 12), ("p50 ms", 8), ("p99 ms", 8), ("longest ms", 10)],
    );
    let mut figures = Vec::new();
    for (name, seconds, times) in
        [("before", bench.time.as_secs_f64(), &before), ("while it prunes", took.as_secs_f64(), &during)]
    {
        let rate = times.count() as f64 / seconds;
        let mut cells = vec![name.to_owned(), number(seconds), number(rate)];
        cells.extend([0.5, 0.99, 1.0].map(|share| number(times.quantile(share))));
        table.row(&cells);
        figures.push(json!({
            "when": name, "seconds": seconds, "operations_per_second": rate, "times": times.json(),
        }));
    }
    report.figures("prune", figures);
    report.summarise(format!(
        "3 million terms pruned in {:.1} s; p99 of other work {} ms, before {}",
        took.as_secs_f64(),
        number(during.quantile(0.99)),
        number(before.quantile(0.99)),
    ));
    Ok(())
}

/// A long history of keys that have holders.
async fn fill(database: &Database) -> Result<()> {
    let store = store(database, 4)?;
    let (session, _) = store.register("holder", Duration::from_hours(1), None, None).await?;
    let keys: Vec<Key> = (0..KEYS).map(|number| key(WORKED + number)).collect::<Result<_>>()?;
    hold(&store, session, &keys).await?;
    let each = TERMS / KEYS;
    let history = format!(
        "update leadergroup.lock set token = {each} + 1, confirmed_token = {each} + 1;
         insert into leadergroup.term
             (key, token, grant_id, group_id, session, holder_uid, holder_namespace, holder_name, reason, granted_at,
              confirmed, ended_at, end_reason)
         select l.key, g, gen_random_uuid(), l.group_id, l.session, l.holder_uid, l.holder_namespace, l.holder_name,
                'benchmark', now(), true, now(), 'benchmark'
         from generate_series(1, {each}) as g cross join leadergroup.lock as l
         on conflict do nothing"
    );
    // Without the trigger: the first terms are among those that are created here.
    execute(database, &history).await?;
    execute(database, "vacuum (analyze) leadergroup.term").await
}

/// Clients take and release keys while `other` runs. Returns its result, and how long the clients' operations took.
async fn work<T>(database: &Database, other: impl AsyncFnOnce() -> Result<T>) -> Result<(T, Latencies)> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut contenders = Vec::new();
    for number in 0..CLIENTS {
        contenders.push(Contender::new(database, Kind::Try, format!("client-{number}")).await?);
    }
    let from = Instant::now() + RUN_UP;
    let mut tasks = JoinSet::new();
    for (number, mut contender) in contenders.into_iter().enumerate() {
        let stop = Arc::clone(&stop);
        let mut dice = Dice::new(number);
        tasks.spawn(async move {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let key = key(dice.roll(WORKED))?;
                let began = Instant::now();
                while contender.attempt(&key).await? == Outcome::Held {}
                contender.release(&key).await?;
                if began >= from {
                    times.push(began.elapsed());
                }
            }
            contender.leave().await?;
            anyhow::Ok(times)
        });
    }
    tokio::time::sleep_until(from.into()).await;
    let done = other().await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended??);
    }
    Ok((done?, Latencies::of(times)))
}
