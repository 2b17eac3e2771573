//! Many clients on the same keys: take, release, repeat.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use tokio::task::JoinSet;

use crate::contender::{Contender, Kind, prepare, program};
use crate::keeping::key;
use crate::machine::Bench;
use crate::measure::{Dice, Latencies};
use crate::plot::Bars;
use crate::report::{Report, number};
use crate::rivals::{Lease, Outcome};

const CLIENTS: [usize; 3] = [1, 8, 64];
const KEYS: [usize; 2] = [1, 1_000];
const KINDS: [Kind; 8] = [
    Kind::Try,
    Kind::Queue,
    Kind::Tasks,
    Kind::Baseline,
    PLAIN,
    Kind::Upsert(Lease::AsyncRelease),
    Kind::Upsert(Lease::Token),
    Kind::Advisory,
];
/// The lease whose commits are as durable as ours.
const PLAIN: Kind = Kind::Upsert(Lease::Plain);
/// The kinds in the picture. Advisory locks are in another class: their bars would flatten all others.
const PICTURED: [Kind; 5] = [Kind::Try, Kind::Queue, Kind::Tasks, Kind::Baseline, PLAIN];
/// Each measurement is split into this many parts, in turns with the others, so that a noisy moment affects all alike.
const ROUNDS: u32 = 3;

/// Connections of the program whose tasks are the clients: as many as it uses at a time, and those for heartbeats and
/// for hints.
const CONNECTIONS: u32 = 6;

/// How long the clients run before anything is counted. Each connection prepares and plans its statements when it first
/// uses them, which a program that runs for days does only once.
const RUN_UP: Duration = Duration::from_secs(1);

/// The results of one kind.
struct Tally {
    kind: Kind,
    operations: usize,
    time: Duration,
    waits: Vec<Duration>,
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Contended: from the wish until it was granted and released again",
        &[
            ("keys", 5),
            ("clients", 7),
            ("", -20),
            ("operations/s", 12),
            ("p50 ms", 9),
            ("p99 ms", 9),
            ("p99.9 ms", 9),
            ("longest ms", 10),
        ],
    );
    let mut figures = Vec::new();
    let mut bars = Vec::new();
    for keys in KEYS {
        for clients in CLIENTS {
            let mut tallies = Vec::new();
            for tally in measure(bench, keys, clients).await? {
                let rate = tally.operations as f64 / tally.time.as_secs_f64();
                let waits = Latencies::of(tally.waits);
                table.row(&[
                    number(keys as f64),
                    clients.to_string(),
                    tally.kind.name().to_owned(),
                    number(rate),
                    number(waits.quantile(0.5)),
                    number(waits.quantile(0.99)),
                    number(waits.quantile(0.999)),
                    number(waits.quantile(1.0)),
                ]);
                figures.push(json!({
                    "keys": keys, "clients": clients, "kind": tally.kind.name(),
                    "operations_per_second": rate, "wait": waits.json(),
                }));
                tallies.push((tally.kind, rate));
            }
            summarise(report, keys, clients, &tallies);
            bars.push((
                format!("{} {}, {clients}", number(keys as f64), if keys == 1 { "key" } else { "keys" }),
                PICTURED.iter().map(|kind| rate_of(&tallies, *kind)).collect(),
            ));
        }
    }
    report.figures("contended", figures);
    let picture = Bars {
        title: "Take and release: operations a second (keys, clients; logarithmic)",
        names: PICTURED.iter().map(|kind| kind.name()).collect(),
        groups: bars,
    };
    report.picture("lock-contended.svg", picture.svg());
    Ok(())
}

fn rate_of(tallies: &[(Kind, f64)], wanted: Kind) -> f64 {
    tallies.iter().find(|(kind, _)| *kind == wanted).map_or(f64::NAN, |(_, rate)| *rate)
}

fn summarise(report: &mut Report, keys: usize, clients: usize, tallies: &[(Kind, f64)]) {
    let rate = |wanted| rate_of(tallies, wanted);
    let of_lease = |wanted| rate(wanted) / rate(PLAIN);
    let what = format!(
        "{} {}, {clients} {}",
        number(keys as f64).trim_end_matches(".00"),
        if keys == 1 { "key" } else { "keys" },
        if clients == 1 { "client" } else { "clients" },
    );
    report.summarise(format!(
        "{what}: {:.2} of the upsert lease's operations (FIFO {:.2}, tasks of one program {:.2}, the lease with a token \
         {:.2}, with an asynchronous release {:.2}), {:.1} of the baseline's",
        of_lease(Kind::Try),
        of_lease(Kind::Queue),
        of_lease(Kind::Tasks),
        of_lease(Kind::Upsert(Lease::Token)),
        of_lease(Kind::Upsert(Lease::AsyncRelease)),
        rate(Kind::Try) / rate(Kind::Baseline),
    ));
    match (keys, clients) {
        (1, 8 | 64) => report.at_least(format!("{what}: FIFO to lease"), of_lease(Kind::Queue), 1.0),
        (1_000, 64) => {
            report.at_least(format!("{what}: try to lease"), of_lease(Kind::Try), 0.5);
            report.at_least(format!("{what}: tasks to lease"), of_lease(Kind::Tasks), 1.0);
        }
        (1_000, _) => report.at_least(format!("{what}: try to lease"), of_lease(Kind::Try), 0.6),
        _ => {}
    }
}

async fn measure(bench: &Bench, keys: usize, clients: usize) -> Result<Vec<Tally>> {
    let mut tallies =
        KINDS.map(|kind| Tally { kind, operations: 0, time: Duration::ZERO, waits: Vec::new() });
    for _ in 0..ROUNDS {
        for tally in &mut tallies {
            let database = bench.empty().await;
            prepare(&database, tally.kind).await?;
            let program = match tally.kind {
                Kind::Tasks => Some(program(&database, CONNECTIONS, "program".to_owned()).await?),
                _ => None,
            };
            let mut tasks = JoinSet::new();
            for number in 0..clients {
                let name = format!("client-{number}");
                let contender = match &program {
                    Some(program) => Contender::task(program, &name),
                    None => Contender::new(&database, tally.kind, name).await?,
                };
                tasks.spawn(warm_up(contender, (number..keys).step_by(clients)));
            }
            let contenders = tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
            let begin = Instant::now();
            let (from, end) = (begin + RUN_UP, begin + RUN_UP + bench.time / ROUNDS);
            let mut tasks = JoinSet::new();
            for (number, contender) in contenders.into_iter().enumerate() {
                tasks.spawn(contend(contender, keys, Dice::new(number), from, end));
            }
            let mut contenders = Vec::new();
            while let Some(ended) = tasks.join_next().await {
                let (contender, operations, waits) = ended??;
                tally.operations += operations;
                tally.waits.extend(waits);
                contenders.push(contender);
            }
            tally.time += from.elapsed();
            for contender in contenders {
                contender.leave().await?;
            }
            if let Some(program) = program {
                program.shutdown().await?;
            }
        }
    }
    Ok(tallies.into())
}

/// Creates the rows, because creating them costs more than using them, and prepares the statements.
async fn warm_up(mut contender: Contender, numbers: impl Iterator<Item = usize>) -> Result<Contender> {
    for number in numbers {
        let key = key(number)?;
        if contender.attempt(&key).await? != Outcome::Held {
            contender.release(&key).await?;
        }
    }
    Ok(contender)
}

/// Makes one request after another until the time is over; those that end before `from` are not counted. A request that
/// is not granted at the end counts with the time that it has waited; otherwise a starving one would not be seen.
async fn contend(
    mut contender: Contender,
    keys: usize,
    mut dice: Dice,
    from: Instant,
    end: Instant,
) -> Result<(Contender, usize, Vec<Duration>)> {
    let (mut operations, mut waits) = (0, Vec::new());
    loop {
        let key = key(dice.roll(keys))?;
        let begin = Instant::now();
        loop {
            if Instant::now() >= end {
                if begin < end {
                    waits.push(begin.elapsed());
                }
                return Ok((contender, operations, waits));
            }
            if contender.attempt(&key).await? != Outcome::Held {
                break;
            }
        }
        contender.release(&key).await?;
        if Instant::now() >= from {
            operations += 1;
            waits.push(begin.elapsed());
        }
    }
}
