//! Reporting that this version of the program cannot decode a group.

use std::time::Duration;

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
pub(in crate::operator) async fn report(router: &Router, unreadable: &Unreadable) {
    let Some(status) = status::of_undecodable(unreadable) else { return };
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
