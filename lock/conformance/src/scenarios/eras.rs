//! Commits may have been lost: another era begins.

use std::sync::Arc;
use std::time::Duration;

use leadergroup_lock::monotonic;
use tokio::time::sleep;

use crate::process::Answer;
use crate::proxy::Backend;
use crate::rules::{Outcome, late, wrong};
use crate::scenarios::until::held_until;
use crate::stage::Stage;

pub(super) async fn a_new_era(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter) = (stage.client().await?, stage.client().await?);
    let first = holder.take("k").await?;
    waiter.send("lock k 600000").await?;
    if !stage.wait_for_waiters("k", 1).await? {
        return late(20, "a client waits for the key, and has no place in its queue");
    }
    holder.kill().await;
    sleep(ttl / 2).await;
    stage.sql("select leadergroup.begin_era()").await?;
    match waiter.answer_within(ttl.mul_f64(3.5) + slack).await? {
        Some(Answer::Granted(second)) if second > first => Ok(()),
        Some(Answer::Granted(second)) => wrong(24, format!("the token {second} is not above {first}")),
        answer => {
            let lasts = stage.number("select count(*) from leadergroup.meta where quarantine").await? == 1;
            let rule = if lasts { 18 } else { 13 };
            late(rule, format!("the holder was killed and an era began; the waiter answered {answer:?}"))
        }
    }
}

/// As after a failover that lost the grant, but nothing of what came before it.
pub(super) async fn a_lost_grant(stage: &mut Stage) -> Outcome {
    let ttl = stage.ttl();
    let mut client = stage.client().await?;
    client.take("k").await?;
    stage
        .sql(
            "begin;
             update leadergroup.lock set holder_uid = null, holder_namespace = null, holder_name = null,
                    session = null, grant_id = null where key = 'k';
             select leadergroup.begin_era();
             commit",
        )
        .await?;
    // If it answers `yes` for too long, the record shows it.
    held_until(&mut client, "k", monotonic() + ttl * 2).await?;
    Ok(())
}

pub(super) async fn an_old_answer(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    stage.forge("era").await?;
    client.send("lock k 600000").await?;
    match client.answer_within(ttl).await? {
        None => {}
        Some(Answer::Granted(token)) => {
            return wrong(
                16,
                format!("it answered `granted {token}`, in another era than that of its heartbeats"),
            );
        }
        Some(answer) => return late(16, format!("after a grant of another era it answered {answer:?}")),
    }
    stage.be_honest().await?;
    match client.answer_within(ttl * 3 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => late(16, format!("after a grant of another era it did not ask again: {answer:?}")),
    }
}

/// The primary is gone, and the standby that is promoted has not received the last grant.
pub(super) async fn a_promotion(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut holder = stage.client().await?;
    let mut waiter = stage.client().await?;
    let primary = Arc::clone(&stage.server);
    let standby = tokio::task::spawn_blocking(move || primary.standby()).await??;
    let token = holder.take("k").await?;
    for client in [&holder, &waiter] {
        // The record is to have each heartbeat that was answered.
        client.proxy.freeze(true);
    }
    stage.before = stage.events().await?;
    stage.server.kill()?;
    standby.launch()?;
    standby.psql("select pg_promote()")?;
    let port = standby.port();
    stage.server = Arc::new(standby);
    for client in [&holder, &waiter] {
        client.proxy.lead_to(Backend::Port(port));
        client.proxy.freeze(false);
    }
    stage
        .sql(&format!(
            "select conform.note(conform.uptime(), 'on', 'end', null, key => 'k', token => {token})"
        ))
        .await?;
    waiter.send("lock k 600000").await?;
    held_until(&mut holder, "k", monotonic() + ttl * 2).await?;
    match waiter.answer_within(ttl * 4 + slack + Duration::from_secs(5)).await? {
        Some(Answer::Granted(second)) if second > token => Ok(()),
        Some(Answer::Granted(second)) => wrong(24, format!("the token {second} is not above {token}")),
        answer => late(18, format!("a standby was promoted; the waiter answered {answer:?}")),
    }
}
