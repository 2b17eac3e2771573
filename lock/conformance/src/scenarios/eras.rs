//! Commits may have been lost: another era begins.

use std::sync::Arc;
use std::time::Duration;

use leadergroup_lock::monotonic;
use sqlx::Executor as _;
use tokio::time::sleep;

use crate::process::{Answer, Client};
use crate::proxy::{Backend, Fault};
use crate::rules::{Outcome, follows, late, wrong};
use crate::scenarios::until::{heartbeats_until, held_until, said_lost_until, tried_until};
use crate::stage::Stage;

pub(super) async fn a_new_era(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter, first) = stage.holder_and_waiter().await?;
    holder.kill().await;
    sleep(ttl / 2).await;
    stage.sql("select leadergroup.begin_era()").await?;
    match waiter.answer_within(ttl.mul_f64(3.5) + slack).await? {
        Some(Answer::Granted(second)) => follows(second, first),
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

/// A failover loses a grant whose answer arrives while the client compares its keys with the table.
pub(super) async fn a_grant_of_the_era_before(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    client.take("j").await?;
    client.proxy.arm_at("acquire(", Fault::Late, 0);
    client.send("lock k 600000").await?;
    let granted = "select exists (select from leadergroup.lock where key = 'k' and holder_uid is not null)";
    if !stage.becomes_true(granted, ttl + slack).await? {
        return late(31, "it called no `acquire`");
    }
    let mut admin = stage.admin().await?;
    admin
        .execute(
            "update leadergroup.lock set holder_uid = null, holder_namespace = null, holder_name = null,
                    session = null, grant_id = null where key = 'k';
             select leadergroup.begin_era();",
        )
        .await?;
    admin.execute("begin; lock table leadergroup.lock in access exclusive mode").await?;
    let compares = format!(
        "select exists (select from pg_stat_activity where usename = '{}' and wait_event_type = 'Lock')",
        client.who
    );
    if !stage.becomes_true(&compares, ttl + slack).await? {
        return late(15, "an era began, and it did not compare its keys with the table");
    }
    client.proxy.let_answers_through();
    // A client that believes in the grant answers now.
    let early = client.answer_within(ttl / 4).await?;
    admin.execute("rollback").await?;
    if let Some(Answer::Granted(_)) = early {
        // If it answers `yes` for too long, the record shows it.
        held_until(&mut client, "k", monotonic() + ttl * 2).await?;
        return Ok(());
    }
    match client.answer_within(ttl * 5 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => late(16, format!("after a grant of the era before it did not ask again: {answer:?}")),
    }
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

/// The rows are put back as they were after the session's first heartbeat. The database's history is the same.
pub(super) async fn old_files(stage: &mut Stage) -> Outcome {
    put_back(stage, "update leadergroup.session set beat = 1 where id =").await
}

/// The rows are put back as they were before the session was registered.
pub(super) async fn files_from_before_the_session(stage: &mut Stage) -> Outcome {
    put_back(stage, "delete from leadergroup.session where id =").await
}

/// A client holds a key. Then the database loses the grant, and heartbeats of the session.
async fn put_back(stage: &mut Stage, session_is_put_back: &str) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    let first = client.take("k").await?;
    if !heartbeats_until(stage, &client, 3, monotonic() + ttl * 2 + slack).await? {
        return late(6, "it sends no heartbeats");
    }
    let session = stage.session(&client).await?;
    stage
        .sql(&format!(
            "begin;
             update leadergroup.lock set holder_uid = null, holder_namespace = null, holder_name = null,
                    session = null, grant_id = null where key = 'k';
             {session_is_put_back} '{session}';
             commit"
        ))
        .await?;
    let lost = monotonic();
    // If it answers `yes` for too long, the record shows it.
    if held_until(&mut client, "k", lost + ttl * 2).await? {
        return Ok(());
    }
    if !began_an_era(stage, &client, lost + ttl + slack).await? {
        return late(34, "the database counted fewer heartbeats than before, and it did not begin an era");
    }
    if !said_lost_until(&client, "k", first, lost + ttl * 2 + slack).await {
        return late(4, "the database lost its grant, and it did not say that it lost the key");
    }
    match tried_until(&mut client, "k", monotonic() + ttl * 4 + slack).await? {
        Some(second) => follows(second, first),
        None => late(18, "it began an era, and did not get a free key in it"),
    }
}

/// Waits until this client has called `commits_were_lost`, or until this time on the clock.
async fn began_an_era(stage: &Stage, client: &Client, end: Duration) -> Outcome<bool> {
    let called = format!(
        "select exists (select from conform.event where what = 'commits_were_lost' and verdict = 'true'
         and who = '{}')",
        client.who
    );
    Ok(stage.becomes_true(&called, end.saturating_sub(monotonic())).await?)
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
        Some(Answer::Granted(second)) => follows(second, token),
        answer => late(18, format!("a standby was promoted; the waiter answered {answer:?}")),
    }
}
