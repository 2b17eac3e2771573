//! Processes end, or stop for a while, and others observe that.

use std::time::Duration;

use leadergroup_lock::monotonic;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::process::{Answer, token};
use crate::rules::{Outcome, follows, late};
use crate::scenarios::until::{heartbeats_until, held_until, said_lost_until, tried_until};
use crate::stage::Stage;

pub(super) async fn a_killed_holder(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter, first) = stage.holder_and_waiter().await?;
    holder.kill().await;
    match waiter.answer_within(ttl.mul_f64(2.5) + slack).await? {
        Some(Answer::Granted(second)) => follows(second, first),
        answer => late(13, format!("the holder was killed, and the client that waited answered {answer:?}")),
    }
}

pub(super) async fn a_paused_holder(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter, first) = stage.holder_and_waiter().await?;
    holder.signal(Signal::STOP);
    let Some(Answer::Granted(second)) = waiter.answer_within(ttl.mul_f64(2.5) + slack).await? else {
        return late(13, "the holder was stopped, and the client that waited did not get the key");
    };
    holder.signal(Signal::CONT);
    // If it still answers `yes`, the record shows that its lease is over.
    if held_until(&mut holder, "k", monotonic() + ttl).await? {
        return Ok(());
    }
    if !said_lost_until(&holder, "k", first, monotonic() + slack).await {
        return late(4, "it was stopped for longer than its ttl, and did not say that it lost the key");
    }
    if waiter.held("k").await? != Some(second) {
        return late(30, "it lost a key although nothing had failed");
    }
    if !waiter.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    match tried_until(&mut holder, "k", monotonic() + ttl * 3 + slack).await? {
        Some(third) => follows(third, second),
        None => late(9, "after its session had been marked dead it did not get a free key"),
    }
}

pub(super) async fn a_marked_session(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    let first = client.take("k").await?;
    stage.mark_dead(&client).await?;
    if held_until(&mut client, "k", monotonic() + ttl + slack * 2).await? {
        return late(8, "its session was marked dead, and it still holds the key");
    }
    match tried_until(&mut client, "k", monotonic() + ttl * 3 + slack).await? {
        Some(second) => follows(second, first),
        None => late(9, "after its session had been marked dead it did not get a free key"),
    }
}

pub(super) async fn a_single_try(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut holder = stage.client().await?;
    holder.take("k").await?;
    holder.kill().await;
    // Nobody observes it.
    sleep(ttl * 2 + Duration::from_millis(500)).await;
    let mut client = stage.client().await?;
    client.send("try k").await?;
    let answer = client.answer(ttl * 3 + slack).await?;
    match token(&answer) {
        Some(_) => Ok(()),
        None => late(14, "the holder was silent for twice its ttl, and a single try ended without the key"),
    }
}

pub(super) async fn an_outage_for_all(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter) = (stage.client().await?, stage.client().await?);
    holder.take("k").await?;
    waiter.send("lock k 600000").await?;
    if !heartbeats_until(stage, &waiter, 3, monotonic() + ttl * 2 + slack).await? {
        return late(6, "it sends no heartbeats");
    }
    holder.proxy.freeze(true);
    waiter.proxy.freeze(true);
    sleep(ttl.mul_f64(1.3) + slack).await;
    waiter.proxy.freeze(false);
    let back = heartbeats_until(stage, &waiter, 2, monotonic() + ttl * 2 + slack).await?;
    // A client that observes wrongly marks the holder with one of these heartbeats.
    sleep(ttl / 4).await;
    holder.proxy.freeze(false);
    if !back {
        return late(30, "it sends no heartbeats after the end of an outage");
    }
    match waiter.answer_within(ttl * 4 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => late(25, format!("the holder lost the key in an outage; the waiter answered {answer:?}")),
    }
}
