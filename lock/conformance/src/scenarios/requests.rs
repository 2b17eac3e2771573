//! Answers that a request can get beside the key.

use std::time::Duration;

use leadergroup_lock::monotonic;
use tokio::time::sleep;

use crate::audit::GRAIN;
use crate::process::Answer;
use crate::proxy::Fault;
use crate::rules::{Outcome, late, wrong};
use crate::scenarios::until::held_until;
use crate::stage::Stage;

/// The last holder asked for a delay, and was marked dead.
pub(super) async fn a_delay(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let delay = ttl;
    let (ttl_ms, delay_ms) = (ttl.as_millis(), delay.as_millis());
    stage
        .sql(&format!(
            "do $$
             declare
                 own constant uuid := gen_random_uuid();
             begin
                 perform leadergroup_real.register(own, 'gone', {ttl_ms});
                 perform leadergroup_real.acquire(own, jsonb_build_array(jsonb_build_object(
                     'key', 'k', 'grant_id', gen_random_uuid(), 'uid', 'u', 'namespace', 'n', 'name', 'gone',
                     'reason', 'r', 'wait', false, 'delay_ms', {delay_ms})));
             end $$;
             select leadergroup_real.mark_dead(array[id], array[beat]) from leadergroup.session where name = 'gone'"
        ))
        .await?;
    let mut client = stage.client().await?;
    client.send("lock k 600000").await?;
    let Some(Answer::Granted(_)) = client.answer_within(delay + ttl * 2 + slack).await? else {
        return late(21, "the last holder's delay is over, and it did not get the key");
    };
    let events = stage.events().await?;
    let delayed = events.iter().find(|event| event.verdict.as_deref() == Some("delayed"));
    let granted = events.iter().rev().find(|event| event.what == "grant");
    let (Some(delayed), Some(granted)) = (delayed, granted) else {
        return wrong(21, "it was granted the key without an answer `delayed`");
    };
    let waited = granted.at().saturating_sub(delayed.at());
    if waited + GRAIN < delay {
        return wrong(21, format!("it waited out a delay of {delay:?} in {waited:?}"));
    }
    Ok(())
}

/// A call of a request is lost, and the wait ends without the key.
pub(super) async fn a_request_given_up(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter) = (stage.client().await?, stage.client().await?);
    holder.take("k").await?;
    waiter.proxy.arm_at("acquire(", Fault::AnswerLost, 0);
    waiter.send("lock k 100").await?;
    let answer = waiter.answer(ttl * 2 + slack).await?;
    if answer != Answer::Refused || !waiter.proxy.disarm() {
        return late(22, format!("its wait ended without the key, and it answered {answer:?}"));
    }
    // The second one comes when the lost call is void, and `statement_timeout` has passed.
    let twice = format!(
        "select exists (
             select from conform.event as first
             join conform.event as second on second.grant_id = first.grant_id and second.at_ms > first.at_ms + 1000
             where first.what = 'give_up' and second.what = 'give_up' and first.who = '{0}' and second.who = '{0}'
         ) or exists (select from conform.event where what = 'close' and who = '{0}')",
        waiter.who
    );
    if !stage.becomes_true(&twice, Duration::from_mins(1)).await? {
        return late(22, "a call of a request was lost, and it gave the request up only once");
    }
    Ok(())
}

/// A client whose calls of `give_up` fail may end its session: after it has told its program of the keys that it loses.
pub(super) async fn no_answer_to_a_give_up(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut other, mut client) = (stage.client().await?, stage.client().await?);
    other.take("k").await?;
    let token = client.take("l").await?;
    stage.forge("give_up").await?;
    client.send("lock k 100").await?;
    // It may end its session later.
    client.answer_within(ttl * 2 + slack).await?;
    let ends = format!(
        "select exists (select from conform.event where what = 'close' and who = '{0}' and verdict = 'true')",
        client.who
    );
    let ended = stage.becomes_true(&ends, ttl * 2 + slack).await?;
    stage.be_honest().await?;
    if !ended {
        return Ok(());
    }
    let events = stage.events().await?;
    let closed = events.iter().find(|event| event.what == "close" && event.who == client.who);
    let told = client.said_lost("l", token);
    match (told, closed) {
        (Some(told), Some(closed)) if told <= closed.at() => Ok(()),
        (told, closed) => {
            let seen = closed.map(crate::audit::Event::at);
            late(4, format!("it closed its session at {seen:?} and said at {told:?} that it lost a key"))
        }
    }
}

pub(super) async fn an_unknown_verdict(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    stage.forge("verdict").await?;
    client.send("lock k 600000").await?;
    if let Some(answer) = client.answer_within(ttl).await? {
        return late(23, format!("to a verdict that does not exist yet it answered {answer:?}"));
    }
    stage.be_honest().await?;
    match client.answer_within(ttl * 2 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => {
            late(23, format!("after a verdict that does not exist yet it did not ask again: {answer:?}"))
        }
    }
}

pub(super) async fn a_newer_schema(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    client.take("k").await?;
    // In the table itself: a client that happens to lose its session now may read it there before it registers another
    // one. If it does not, the first heartbeat of that one tells it.
    stage.sql("update leadergroup.schema_version set works_with = 1000000").await?;
    let end = monotonic() + ttl + slack;
    if held_until(&mut client, "k", end).await? {
        return late(33, "the schema is too new for it, and it still holds the key");
    }
    // A client that lost the key for another reason may not have sent its next heartbeat yet: it may take another key,
    // or be between two sessions. So it has to refuse until that heartbeat must have been sent (R6).
    let mut since = monotonic();
    while monotonic() < since + ttl / 3 {
        let asked = monotonic();
        if client.try_lock("l").await?.is_some() {
            if asked >= end {
                return wrong(33, "the schema is too new for it, and it takes another key");
            }
            client.release("l").await?;
            since = monotonic();
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
