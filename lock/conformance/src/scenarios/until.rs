//! Waiting for something that a client does, until a time on the clock.

use std::time::Duration;

use leadergroup_lock::monotonic;
use tokio::time::sleep;

use crate::process::{Client, token};
use crate::rules::Outcome;
use crate::stage::Stage;

/// Asks again whether the client holds the key, until it does not, or until this time on the clock.
pub(super) async fn held_until(client: &mut Client, key: &str, end: Duration) -> Outcome<bool> {
    while client.held(key).await?.is_some() {
        if monotonic() >= end {
            return Ok(true);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// Tries until the key is granted, or until this time on the clock.
pub(super) async fn tried_until(client: &mut Client, key: &str, end: Duration) -> Outcome<Option<i64>> {
    loop {
        client.send(&format!("try {key}")).await?;
        // A single try may observe others for their ttl.
        if let Some(granted) = token(&client.answer(end.saturating_sub(monotonic())).await?) {
            return Ok(Some(granted));
        }
        if monotonic() >= end {
            return Ok(None);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the client has said that it lost the key, or until this time on the clock.
pub(super) async fn said_lost_until(client: &Client, key: &str, token: i64, end: Duration) -> bool {
    while client.said_lost(key, token).is_none() {
        if monotonic() >= end {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

/// Waits until the client has sent this many more heartbeats, or until this time on the clock.
pub(super) async fn heartbeats_until(
    stage: &Stage,
    client: &Client,
    more: i64,
    end: Duration,
) -> Outcome<bool> {
    let count = format!("select count(*) from conform.event where what = 'beat' and who = '{}'", client.who);
    let wanted = stage.number(&count).await? + more;
    let sql = format!("select ({count}) >= {wanted}");
    Ok(stage.becomes_true(&sql, end.saturating_sub(monotonic())).await?)
}
