//! Connections break, with and without the answer.

use leadergroup_lock::monotonic;

use crate::process::Answer;
use crate::proxy::Fault;
use crate::rules::{Outcome, late};
use crate::scenarios::until::{heartbeats_until, held_until};
use crate::stage::Stage;

pub(super) async fn lost_answers(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let mut client = stage.client().await?;
    for (key, fault) in [("k", Fault::AnswerLost), ("l", Fault::RequestLost), ("m", Fault::Cut)] {
        client.proxy.arm_at("acquire(", fault, 0);
        client.send(&format!("lock {key} 600000")).await?;
        let answer = client.answer_within(ttl * 3 + slack).await?;
        if !matches!(answer, Some(Answer::Granted(_))) {
            return late(31, format!("{fault:?} at `acquire`: it answered {answer:?}"));
        }
        client.proxy.arm_at("release(", fault, 0);
        let released = client.release(key).await?;
        if !released {
            return late(25, format!("{fault:?} at `release`: it did not answer `released`"));
        }
        client.proxy.disarm();
    }
    Ok(())
}

pub(super) async fn closed_connections(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter, _) = stage.holder_and_waiter().await?;
    for _ in 0..3 {
        stage.terminate(&holder).await?;
        stage.terminate(&waiter).await?;
        if !held_until(&mut holder, "k", monotonic() + ttl / 2).await? {
            return late(30, "it lost a key because its connections were closed");
        }
    }
    if !held_until(&mut holder, "k", monotonic() + ttl).await? {
        return late(30, "it lost a key because its connections had been closed");
    }
    if !holder.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    match waiter.answer_within(ttl * 2 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => {
            late(30, format!("the connections of a waiting client were closed; it answered {answer:?}"))
        }
    }
}

pub(super) async fn a_restart(stage: &mut Stage) -> Outcome {
    let (ttl, slack) = (stage.ttl(), stage.slack());
    let (mut holder, mut waiter, _) = stage.holder_and_waiter().await?;
    if !heartbeats_until(stage, &holder, 2, monotonic() + ttl + slack).await? {
        return late(6, "it sends no heartbeats");
    }
    let begin = monotonic();
    stage.server.kill()?;
    stage.server.launch()?;
    // On a slow machine the lease ends meanwhile.
    if monotonic() < begin + ttl / 2 && !held_until(&mut holder, "k", monotonic() + ttl).await? {
        return late(30, "it lost a key because the database was restarted");
    }
    if holder.held("k").await?.is_some() && !holder.release("k").await? {
        return late(25, "a key that it held was not released");
    }
    match waiter.answer_within(ttl * 4 + slack).await? {
        Some(Answer::Granted(_)) => Ok(()),
        answer => {
            late(30, format!("the database was restarted under a waiting client; it answered {answer:?}"))
        }
    }
}
