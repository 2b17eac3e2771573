//! The database does not answer: a lease ends in time, and what is lost stays lost.

use std::time::Duration;

use leadergroup_lock::monotonic;
use tokio::time::sleep;

use crate::process::Answer;
use crate::proxy::Fault;
use crate::rules::{Outcome, follows, late, wrong};
use crate::scenarios::until::{heartbeats_until, held_until, said_lost_until};
use crate::stage::Stage;

pub(super) async fn an_outage(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    let token = client.take("k").await?;
    if !heartbeats_until(stage, &client, 2, monotonic() + ttl + slack).await? {
        return late(6, "it sends no heartbeats");
    }
    client.proxy.freeze(true);
    let cut = monotonic();
    if held_until(&mut client, "k", cut + ttl * 2).await? {
        // What it answered too late is in the record.
        return Ok(());
    }
    if !said_lost_until(&client, "k", token, cut + ttl + slack).await {
        return late(
            4,
            format!("it did not say within {:?} after the cut that it lost the key", ttl + slack),
        );
    }
    client.proxy.freeze(false);
    if !heartbeats_until(stage, &client, 2, monotonic() + ttl * 2 + slack).await? {
        return late(30, "it sends no heartbeats after the end of an outage");
    }
    // If it holds the key again, the record shows with which token.
    let end = monotonic() + ttl;
    while monotonic() < end {
        client.held("k").await?;
        sleep(Duration::from_millis(50)).await;
    }
    let unused = format!(
        "select not exists (select from leadergroup.lock as l join leadergroup.session as s on s.id = l.session
         where l.token = {token} and l.holder_uid is not null and not s.dead)"
    );
    let mut other = stage.client().await?;
    other.send("lock k 600000").await?;
    if !stage.becomes_true(&unused, ttl * 3 + slack).await? {
        return late(25, "it lost a key, and its living session kept it for itself");
    }
    match other.answer_within(ttl * 2 + slack).await? {
        Some(Answer::Granted(next)) => follows(next, token),
        answer => late(20, format!("the next client should have the key; it answered {answer:?}")),
    }
}

pub(super) async fn a_late_grant(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    client.proxy.arm_at("acquire(", Fault::Freeze, 0);
    client.send("lock k 600000").await?;
    let end = monotonic() + ttl + slack;
    while !client.proxy.has_fired() {
        if monotonic() >= end {
            return late(31, "it called no `acquire`");
        }
        sleep(Duration::from_millis(10)).await;
    }
    sleep(ttl * 2).await;
    client.proxy.freeze_requests();
    // No heartbeat has reached the database since.
    match client.answer_within(ttl / 2).await? {
        None => {}
        Some(Answer::Granted(token)) => {
            return wrong(5, format!("it answered `granted {token}` after the end of its lease"));
        }
        Some(answer) => return late(31, format!("after an outage during `acquire` it answered {answer:?}")),
    }
    client.proxy.freeze(false);
    match client.answer_within(ttl * 5 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => late(31, format!("after an outage during `acquire` it answered {answer:?}")),
    }
}
