//! The node on which Redis runs is cut off from the network. Redis goes on there without it, until the lease of its
//! agent is over; then the other one starts, with the same data.

use std::rc::Rc;

use anyhow::Result;
use leadergroup_e2e::scenario::Stage;

use super::{load, servers};
use crate::change::Change;

pub(crate) async fn play(stage: &Rc<Stage>) -> Result<()> {
    load(stage).await?;
    servers::redis(stage, "example-redis-node-lost", &[Change::CutOff]).await
}
