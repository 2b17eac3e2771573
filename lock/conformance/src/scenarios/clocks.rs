//! The time of day is set: on the client's machine, or on the database's.

use std::sync::Arc;

use leadergroup_lock::monotonic;

use crate::clock::Clock;
use crate::process::Answer;
use crate::rules::{Outcome, Trouble, follows, late};
use crate::scenarios::until::{heartbeats_until, held_until, said_lost_until};
use crate::stage::{Stage, server};

const DAY: i64 = 24 * 3600;

fn clock() -> Outcome<Clock> {
    Clock::new().map_err(|error| Trouble::Unchecked(error.to_string()))
}

/// Set back while the database does not answer. For a client that measures by the time of day, its lease goes on.
pub(super) async fn a_clock_that_is_set(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let clock = clock()?;
    let mut client = stage.client_with(&clock.environment()).await?;
    let token = client.take("k").await?;
    if !heartbeats_until(stage, &client, 2, monotonic() + ttl + slack).await? {
        return late(6, "it sends no heartbeats");
    }
    client.proxy.freeze(true);
    let cut = monotonic();
    clock.set(-DAY)?;
    // What it answers too late is in the record.
    if !held_until(&mut client, "k", cut + ttl * 2).await?
        && !said_lost_until(&client, "k", token, cut + ttl + slack).await
    {
        return late(
            4,
            format!("it did not say within {:?} after the cut that it lost the key", ttl + slack),
        );
    }
    Ok(())
}

pub(super) async fn a_jump_of_the_database(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let clock = clock()?;
    let server = server(&clock.environment()).await?;
    *stage = Stage::set(Arc::clone(&stage.settings), Arc::clone(&server)).await?;
    let (mut holder, mut waiter, first) = stage.holder_and_waiter().await?;
    for offset in [DAY, -DAY, 0] {
        clock.set(offset)?;
        if !held_until(&mut holder, "k", monotonic() + ttl).await? {
            return late(30, "it lost a key because the database's clock was set");
        }
    }
    holder.kill().await;
    let answer = waiter.answer_within(ttl.mul_f64(2.5) + slack).await?;
    // In order, so that libfaketime leaves nothing behind.
    let events = stage.events().await?;
    server.stop()?;
    stage.ended_with = Some(events);
    match answer {
        Some(Answer::Granted(second)) => follows(second, first),
        answer => late(13, format!("the holder was killed, and the client that waited answered {answer:?}")),
    }
}
