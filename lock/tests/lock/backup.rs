//! The commands of docs/operations.md that make a backup and restore it, as they are printed there.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Released, Store};
use tempfile::TempDir;

use crate::cast::{TOKEN_JUMP, key};
use crate::postgres::{DEADLINE, Server};

/// The role and the database of the chart.
const NAME: &str = "leadergroup";
const PASSWORD: &str = "the-password-of-the-chart";
const BEGIN_ERA: &str = "echo 'SELECT leadergroup.begin_era();'";

/// In place of kubectl: it notes its arguments, and what it would run in the pod it runs here.
const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >>kubectl.log
for argument; do
    shift
    [ "$argument" != -- ] || exec "$@"
done
"#;

/// The blocks of commands in the section: those that make a backup, and those that restore it.
fn printed() -> [String; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("\n### Backup and restore\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let blocks =
        section.split("```sh\n").skip(1).map(|block| block.split_once("```\n").unwrap().0.to_owned());
    blocks.collect::<Vec<_>>().try_into().expect("two blocks of commands")
}

/// A server like the chart's, and a person with a shell.
struct Site {
    server: Server,
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let server = Server::start(&[]);
        server.psql(&format!("create role {NAME} login password '{PASSWORD}'"));
        server.psql(&format!("create database {NAME} owner {NAME}"));
        let folder = tempfile::tempdir().unwrap();
        let kubectl = folder.path().join("kubectl");
        std::fs::write(&kubectl, KUBECTL).unwrap();
        std::fs::set_permissions(&kubectl, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { server, folder }
    }

    fn store(&self) -> Store {
        let url = format!("postgres://{NAME}:{PASSWORD}@127.0.0.1:{}/{NAME}", self.server.port());
        Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() }).unwrap()
    }

    /// Types the commands, and returns what kubectl was asked for.
    fn shell(&self, commands: &str) -> Vec<String> {
        let path = std::env::var("PATH").unwrap();
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", commands])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", self.folder.path().display()))
            .env("PGHOST", "127.0.0.1")
            .env("PGPORT", self.server.port().to_string())
            .env("PGPASSWORD", PASSWORD)
            .output()
            .unwrap();
        assert!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
        let log = self.folder.path().join("kubectl.log");
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(log).unwrap();
        text.lines().map(|line| line.trim_start_matches("--namespace leadergroup ").to_owned()).collect()
    }

    /// A program starts, holds the key for a moment, `times` times, and ends: the tokens that it got.
    async fn program(&self, times: usize) -> Vec<i64> {
        let config = ClientConfig {
            ttl: Duration::from_secs(1),
            retry_interval: Duration::from_millis(100),
            ..ClientConfig::default()
        };
        let store = self.store();
        store.migrate().await.unwrap();
        let client = Client::connect(store, config).await.unwrap();
        let mut tokens = Vec::new();
        for _ in 0..times {
            let guard = client.lock(&key("job"), DEADLINE).await.unwrap();
            tokens.push(guard.token().get());
            assert_eq!(guard.release().await.unwrap(), Released::Done);
        }
        client.shutdown().await.unwrap();
        tokens
    }

    /// Makes a backup, gives tokens that it does not have, and restores it: the tokens given before, and the next one.
    async fn restored(&self, restore: &str, dropped: bool) -> (Vec<i64>, i64) {
        let mut given = self.program(3).await;
        let [backup, _] = printed();
        let asked = self.shell(&backup);
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].starts_with("exec leadergroup-postgresql-0 -- pg_dump "), "{asked:?}");
        given.extend(self.program(2).await);
        assert_eq!(given, [1, 2, 3, 4, 5]);
        if dropped {
            self.server.database_called(NAME).sql("drop schema leadergroup cascade").await;
        }
        let asked = self.shell(restore);
        let verbs: Vec<_> = asked.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(verbs, ["scale", "wait", "exec", "scale"], "the operator is stopped meanwhile");
        (given, self.program(1).await[0])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_restore_gives_no_token_twice() {
    let [_, restore] = printed();
    for dropped in [false, true] {
        let (given, next) = Box::pin(Site::new().restored(&restore, dropped)).await;
        assert!(!given.contains(&next), "{next} was given before: {given:?}");
        // The backup had token 3.
        assert!(next > 3 + TOKEN_JUMP, "{next}");
    }
}

/// So the test above would notice if it was not in the commands.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_era_a_restore_gives_a_token_twice() {
    let [_, restore] = printed();
    let bare = restore.replace(BEGIN_ERA, "true");
    assert_ne!(bare, restore);
    let (given, next) = Box::pin(Site::new().restored(&bare, true)).await;
    assert!(given.contains(&next), "{next} was not given before: {given:?}");
}
