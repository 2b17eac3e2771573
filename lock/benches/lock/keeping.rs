//! Keeping many groups of three candidates, each of which attends to its lock once in every interval.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use leadergroup_lock::{
    GrantId, Holder, Key, SessionId, Store, Token,
    controller::{Claim, Grant, Granted},
    monotonic,
    protocol::FailureDetector,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::contender::{Kind, prepare};
use crate::machine::{Bench, Usage, connect, execute, store};
use crate::plot::{Axis, Lines, Series};
use crate::postgres::Database;
use crate::report::{Report, number};
use crate::rivals::{Lease, Outcome, baseline, renew_batch, upsert};

const GROUPS: [usize; 4] = [10, 100, 1_000, 10_000];
const CANDIDATES: usize = 3;
/// The interval of all of them, and the ttl of all leases and sessions.
const INTERVAL: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(5);
/// Connections that a rival's candidates share, ten for each of three processes.
const CONNECTIONS: usize = 30;
/// How long everything runs before the measurement, so that this begins in a steady state.
const WARM_UP: Duration = Duration::from_secs(2);
/// The operator compares its rows with the table once in this many ttls.
const AUDIT_INTERVAL: u32 = 30;
/// How often the comparison is repeated to measure its cost.
const AUDITS: u32 = 10;

/// The results of keeping.
#[derive(Clone, Copy)]
struct Kept {
    transactions: f64,
    cores: f64,
    wal: f64,
    due: u64,
    missed: u64,
    /// Changes of holder although every holder was running.
    lost: u64,
}

impl Kept {
    fn missed(&self) -> f64 {
        100.0 * self.missed as f64 / self.due.max(1) as f64
    }
}

/// How groups are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One heartbeat for each replica.
    Ours,
    /// Each candidate of each group makes its round.
    Each(Kind),
    /// Each of three processes renews all its leases in one statement, and checks those of the others in another.
    Batch,
}

impl Way {
    const ALL: [Self; 4] =
        [Self::Ours, Self::Each(Kind::Baseline), Self::Each(Kind::Upsert(Lease::Plain)), Self::Batch];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Each(kind) => kind.name(),
            Self::Batch => "lease, batches",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Ours => Kind::Queue,
            Self::Each(kind) => kind,
            Self::Batch => Kind::Upsert(Lease::Plain),
        }
    }
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Keeping groups of 3 candidates, interval 1 s",
        &[
            ("", -14),
            ("groups", 7),
            ("tx/s", 9),
            ("server CPU, % of a core", 23),
            ("WAL B/s", 11),
            ("ticks missed, %", 15),
            ("false failovers", 15),
        ],
    );
    let mut figures = Vec::new();
    let mut curves = Way::ALL.map(|way| (way, Vec::new()));
    for (way, curve) in &mut curves {
        for groups in GROUPS {
            let database = bench.empty().await;
            prepare(&database, way.kind()).await?;
            let kept = match way {
                Way::Ours => ours(bench, &database, groups).await?,
                Way::Each(kind) => rival(bench, &database, *kind, groups).await?,
                Way::Batch => batches(bench, &database, groups).await?,
            };
            table.row(&[
                way.name().to_owned(),
                number(groups as f64),
                number(kept.transactions),
                number(kept.cores * 100.0),
                number(kept.wal),
                format!("{:.1}", kept.missed()),
                kept.lost.to_string(),
            ]);
            figures.push(json!({
                "kind": way.name(), "groups": groups, "transactions_per_second": kept.transactions,
                "server_cores": kept.cores, "wal_bytes_per_second": kept.wal, "ticks_due": kept.due,
                "ticks_missed": kept.missed, "false_failovers": kept.lost,
            }));
            curve.push((groups as f64, kept));
        }
    }
    report.figures("keeping", figures);
    summarise(report, &curves);
    pictures(report, &curves);
    Ok(())
}

type Curve = (Way, Vec<(f64, Kept)>);

fn summarise(report: &mut Report, curves: &[Curve]) {
    let last = |wanted: Way| {
        let curve = curves.iter().find(|(way, _)| *way == wanted);
        curve.and_then(|(_, curve)| curve.last()).map(|(_, kept)| *kept)
    };
    let [Some(ours), Some(baseline), _, Some(batch)] = Way::ALL.map(last) else { return };
    let a_replica = ours.transactions / CANDIDATES as f64;
    report.summarise(format!(
        "10,000 groups: {} tx/s a replica and {:.1} % of ticks missed, the baseline misses {:.1} %, leases in batches use \
         {:.0} times the CPU",
        number(a_replica),
        ours.missed(),
        baseline.missed(),
        batch.cores / ours.cores,
    ));
    // The comparison with the table is added to this.
    report.at_most("keeping 10,000 groups, transactions a second and replica", a_replica, 1.05);
    report.at_most("keeping 10,000 groups, ticks missed, %", ours.missed(), 0.0);
}

fn pictures(report: &mut Report, curves: &[Curve]) {
    let series = |value: fn(&Kept) -> f64| -> Vec<Series> {
        curves
            .iter()
            .map(|(way, curve)| Series {
                name: if *way == Way::Ours { "LeaderGroup" } else { way.name() },
                points: curve.iter().map(|(groups, kept)| (*groups, value(kept))).collect(),
            })
            .collect()
    };
    let cpu = Lines {
        title: "Keeping groups of 3 candidates: the server's CPU",
        x: "groups",
        across: Axis::Logarithmic,
        y: "% of a core",
        series: series(|kept| kept.cores * 100.0),
    };
    report.picture("lock-keeping-cpu.svg", cpu.svg());
    let missed = Lines {
        title: "Keeping groups of 3 candidates: ticks missed",
        x: "groups",
        across: Axis::Logarithmic,
        y: "% of all",
        series: series(Kept::missed),
    };
    report.picture("lock-keeping-missed.svg", missed.svg());
}

/// Three replicas as the operator runs them: one heartbeat each, which observes all sessions, and from time to time a
/// comparison of the own rows with the table.
async fn ours(bench: &Bench, database: &Database, groups: usize) -> Result<Kept> {
    let mut replicas = Vec::new();
    for replica in 0..CANDIDATES {
        let store = store(database, 4)?;
        let (session, _) = store.register(&format!("replica-{replica}"), TTL, Some("replicas"), None).await?;
        let share: Vec<Key> = (replica..groups).step_by(CANDIDATES).map(key).collect::<Result<_>>()?;
        hold(&store, session, &share).await?;
        replicas.push((store, session));
    }
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    let end = begin + WARM_UP + bench.time;
    for (place, (store, session)) in replicas.iter().cloned().enumerate() {
        let first = begin + INTERVAL / 3 * u32::try_from(place)?;
        tasks.spawn(keep(store, session, first, begin + WARM_UP, end));
    }
    let (mut kept, beats) = count(bench, tasks, begin + WARM_UP, end).await?;
    // Comparisons are too rare to occur in the measurement at their real rate: their cost is measured separately and
    // added.
    let (statements, usage) = audits(bench, &replicas).await?;
    let every = (TTL * AUDIT_INTERVAL).as_secs_f64() * f64::from(AUDITS);
    kept.cores += usage.cpu.as_secs_f64() / every;
    kept.wal += usage.wal as f64 / every;
    kept.transactions = beats as f64 / bench.time.as_secs_f64() + f64::from(statements) / every;
    Ok(kept)
}

/// The results of one replica or process.
struct Beats {
    due: u64,
    missed: u64,
    expired: u64,
}

/// Measures the server between two moments and adds up the results. Returns the number of rounds.
async fn count(
    bench: &Bench,
    mut tasks: JoinSet<Result<Beats>>,
    from: Instant,
    end: Instant,
) -> Result<(Kept, u64)> {
    sleep_until(from).await;
    let meter = bench.meter().await?;
    sleep_until(end).await;
    let usage = meter.stop().await?;
    let mut kept =
        Kept { transactions: 0.0, cores: usage.cores(), wal: usage.wal_rate(), due: 0, missed: 0, lost: 0 };
    while let Some(ended) = tasks.join_next().await {
        let one = ended??;
        kept.due += one.due;
        kept.missed += one.missed;
        kept.lost += one.expired;
    }
    Ok((kept, kept.due - kept.missed))
}

async fn keep(
    store: Store,
    session: SessionId,
    mut due: Instant,
    from: Instant,
    end: Instant,
) -> Result<Beats> {
    let mut observer = FailureDetector::new(INTERVAL);
    let mut beats = Beats { due: 0, missed: 0, expired: 0 };
    while due < end {
        let counts = u64::from(due >= from);
        beats.due += counts;
        if Instant::now() > due + INTERVAL {
            beats.missed += counts;
        } else {
            sleep_until(due).await;
            let sent_at = monotonic();
            let beat = store.beat(session, &[]).await?;
            anyhow::ensure!(beat.alive, "the session was marked dead");
            beats.expired += observer.observe(monotonic(), sent_at, &beat).len() as u64;
        }
        due += INTERVAL;
    }
    Ok(beats)
}

/// Reads the same as the operator for a comparison: each replica its own rows, and one of them also the keys that no
/// session has claimed.
async fn audits(bench: &Bench, replicas: &[(Store, SessionId)]) -> Result<(u32, Usage)> {
    let mut statements = 0;
    let meter = bench.meter().await?;
    for _ in 0..AUDITS {
        for (store, session) in replicas {
            store.rows_of(*session).await?;
            statements += 1;
        }
        if let Some((store, _)) = replicas.first() {
            store.unclaimed(None, 1_000).await?;
            statements += 1;
        }
    }
    Ok((statements, meter.stop().await?))
}

/// Claims the keys and grants each to a holder.
pub(crate) async fn hold(store: &Store, session: SessionId, keys: &[Key]) -> Result<()> {
    let claims: Vec<_> = keys
        .iter()
        .map(|key| Claim { key: key.clone(), group: "group".to_owned(), may_create: true, supersedes: None })
        .collect();
    store.claim(session, &claims).await?;
    let grants: Vec<_> = keys.iter().map(|key| grant(key, Token::ZERO, "first")).collect();
    grant_all(store, session, grants).await?;
    let mut tasks = JoinSet::new();
    for key in keys {
        let (store, key) = (store.clone(), key.clone());
        tasks.spawn(async move { store.confirm(session, &key, Token::new(1)).await });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

/// Grants each key in a task of its own, as the operator does. They go to the server together.
pub(crate) async fn grant_all(store: &Store, session: SessionId, grants: Vec<Grant>) -> Result<()> {
    let mut tasks = JoinSet::new();
    for grant in grants {
        let store = store.clone();
        tasks.spawn(async move { store.grant(session, grant).await });
    }
    for granted in tasks.join_all().await {
        let granted = granted?;
        anyhow::ensure!(matches!(granted, Granted::Granted { .. }), "a grant was refused: {granted:?}");
    }
    Ok(())
}

pub(crate) fn key(number: usize) -> Result<Key> {
    Ok(Key::new(format!("b5ac9f1e-6d3b-4d52-9a5c-9c6d2f2f7a11/shop/group-{number:05}"))?)
}

pub(crate) fn grant(key: &Key, expected: Token, to: &str) -> Grant {
    Grant {
        key: key.clone(),
        group: "group".into(),
        expected,
        floor: expected,
        holder: Holder {
            uid: GrantId::new().as_uuid().to_string(),
            namespace: "shop".into(),
            name: to.into(),
        },
        grant: GrantId::new(),
        reason: "benchmark".into(),
    }
}

/// Three processes with a third of the leases each. A process's round is two statements.
async fn batches(bench: &Bench, database: &Database, groups: usize) -> Result<Kept> {
    let fill = format!(
        "insert into upsert select 'group-' || g, 'c' || g % {CANDIDATES}, now() + interval '5 s' \
         from generate_series(0, {groups} - 1) as g; create index on upsert (holder); analyze upsert"
    );
    execute(database, &fill).await?;
    let begin = Instant::now();
    let (from, end) = (begin + WARM_UP, begin + WARM_UP + bench.time);
    let mut tasks = JoinSet::new();
    for place in 0..CANDIDATES {
        let mut connection = connect(database).await?;
        let own = (place..groups).step_by(CANDIDATES).count() as u64;
        let mut due = begin + INTERVAL / 3 * u32::try_from(place)?;
        tasks.spawn(async move {
            let mut beats = Beats { due: 0, missed: 0, expired: 0 };
            while due < end {
                let counts = u64::from(due >= from);
                beats.due += counts;
                if Instant::now() > due + INTERVAL {
                    beats.missed += counts;
                } else {
                    sleep_until(due).await;
                    let (kept, expired) = renew_batch(&mut connection, &format!("c{place}")).await?;
                    anyhow::ensure!(kept == own, "{kept} of {own} leases were renewed");
                    beats.expired += expired.unsigned_abs();
                }
                due += INTERVAL;
            }
            anyhow::Ok(beats)
        });
    }
    let (mut kept, rounds) = count(bench, tasks, from, end).await?;
    kept.transactions = 2.0 * rounds as f64 / bench.time.as_secs_f64();
    Ok(kept)
}

/// Each candidate of each group makes one round in every interval, all evenly spread. A round that has not begun when
/// the candidate's next one is due is missed.
async fn rival(bench: &Bench, database: &Database, kind: Kind, groups: usize) -> Result<Kept> {
    // Every group has its holder, the first candidate.
    let fill = match kind {
        Kind::Baseline => "baseline select 'group-' || g, 'c0', now() at time zone 'utc', interval '5 s'",
        _ => "upsert select 'group-' || g, 'c0', now() + interval '5 s'",
    };
    execute(database, &format!("insert into {fill} from generate_series(0, {groups} - 1) as g")).await?;
    let next = Arc::new(AtomicU64::new(0));
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(database).await?);
    }
    // It begins with most of an interval's work undone: a rival that keeps up has caught up before the measurement, and
    // one that does not is already where it would be after a while.
    let now = Instant::now();
    let begin = now - INTERVAL * 9 / 10;
    let (from, end) = (now + WARM_UP, now + WARM_UP + bench.time);
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            let mut rounds = Beats { due: 0, missed: 0, expired: 0 };
            loop {
                let tick = next.fetch_add(1, Ordering::Relaxed);
                let number = usize::try_from(tick)?;
                let spread = INTERVAL.as_secs_f64() / (groups * CANDIDATES) as f64;
                let at = begin + Duration::from_secs_f64(tick as f64 * spread);
                if at >= end || Instant::now() >= end {
                    return anyhow::Ok(rounds);
                }
                let behind = Instant::now() > at + INTERVAL;
                sleep_until(at).await;
                let counts = u64::from(Instant::now() >= from);
                rounds.due += counts;
                if behind {
                    rounds.missed += counts;
                    continue;
                }
                let key = format!("group-{}", number % groups);
                let holder = format!("c{}", number / groups % CANDIDATES);
                let outcome = match kind {
                    Kind::Baseline => baseline(&mut connection, &key, &holder).await?,
                    _ => upsert(&mut connection, Lease::Plain, &key, &holder).await?,
                };
                rounds.expired += u64::from(outcome == Outcome::Taken && holder != "c0") * counts;
            }
        });
    }
    let (mut kept, rounds) = count(bench, tasks, from, end).await?;
    kept.transactions = rounds as f64 / bench.time.as_secs_f64();
    Ok(kept)
}
