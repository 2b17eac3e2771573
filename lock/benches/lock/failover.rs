//! Mass failover: a process dies that was in charge of many keys, and all their holders with it.

use std::time::Instant;

use anyhow::{Result, ensure};
use leadergroup_lock::{Claim, Claimed, Granted, Key, SessionId, Store, Token};
use serde_json::json;
use tokio::task::JoinSet;

use crate::contender::{Contender, Kind, Outcome, prepare};
use crate::keeping::{grant, hold, key};
use crate::machine::{Bench, execute, store};
use crate::measure::Latencies;
use crate::report::{Report, number};

const KEYS: [usize; 2] = [1_000, 10_000];
const ROUNDS: usize = 5;
/// A rival's, of which each takes seconds.
const RIVAL_ROUNDS: usize = 1;
/// Connections that a rival takes the keys over with.
const CONNECTIONS: usize = 16;

pub(crate) async fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let table = Report::table(
        "Mass failover: until all keys of a dead process are granted anew",
        &[
            ("keys", 7),
            ("", -24),
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
            let mut all = Vec::new();
            let mut parts = [(); 3].map(|()| Vec::new());
            for _ in 0..ROUNDS {
                let times = ours(bench, keys, survivors).await?;
                all.push(times.iter().copied().sum());
                parts.iter_mut().zip(times).for_each(|(part, time)| part.push(time));
            }
            let (all, parts) = (Latencies::of(all), parts.map(Latencies::of));
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
        for kind in [Kind::Baseline, Kind::Upsert] {
            let mut all = Vec::new();
            for _ in 0..RIVAL_ROUNDS {
                all.push(rival(bench, kind, keys).await?);
            }
            let all = Latencies::of(all);
            let name = format!("{}, {CONNECTIONS} connections", kind.name());
            table.row(&[number(keys as f64), name, number(all.quantile(0.5)), number(all.quantile(1.0))]);
            figures.push(json!({ "keys": keys, "kind": kind.name(), "all": all.json() }));
            medians.push(all.quantile(0.5));
        }
        if let [one, _, baseline, upsert] = medians[..] {
            report.summarise(format!(
                "{} holders lost: {one:.0} ms, the upsert lease {:.1} and the baseline {:.1} times as long",
                number(keys as f64),
                upsert / one,
                baseline / one,
            ));
        }
    }
    report.figures("failover", figures);
    Ok(())
}

/// The statements that the operator's replicas send: the death mark, the claims of their shares, the grants.
async fn ours(bench: &Bench, keys: usize, survivors: usize) -> Result<[std::time::Duration; 3]> {
    let database = bench.migrated().await?;
    let keys: Vec<Key> = (0..keys).map(key).collect::<Result<_>>()?;
    let dying = store(&database, 4)?;
    let dead = dying.register("dying", std::time::Duration::from_secs(5)).await?;
    hold(&dying, dead, &keys).await?;
    drop(dying);
    let mut stores = Vec::new();
    for survivor in 0..survivors {
        let store = store(&database, 4)?;
        let session =
            store.register(&format!("survivor-{survivor}"), std::time::Duration::from_secs(5)).await?;
        let share: Vec<Key> = keys.iter().skip(survivor).step_by(survivors).cloned().collect();
        // What a process that has run for a while has done before: its statements are prepared.
        warm_up(&store, session, survivor).await?;
        stores.push((store, session, share));
    }
    let Some((first, session, _)) = stores.first() else { return Ok([std::time::Duration::ZERO; 3]) };
    let beat = first.beat(*session).await?;
    let beat = beat.sessions.iter().find(|seen| seen.id == dead).map_or(0, |seen| seen.beat);
    let began = Instant::now();
    ensure!(first.mark_dead(&[(dead, beat)]).await? == [dead], "the death mark was refused");
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
        tasks.spawn(async move {
            let granted = store.try_grant(session, &grants).await?;
            ensure!(granted.iter().all(|one| matches!(one, Granted::Granted { .. })), "a grant was refused");
            Ok(())
        });
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
    store.try_grant(session, &[grant(&own, Token::new(1), "second")]).await?;
    store.mark_dead(&[(SessionId::new(), 1)]).await?;
    Ok(())
}

/// The keys' leases have all expired, and candidates that share some connections take one after the other.
async fn rival(bench: &Bench, kind: Kind, keys: usize) -> Result<std::time::Duration> {
    let database = bench.empty().await;
    prepare(&database, kind).await?;
    let fill = match kind {
        Kind::Baseline => {
            "insert into baseline select $, 'dead', now() at time zone 'utc' - interval '1 min', interval '5 s'"
        }
        _ => "insert into upsert select $, 'dead', now() - interval '1 min'",
    };
    let name = key(0)?;
    let name = name.as_str().trim_end_matches(char::is_numeric);
    let fill = fill.replace('$', &format!("'{name}' || lpad(g::text, 5, '0')"));
    execute(&database, &format!("{fill} from generate_series(0, {keys} - 1) as g; analyze")).await?;
    let mut contenders = Vec::new();
    for number in 0..CONNECTIONS {
        let mut contender = Contender::new(&database, kind, format!("survivor-{number}")).await?;
        contender.attempt(&Key::new(format!("own-{number}"))?).await?;
        contenders.push(contender);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, mut contender) in contenders.into_iter().enumerate() {
        tasks.spawn(async move {
            for number in (number..keys).step_by(CONNECTIONS) {
                let key = key(number)?;
                // The baseline's `NOWAIT` may send it away.
                while contender.attempt(&key).await? == Outcome::Held {}
            }
            Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(began.elapsed())
}
