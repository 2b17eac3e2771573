//! Several clients want the same keys, and each of them fails in some way again and again.

use std::time::Duration;

use futures::future::try_join_all;
use leadergroup_lock::monotonic;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::process::{Answer, Client};
use crate::random::Random;
use crate::rules::{Outcome, late};
use crate::scenarios::until::held_until;
use crate::stage::Stage;

const CLIENTS: u64 = 4;

const KEYS: [&str; 2] = ["k", "l"];

/// What the clients do too early is in the record, and in the history.
pub(super) async fn clients_that_compete(stage: &mut Stage) -> Outcome {
    let (stage, end) = (&*stage, monotonic() + stage.ttl() * 6);
    let seed = stage.settings.seed.wrapping_mul(CLIENTS);
    try_join_all((0..CLIENTS).map(|number| compete(stage, Random(seed.wrapping_add(number)), end))).await?;
    Ok(())
}

async fn compete(stage: &Stage, mut random: Random, end: Duration) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    let mut wait = ttl.as_millis();
    while monotonic() < end {
        // An error may be answered at once.
        sleep(Duration::from_millis(20)).await;
        let key = KEYS[random.below(KEYS.len())];
        // No two requests of a client have the same text: a call of the last one may still be under way.
        wait += 1;
        client.send(&format!("lock {key} {wait}")).await?;
        match random.below(8) {
            0 => {
                client.kill().await;
                client = stage.client().await?;
                continue;
            }
            1 | 2 => stage.terminate(&client).await?,
            _ => {}
        }
        let Some(answer) = client.answer_within(ttl * 4 + slack).await? else {
            return late(0, format!("no answer to `lock {key} {wait}`"));
        };
        if !matches!(answer, Answer::Granted(_)) {
            continue;
        }
        if random.below(8) == 0 {
            client.kill().await;
            client = stage.client().await?;
            continue;
        }
        work(stage, &mut client, key, &mut random).await?;
        client.release(key).await?;
    }
    Ok(())
}

/// Holds a key for a while, in which something may fail.
async fn work(stage: &Stage, client: &mut Client, key: &str, random: &mut Random) -> Outcome {
    let ttl = stage.ttl();
    match random.below(8) {
        0 => {
            client.signal(Signal::STOP);
            sleep(ttl.mul_f64(1.5)).await;
            client.signal(Signal::CONT);
        }
        1 => {
            client.proxy.freeze(true);
            held_until(client, key, monotonic() + ttl * 2).await?;
            client.proxy.freeze(false);
        }
        2 => stage.terminate(client).await?,
        _ => {}
    }
    held_until(client, key, monotonic() + ttl / 5).await?;
    Ok(())
}
