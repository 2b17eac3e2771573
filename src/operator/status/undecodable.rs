//! Reporting that this version of the program cannot decode a group.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use crate::{
    api::Unreadable,
    operator::status,
    routing::{GroupRef, Router},
};

/// The pauses between attempts to write the status.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16), Duration::from_secs(64)];

/// Reports in the status of a group that it cannot be decoded, unless it says so already.
pub(in crate::operator) async fn report(router: &Router, unreadable: &Unreadable, at: Timestamp) {
    let Some(status) = status::of_undecodable(unreadable, at) else { return };
    let Some(group) = GroupRef::of(&unreadable.remains(None)) else { return };
    for pause in PAUSES {
        match router.report(&group, &status, None).await {
            Ok(_) => return,
            Err(error) => {
                let name = format!("{}/{}", group.namespace, group.name);
                tracing::warn!(group = name, %error, "could not write the status");
            }
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{api::Sighting, operator::executor::fake_api::FakeApi};

    const STATUS: &str = "/apis/leadergroup.dev/v1alpha1/namespaces/shop/leadergroups/web/status";

    fn object() -> Value {
        json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "5" },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "deletionPolicy": "Explode" },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_repeated_until_it_is_written_and_not_for_ever() {
        let sighting: Sighting = serde_json::from_value(object()).expect("metadata");
        let unreadable = sighting.0.expect_err("there is no such deletionPolicy");
        for (answer, attempts) in [(object(), 1), (json!(500), PAUSES.len())] {
            let api = FakeApi::with(vec![(STATUS, answer)]);
            report(&api.context.router, &unreadable, Timestamp::now()).await;
            assert_eq!(api.asked(), vec![format!("PATCH {STATUS}"); attempts]);
        }
    }
}
