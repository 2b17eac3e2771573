//! Redis and NATS, each as one server with its data on a volume.

use std::rc::Rc;

use anyhow::{Result, ensure};
use leadergroup_e2e::scenario::{STARTED, Scenario, Stage};

use super::{Example, answers, exec};
use crate::change::Change;

const REDIS: &str = include_str!("../../../../examples/more/agent-redis.yaml");
const NATS: &str = include_str!("../../../../examples/more/agent-nats.yaml");

pub(crate) async fn redis(stage: &Rc<Stage>, name: &str, changes: &[Change]) -> Result<()> {
    let example = Example::new("redis", REDIS)?;
    Scenario::play(stage, name, example.workload(), async |s| {
        let mut written = 0;
        example
            .changes(s, changes, async |s, active| {
                answers(s, &active.pod, &["redis-cli", "ping"], "PONG").await?;
                let stored = exec(s, &active.pod, &["redis-cli", "llen", "entries"]).await?;
                ensure!(stored.trim() == written.to_string(), "{stored} of {written} entries are there");
                exec(s, &active.pod, &["redis-cli", "rpush", "entries", &active.pod]).await?;
                written += 1;
                Ok(())
            })
            .await?;
        // A node may have been lost.
        s.stage.operator.ready(STARTED).await?;
        s.note("Redis had all entries after each change");
        Ok(())
    })
    .await
}

pub(crate) async fn nats(stage: &Rc<Stage>) -> Result<()> {
    let example = Example::new("nats", NATS)?;
    Scenario::play(stage, "example-nats", example.workload(), async |s| {
        let mut written = 0;
        example
            .changes(s, &Change::EXAMPLES, async |s, active| {
                if written == 0 {
                    let stream = r#"{"name":"ORDERS","subjects":["orders"]}"#;
                    ask(s, &active.pod, "$JS.API.STREAM.CREATE.ORDERS", stream, "\"did_create\":true")
                        .await?;
                }
                let stored = format!("\"messages\":{written},");
                ask(s, &active.pod, "$JS.API.STREAM.INFO.ORDERS", "", &stored).await?;
                ask(s, &active.pod, "orders", &active.pod, "\"stream\":\"ORDERS\"").await?;
                written += 1;
                Ok(())
            })
            .await?;
        s.note("NATS had all messages after each change");
        Ok(())
    })
    .await
}

/// Sends a request to the server in a pod until the answer contains a text. A server that is starting refuses the
/// connection, so that a request is carried out once.
async fn ask(s: &Scenario, pod: &str, subject: &str, text: &str, answer: &str) -> Result<()> {
    let length = text.len();
    let script = format!(
        "(printf 'CONNECT {{\"verbose\":false}}\\r\\nSUB answer 1\\r\\n'; \
         printf 'PUB %s answer {length}\\r\\n%s\\r\\n' '{subject}' '{text}'; sleep 1) | nc 127.0.0.1 4222"
    );
    answers(s, pod, &["sh", "-c", &script], answer).await
}
