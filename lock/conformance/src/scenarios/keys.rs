//! Nothing fails: keys are taken, released and handed on.

use std::time::Duration;

use leadergroup_lock::monotonic;

use crate::process::{Answer, Client};
use crate::rules::{Outcome, late, wrong};
use crate::scenarios::until::held_until;
use crate::stage::Stage;

/// The token before the first one here: the next one is odd and above 2^53, so no floating-point number has its value.
const TOKEN: i64 = (1 << 53) + 2;

pub(super) async fn one_after_the_other(stage: &mut Stage) -> Outcome {
    let ttl = stage.ttl();
    stage
        .sql(&format!(
            "insert into leadergroup.lock (key, group_id, token) values ('k', leadergroup.programs(), {TOKEN})"
        ))
        .await?;
    let (mut first, mut second) = (stage.client().await?, stage.client().await?);
    let token = first.take("k").await?;
    if second.try_lock("k").await?.is_some() {
        return wrong(1, "two clients were granted the key at a time");
    }
    let begin = monotonic();
    if !held_until(&mut first, "k", begin + ttl * 2).await? {
        return late(30, "it lost a key although nothing had failed");
    }
    let sent = stage
        .number(&format!(
            "select count(*) from conform.event where what = 'beat' and who = '{}' and at_ms >= {}",
            first.who,
            begin.as_millis()
        ))
        .await?;
    if sent < 5 {
        return late(6, format!("{sent} heartbeats in {:?} with a ttl of {ttl:?}", ttl * 2));
    }
    for _ in 0..2 {
        if !first.release("k").await? {
            return late(25, "a key that it held was not released");
        }
        if first.take("k").await? <= token {
            return wrong(24, "a later term had a smaller token");
        }
    }
    if !first.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    let next = second.take("k").await?;
    if next <= token {
        return wrong(24, format!("the token {next} of a later term is not above {token}"));
    }
    second.close().await?;
    let free = "select not exists (select from leadergroup.lock as l join leadergroup.session as s on s.id = l.session
                where l.holder_uid is not null and not s.dead)";
    if !stage.becomes_true(free, stage.slack()).await? {
        return late(25, "after `close` its session still held the key");
    }
    first.close().await
}

pub(super) async fn a_queue(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut holder = stage.client().await?;
    let (mut short, mut next, mut last) =
        (stage.client().await?, stage.client().await?, stage.client().await?);
    let token = holder.take("k").await?;
    short.send(&format!("lock k {}", ttl.as_millis())).await?;
    next.send("lock k 600000").await?;
    if !stage.wait_for_waiters("k", 2).await? {
        return late(20, "two clients wait for the key, and do not have two places in its queue");
    }
    last.send("lock k 600000").await?;
    if !stage.wait_for_waiters("k", 3).await? {
        return late(20, "three clients wait for the key, and do not have three places in its queue");
    }
    if short.answer(ttl).await? != Answer::Refused {
        return wrong(24, "a wait ended with the key, while another client held it");
    }
    leaves_the_queue(stage, &short).await?;
    // From here on, only those who ask learn that the key is theirs.
    stage.forge("wake").await?;
    if !holder.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    let Some(Answer::Granted(second)) = next.answer_within(ttl + slack).await? else {
        return late(
            20,
            format!("the next in the queue did not learn within {:?} that it has the key", ttl + slack),
        );
    };
    if last.answer_within(Duration::ZERO).await?.is_some() {
        return late(20, "the last in the queue was answered before the key was released");
    }
    if second <= token {
        return wrong(24, format!("the token {second} of a later term is not above {token}"));
    }
    wakes_the_next(stage, token).await?;
    stage.be_honest().await?;
    if !next.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    match last.answer_within(ttl + slack).await? {
        Some(Answer::Granted(third)) if third > second => Ok(()),
        answer => late(20, format!("the last in the queue should have the key; it answered {answer:?}")),
    }
}

async fn leaves_the_queue(stage: &Stage, client: &Client) -> Outcome {
    let gone = format!(
        "select not exists (
             select from leadergroup.waiter as w join conform.event as e on e.session = w.session
             join leadergroup.session as s on s.id = w.session
             where e.what = 'register' and e.who = '{}' and not s.dead
         )",
        client.who
    );
    if stage.becomes_true(&gone, stage.slack()).await? {
        return Ok(());
    }
    late(22, "after a wait that ended without the key, the request was still in the queue")
}

async fn wakes_the_next(stage: &Stage, token: i64) -> Outcome {
    let woken = format!(
        "select exists (
             select from conform.event as r join conform.event as w on w.grant_id = r.grant_id and w.who = r.who
             where r.what = 'release' and r.token = {token} and w.what = 'wake'
         )"
    );
    if stage.becomes_true(&woken, stage.slack()).await? {
        return Ok(());
    }
    late(26, "a release named the next holder, and no `wake` followed")
}
