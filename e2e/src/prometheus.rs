//! A Prometheus server on the host, with data of its own that end with it, and its HTTP API.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::machine::wait_until;

/// Time for the server to start on a busy machine.
const READY: Duration = Duration::from_mins(1);
/// Time limit of one question.
const ANSWER: Duration = Duration::from_secs(30);

/// A running server. It ends when this value is dropped, and with this process.
#[derive(Debug)]
pub struct Prometheus {
    address: String,
    folder: TempDir,
    process: Child,
}

/// One series of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The labels, with the name if the expression keeps it.
    pub labels: BTreeMap<String, String>,
    /// The values: one at a moment, or those of a range.
    pub values: Vec<f64>,
}

impl Prometheus {
    /// Starts the server with the contents of its configuration file and of a file of rules.
    pub async fn start(mut config: Value, rules: &Value) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        fs::write(path("rules.json"), rules.to_string())?;
        config["rule_files"] = Value::from(vec![path("rules.json").display().to_string()]);
        // JSON is YAML, too.
        fs::write(path("prometheus.json"), config.to_string())?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = fs::File::create(path("log"))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "prometheus"])
            .arg(format!("--config.file={}", path("prometheus.json").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .current_dir(folder.path())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start Prometheus; run: make prerequisites")?;
        let mut server = Self { address, folder, process };
        wait_until("Prometheus to be ready", READY, async || {
            if let Some(status) = server.process.try_wait()? {
                bail!("Prometheus ended ({status}): {}", server.log());
            }
            Ok(server.fetch("/-/ready").await.is_ok())
        })
        .await?;
        Ok(server)
    }

    /// What an expression gives now.
    pub async fn query(&self, expression: &str) -> Result<Vec<Series>> {
        let data = self.ask(&format!("/api/v1/query?query={}", escaped(expression))).await;
        series(&data.with_context(|| expression.to_owned())?)
    }

    /// What an expression gave, second by second, since a moment: seconds since 1970.
    pub async fn query_since(&self, expression: &str, from: f64) -> Result<Vec<Series>> {
        let until = jiff::Timestamp::now().as_millisecond();
        let query = escaped(expression);
        let path = format!("/api/v1/query_range?query={query}&start={from}&end={}&step=1", until / 1000);
        series(&self.ask(&path).await.with_context(|| expression.to_owned())?)
    }

    /// The values that a label has in the series of a selector.
    pub async fn label_values(&self, label: &str, selector: &str) -> Result<Vec<String>> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", escaped(selector));
        Ok(serde_json::from_value(self.ask(&path).await?)?)
    }

    /// The field `data` of an answer of the API.
    pub async fn ask(&self, path: &str) -> Result<Value> {
        let answer = tokio::time::timeout(ANSWER, self.fetch(path)).await;
        let answer = answer.with_context(|| format!("Prometheus does not answer: {}", self.log()))??;
        let mut answer: Value = serde_json::from_str(&answer)?;
        ensure!(answer["status"] == "success", "Prometheus refuses {path}: {}", answer["error"]);
        Ok(answer["data"].take())
    }

    async fn fetch(&self, path: &str) -> Result<String> {
        let stream = TcpStream::connect(&self.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the response's body.
        tokio::spawn(connection);
        let request = Request::get(path).header("host", &self.address).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        // An expression that is refused has an answer in JSON.
        ensure!(status.is_success() || body.starts_with('{'), "Prometheus answered {status}: {body}");
        Ok(body)
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

fn series(data: &Value) -> Result<Vec<Series>> {
    let found = data["result"].as_array().context("the answer has no series")?.iter();
    let one = |series: &Value| {
        let points = match &series["values"] {
            Value::Array(points) => points.clone(),
            _ => vec![series["value"].clone()],
        };
        let value = |point: &Value| point[1].as_str()?.parse().ok();
        let values = points.iter().map(value).collect::<Option<Vec<f64>>>();
        Ok(Series {
            labels: serde_json::from_value(series["metric"].clone())?,
            values: values.with_context(|| format!("no numbers: {series}"))?,
        })
    };
    found.map(one).collect()
}

/// A text as a value in a URL.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() -> Result<()> {
        let data = serde_json::json!({ "resultType": "vector", "result": [
            { "metric": { "pod": "a" }, "value": [1, "NaN"] },
            { "metric": {}, "values": [[1, "2"], [2, "+Inf"]] },
        ] });
        let [one, other] = &series(&data)?[..] else { bail!("not two") };
        assert!(one.labels["pod"] == "a" && one.values[0].is_nan(), "{one:?}");
        assert_eq!(other.values, [2.0, f64::INFINITY]);
        assert!(series(&serde_json::json!({ "result": [{ "metric": {}, "value": [1, "x"] }] })).is_err());
        Ok(())
    }

    #[test]
    fn an_expression_is_escaped() {
        assert_eq!(escaped("sum(a_b{c=\".*\"}) > 0"), "sum%28a_b%7Bc%3D%22.%2A%22%7D%29%20%3E%200");
    }
}
