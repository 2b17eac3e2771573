//! Mass failover: a process dies that owned many keys, and all their holders die with it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leadergroup_lock::{
    Key, SessionId, Store, Token,
    controller::{Claim, Claimed},
};
use serde_json::json;
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;

use crate::contender::{Contender, Kind, prepare};
use crate::keeping::{grant, grant_all, hold, key};
use crate::machine::{Bench, connect, execute, store};
use crate::measure::Latencies;
use crate::report::{Report, number};
use crate::rivals::{Lease, Outcome, upsert_batch};

const KEYS: [usize; 2] = [1_000, 10_000];
const ROUNDS: usize = 5;
/// Repetitions for a rival that takes one key after the other: each repetition takes seconds.
const SLOW_ROUNDS: usize = 1;
/// Connections that take leases over key by key.
const CONNECTIONS: usize = 16;
/// Keys in one statement where leases are taken over in batches: as many as ours.
const BATCH: usize = 1_000;
const BATCH_CONNECTIONS: usize = 2;

/// The ways in which a rival takes over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    KeyByKey(Kind),
    /// Leases, each with a token, a thousand in one statement.
    Batches,
}

impl Rival {
    const ALL: [Self; 4] = [
        Self::KeyByKey(Kind::Baseline),
        Self::KeyByKey(Kind::Upsert(Lease::Plain)),
        Self::KeyByKey(Kind::Upsert(Lease::Token)),
        Self::Batches,
    ];

    fn name(self) -> String {
        match self {
            Self::KeyByKey(kind) => format!("{}, {CONNECTIONS} connections", kind.name()),
            Self::Batches => "lease, token, batches".to_owned(),
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::KeyByKey(kind) => kind,
            Self::Batches => Kind::Upsert(Lease::Token),
        }
    }

    fn rounds(self) -> usize {
        if self == Self::Batches { ROUNDS } else { SLOW_ROUNDS }
    }
}

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Mass failover: until all keys of a dead process have new holders",
        &[
            ("keys", 7),
            ("", -36),
            ("median ms", 9),
            ("longest ms", 10),
            ("death mark", 10),
            ("claim", 7),
            ("grant", 7),
        ],
    );
    let mut figures = Vec::new();
    for keys in KEYS {
        let mut medians = Vec::new();
        for survivors in [1, 2] {
            let (all, parts) = measure(bench, keys, survivors).await?;
            let name = format!("ours, {survivors} {}", if survivors == 1 { "survivor" } else { "survivors" });
            let mut cells = vec![number(keys as f64), name.clone()];
            cells.extend([all.quantile(0.5), all.quantile(1.0)].map(number));
            cells.extend(parts.iter().map(|part| number(part.quantile(0.5))));
            table.row(&cells);
            figures.push(json!({
                "keys": keys, "kind": name, "all": all.json(), "death_mark": parts[0].json(),
                "claim": parts[1].json(), "grant": parts[2].json(),
            }));
            medians.push(all.quantile(0.5));
        }
        for rival in Rival::ALL {
            let mut all = Vec::new();
            for _ in 0..rival.rounds() {
                all.push(take_over(bench, rival, keys).await?);
            }
            let all = Latencies::of(all);
            table.row(&[
                number(keys as f64),
                rival.name(),
                number(all.quantile(0.5)),
                number(all.quantile(1.0)),
            ]);
            figures.push(json!({ "keys": keys, "kind": rival.name(), "all": all.json() }));
            medians.push(all.quantile(0.5));
        }
        if let [one, _, baseline, upsert, _, batches] = medians[..] {
            report.summarise(format!(
                "{} holders lost: {one:.0} ms, the upsert lease key by key {:.1}, in batches {:.2} and the baseline {:.1} \
                 times as long",
                number(keys as f64),
                upsert / one,
                batches / one,
                baseline / one,
            ));
            if keys == 10_000 {
                report.at_most("10,000 keys of a dead process to new holders, ms", one, 300.0);
            }
        }
    }
    report.figures("failover", figures);
    Ok(())
}

/// Our take-over: the total, and its parts.
async fn measure(bench: &Bench, keys: usize, survivors: usize) -> Result<(Latencies, [Latencies; 3])> {
    let mut all = Vec::new();
    let mut parts = [(); 3].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        let times = ours(bench, keys, survivors).await?;
        all.push(times.iter().copied().sum());
        parts.iter_mut().zip(times).for_each(|(part, time)| part.push(time));
    }
    Ok((Latencies::of(all), parts.map(Latencies::of)))
}

/// The statements that the operator's replicas send: the death mark, the claims of their shares, the grants.
async fn ours(bench: &Bench, keys: usize, survivors: usize) -> Result<[Duration; 3]> {
    let database = bench.migrated().await?;
    let keys: Vec<Key> = (0..keys).map(key).collect::<Result<_>>()?;
    let dying = store(&database, 4)?;
    let (dead, _) = dying.register("dying", Duration::from_secs(5), None, None).await?;
    hold(&dying, dead, &keys).await?;
    drop(dying);
    let mut stores = Vec::new();
    for survivor in 0..survivors {
        let store = store(&database, 4)?;
        let (session, _) =
            store.register(&format!("survivor-{survivor}"), Duration::from_secs(5), None, None).await?;
        let share: Vec<Key> = keys.iter().skip(survivor).step_by(survivors).cloned().collect();
        // As in a process that has run for a while: its statements are prepared.
        warm_up(&store, session, survivor).await?;
        stores.push((store, session, share));
    }
    let Some((first, session, _)) = stores.first() else { return Ok([Duration::ZERO; 3]) };
    let beat = first.beat(*session, &[dead]).await?;
    let beat = beat.sessions.iter().find(|seen| seen.id == dead).map_or(0, |seen| seen.beat);
    let began = Instant::now();
    ensure!(first.mark_dead(&[(dead, beat)], None).await? == [dead], "the death mark was refused");
    let marked = Instant::now();
    let mut tasks = JoinSet::new();
    for (store, session, share) in stores.iter().cloned() {
        tasks.spawn(async move { claim(&store, session, &share).await });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    let claimed = Instant::now();
    let mut tasks = JoinSet::new();
    for (store, session, share) in stores {
        let grants: Vec<_> = share.iter().map(|key| grant(key, Token::new(1), "second")).collect();
        tasks.spawn(async move { grant_all(&store, session, grants).await });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok([marked - began, claimed - marked, claimed.elapsed()])
}

async fn claim(store: &Store, session: SessionId, keys: &[Key]) -> Result<()> {
    let claims: Vec<_> = keys
        .iter()
        .map(|key| Claim { key: key.clone(), group: "group".to_owned(), may_create: false, supersedes: None })
        .collect();
    let claimed = store.claim(session, &claims).await?;
    ensure!(claimed.iter().all(|one| matches!(one, Claimed::Ours(_))), "a claim was refused");
    Ok(())
}

async fn warm_up(store: &Store, session: SessionId, survivor: usize) -> Result<()> {
    let own = Key::new(format!("own-{survivor}"))?;
    hold(store, session, std::slice::from_ref(&own)).await?;
    claim(store, session, std::slice::from_ref(&own)).await?;
    store.grant(session, grant(&own, Token::new(1), "second")).await?;
    store.mark_dead(&[(SessionId::new(), 1)], None).await?;
    Ok(())
}

/// All leases of a dead process have expired, and candidates that share some connections take them.
async fn take_over(bench: &Bench, rival: Rival, keys: usize) -> Result<Duration> {
    let database = bench.empty().await;
    prepare(&database, rival.kind()).await?;
    let fill = match rival.kind() {
        Kind::Baseline => {
            "insert into baseline select $, 'dead', now() at time zone 'utc' - interval '1 min', interval '5 s'"
        }
        _ => "insert into upsert select $, 'dead', now() - interval '1 min', 1",
    };
    let name = key(0)?;
    let name = name.as_str().trim_end_matches(char::is_numeric);
    let fill = fill.replace('$', &format!("'{name}' || lpad(g::text, 5, '0')"));
    execute(&database, &format!("{fill} from generate_series(0, {keys} - 1) as g; analyze")).await?;
    let mut connections = Vec::new();
    if rival == Rival::Batches {
        for number in 0..BATCH_CONNECTIONS {
            let mut connection = connect(&database).await?;
            upsert_batch(&mut connection, &[format!("own-{number}")], "survivor").await?;
            connections.push(connection);
        }
        return in_batches(connections, keys).await;
    }
    let mut contenders = Vec::new();
    for number in 0..CONNECTIONS {
        let mut contender = Contender::new(&database, rival.kind(), format!("survivor-{number}")).await?;
        contender.attempt(&Key::new(format!("own-{number}"))?).await?;
        contenders.push(contender);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, mut contender) in contenders.into_iter().enumerate() {
        tasks.spawn(async move {
            for number in (number..keys).step_by(CONNECTIONS) {
                let key = key(number)?;
                // The baseline's `NOWAIT` may refuse it.
                while contender.attempt(&key).await? == Outcome::Held {}
            }
            Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(began.elapsed())
}

async fn in_batches(connections: Vec<PgConnection>, keys: usize) -> Result<Duration> {
    let names: Vec<_> =
        (0..keys).map(|number| Ok(key(number)?.as_str().to_owned())).collect::<Result<_>>()?;
    let batches: Vec<Vec<String>> = names.chunks(BATCH).map(<[String]>::to_vec).collect();
    let senders = connections.len();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        let own: Vec<_> = batches.iter().skip(number).step_by(senders).cloned().collect();
        tasks.spawn(async move {
            for batch in own {
                let taken = upsert_batch(&mut connection, &batch, "survivor").await?;
                ensure!(taken == batch.len(), "{taken} of {} leases were taken", batch.len());
            }
            Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(began.elapsed())
}
