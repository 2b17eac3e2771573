//! The history of the clients as a file, for checkers that know nothing of the rules: what each client was asked, what
//! it answered, and when. `docs/conformance.md` describes the format.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::process::{Answer, Line};

/// The file, and how many runs of scenarios are in it.
#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<(File, u32)>,
}

impl Recorder {
    /// Begins an empty file.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { state: Mutex::new((file, 0)) })
    }

    /// Adds all lines of a run of a scenario.
    pub(crate) fn write(&self, scenario: &str, lines: &[Line]) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        state.1 += 1;
        let run = format!("{} {scenario}", state.1);
        let text: String = lines.iter().map(|line| format!("{}\n", record(&run, line))).collect();
        state.0.write_all(text.as_bytes()).context("cannot write the history")
    }
}

/// One line of the file.
fn record(run: &str, line: &Line) -> Value {
    let word = |place: usize| line.command.get(place).map(String::as_str);
    let mut record = Map::new();
    let mut put = |name: &str, value: Value| record.insert(name.to_owned(), value);
    put("run", json!(run));
    let client: Option<u32> = line.who.rsplit('_').next().and_then(|number| number.parse().ok());
    put("client", json!(client));
    put("operation", json!(word(0).unwrap_or("lost")));
    match word(0) {
        Some("open") => drop(put("ttl_ms", json!(word(3).and_then(|ttl| ttl.parse::<u64>().ok())))),
        Some("close") => {}
        _ => drop(put("key", json!(word(1)))),
    }
    put("invoke", json!(nanoseconds(line.asked)));
    let (outcome, token) = outcome(&line.answer);
    put("outcome", json!(outcome));
    if outcome != "unknown" {
        put("return", json!(nanoseconds(line.at)));
    }
    if let Answer::Lost(key, _) = &line.answer {
        put("key", json!(key));
    }
    // Of a write, the command has the token.
    if let Some(token) = token.or_else(|| word(2).filter(|_| word(0) == Some("write"))?.parse().ok()) {
        put("token", json!(token));
    }
    Value::Object(record)
}

/// The outcome as a word, and the token that it names.
fn outcome(answer: &Answer) -> (&'static str, Option<i64>) {
    match answer {
        Answer::Ok => ("ok", None),
        Answer::Granted(token) => ("granted", Some(*token)),
        Answer::Refused => ("refused", None),
        Answer::Yes(token) => ("yes", Some(*token)),
        Answer::No => ("no", None),
        Answer::Released => ("released", None),
        Answer::Lost(_, token) => ("lost", Some(*token)),
        // It may have taken effect, or may do so later.
        Answer::Error(_) | Answer::Gone | Answer::Unanswered | Answer::Unknown(_) => ("unknown", None),
    }
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
