//! What one heartbeat costs: with few and with many sessions, and after half an hour in which a transaction held a
//! snapshot, so that no version of a session's row could be removed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leadergroup_lock::{SessionId, Store};
use serde_json::json;
use sqlx::Executor as _;

use crate::machine::{Bench, connect, execute, store};
use crate::measure::{Latencies, milliseconds};
use crate::postgres::Database;
use crate::report::{Report, number};

const SESSIONS: [usize; 3] = [3, 100, 1_000];
/// Heartbeats of each session in half an hour.
const BEATS: usize = 1_800;
/// No session may expire: they send heartbeats in turns.
const TTL: Duration = Duration::from_hours(1);

/// The cost of heartbeats that are sent one after the other.
struct Cost {
    times: Latencies,
    /// The server's CPU time for one heartbeat.
    cpu: Duration,
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Heartbeat: the sessions beat one after the other",
        &[
            ("sessions", 8),
            ("snapshot", -12),
            ("p50 ms", 8),
            ("p99 ms", 8),
            ("longest ms", 10),
            ("server CPU ms", 13),
        ],
    );
    let mut figures = Vec::new();
    let mut costs = Vec::new();
    for sessions in SESSIONS {
        let (free, held) = measure(bench, sessions).await?;
        for (snapshot, cost) in [("none", &free), ("half an hour", &held)] {
            let cpu = milliseconds(cost.cpu);
            table.row(&[
                number(sessions as f64).trim_end_matches(".00").to_owned(),
                snapshot.to_owned(),
                number(cost.times.quantile(0.5)),
                number(cost.times.quantile(0.99)),
                number(cost.times.quantile(1.0)),
                number(cpu),
            ]);
            figures.push(json!({
                "sessions": sessions, "snapshot": snapshot, "times": cost.times.json(), "server_cpu_ms": cpu,
            }));
        }
        costs.push((free, held));
    }
    report.figures("heartbeat", figures);
    if let [(few, _), .., (many, held)] = &costs[..] {
        report.at_most(
            "a heartbeat with 1,000 sessions to one with 3, server CPU",
            many.cpu.as_secs_f64() / few.cpu.as_secs_f64(),
            2.0,
        );
        report.at_most(
            "a heartbeat with 1,000 sessions to one with 3, latency",
            many.times.quantile(0.5) / few.times.quantile(0.5),
            2.0,
        );
        report.at_most(
            "a heartbeat with 1,000 sessions under a snapshot, median ms",
            held.times.quantile(0.5),
            2.0,
        );
    }
    Ok(())
}

/// Measures without a snapshot, and with one that is half an hour old.
async fn measure(bench: &Bench, count: usize) -> Result<(Cost, Cost)> {
    let database = bench.migrated().await?;
    let store = store(&database, 4)?;
    let mut sessions = Vec::new();
    for number in 0..count {
        sessions.push(store.register(&format!("session-{number}"), TTL, None, None).await?.0);
    }
    // A server does this from time to time.
    execute(&database, "analyze leadergroup.session").await?;
    for session in sessions.iter().cycle().take(count.max(100)) {
        store.beat(*session, &[]).await?;
    }
    let free = beat(bench, &store, &sessions).await?;
    let mut snapshot = connect(&database).await?;
    snapshot.execute("begin isolation level repeatable read").await?;
    snapshot.execute("select count(*) from leadergroup.session").await?;
    replay(&database).await?;
    let held = beat(bench, &store, &sessions).await?;
    snapshot.execute("commit").await?;
    Ok((free, held))
}

/// Sends the sessions' heartbeats in turns, each after the previous one has been answered.
async fn beat(bench: &Bench, store: &Store, sessions: &[SessionId]) -> Result<Cost> {
    let meter = bench.meter().await?;
    let end = Instant::now() + bench.time;
    let mut times = Vec::new();
    for session in sessions.iter().cycle() {
        let began = Instant::now();
        let beat = store.beat(*session, &[]).await?;
        times.push(began.elapsed());
        ensure!(beat.alive && beat.sessions.len() >= 2, "it sees {} others", beat.sessions.len());
        if Instant::now() > end {
            break;
        }
    }
    let usage = meter.stop().await?;
    let cpu = usage.cpu / u32::try_from(times.len())?;
    Ok(Cost { times: Latencies::of(times), cpu })
}

/// Replays half an hour of heartbeats of all sessions, round after round, as fast as possible. Each round changes the
/// rows as the heartbeats do, and commits. It finds the rows by their physical position: through the index, each round
/// would have to pass all earlier versions.
async fn replay(database: &Database) -> Result<()> {
    let rounds = format!(
        "do $$
         declare places tid[] := array(select ctid from leadergroup.session);
         begin
             for round in 1..{BEATS} loop
                 with beaten as (
                     update leadergroup.session set beat = beat + 1, seen = now()
                     where ctid = any (places) returning ctid
                 )
                 select array_agg(ctid) into places from beaten;
                 commit;
             end loop;
         end $$"
    );
    let mut connection = connect(database).await?;
    connection.execute("set synchronous_commit = off").await?;
    connection.execute(sqlx::AssertSqlSafe(rounds)).await?;
    let beats = database.number("select min(beat) from leadergroup.session").await;
    ensure!(beats >= i64::try_from(BEATS)?, "a session beat {beats} times only");
    Ok(())
}
