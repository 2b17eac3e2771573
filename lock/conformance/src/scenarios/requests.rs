//! Answers that a request can get beside the key.

use leadergroup_lock::monotonic;

use crate::process::Answer;
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
    if waited + crate::audit::GRAIN < delay {
        return wrong(21, format!("it waited out a delay of {delay:?} in {waited:?}"));
    }
    Ok(())
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
    stage.forge("works_with").await?;
    if held_until(&mut client, "k", monotonic() + ttl + slack).await? {
        return late(33, "the schema is too new for it, and it still holds the key");
    }
    if client.try_lock("l").await?.is_some() {
        return wrong(33, "the schema is too new for it, and it takes another key");
    }
    Ok(())
}
