//! The clients of this repository keep all rules, and each broken client is named by the rule that it breaks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use futures::StreamExt as _;
use futures::stream;
use leadergroup_lock_conformance::{Bench, Report, Rule, Settings};
use tokio::sync::OnceCell;

const RUST: &str = env!("CARGO_BIN_EXE_leadergroup-lock-rust-client");

const PYTHON: &[&str] =
    &["/usr/bin/python3", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/lock.py")];

const BROKEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken.py");

/// The clients that each break one rule, and the scenario that shows it.
const RULES: [(&str, &str); 35] = [
    ("P1", "one after the other"),
    ("R1", "an outage"),
    ("R2", "a clock that is set"),
    ("R3", "an outage"),
    ("R4", "an outage"),
    ("R5", "a late grant"),
    ("R6", "one after the other"),
    ("R7", "one after the other"),
    ("R8", "a session that is marked dead"),
    ("R9", "a session that is marked dead"),
    ("R10", "a killed holder"),
    ("R11", "an outage for all"),
    ("R12", "a new era"),
    ("R13", "a killed holder"),
    ("R14", "a single try"),
    ("R15", "a lost grant"),
    ("R16", "an answer from an old primary"),
    ("R17", "a new era"),
    ("R18", "a new era"),
    ("R19", "a queue"),
    ("R20", "a queue"),
    ("R21", "a delay"),
    ("R22", "a queue"),
    ("R23", "an unknown verdict"),
    ("R24", "one after the other"),
    ("R25", "one after the other"),
    ("R26", "a queue"),
    ("R27", "one after the other"),
    ("R28", "one after the other"),
    ("R29", "one after the other"),
    ("R30", "closed connections"),
    ("R31", "lost answers"),
    ("R32", "one after the other"),
    ("R33", "a newer schema"),
    ("R34", "old files"),
];

/// Runs a client, or several in turn. All tests share one server.
async fn conform(clients: &[&[&str]], only: &[&str], attempts: u32) -> Report {
    static BENCH: OnceCell<Bench> = OnceCell::const_new();
    let bench = BENCH.get_or_init(async || Bench::start().await.unwrap()).await;
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let clients = clients.iter().map(|client| owned(client)).collect();
    let only = owned(only);
    let settings = Settings { clients, only, attempts, trace: true, ..Settings::default() };
    bench.conform(settings).await.unwrap()
}

async fn keeps_all_rules(clients: &[&[&str]]) {
    keeps_the_rules_of(clients, &[]).await;
}

async fn keeps_the_rules_of(clients: &[&[&str]], scenarios: &[&str]) {
    let report = conform(clients, scenarios, 3).await;
    assert!(report.is_clean() && report.skipped.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_client_keeps_all_rules() {
    keeps_all_rules(&[&[RUST]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_keeps_all_rules() {
    keeps_all_rules(&[PYTHON]).await;
}

/// Builds the client in Go, once.
fn go() -> String {
    static BUILT: OnceLock<()> = OnceLock::new();
    let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/go-client");
    BUILT.get_or_init(|| {
        let mut build = Command::new("go");
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/go"));
        let output = build.args(["build", "-o", program, "."]).output().expect("the tests need Go");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    program.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_go_client_keeps_all_rules() {
    let go = tokio::task::spawn_blocking(go).await.unwrap();
    keeps_all_rules(&[&[&go]]).await;
}

/// Compiles the client in TypeScript, once. Beside its copy are the packages that it needs.
fn typescript() -> String {
    static BUILT: OnceLock<()> = OnceLock::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/typescript");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("typescript-client");
    BUILT.get_or_init(|| {
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["lock.ts", "package.json", "package-lock.json", "tsconfig.json"] {
            std::fs::copy(sources.join(name), folder.join(name)).unwrap();
        }
        for arguments in [&["ci", "--prefer-offline", "--no-audit", "--no-fund"][..], &["run", "build"]] {
            let npm = Command::new("npm")
                .current_dir(&folder)
                .args(arguments)
                .output()
                .expect("the tests need npm");
            assert!(npm.status.success(), "{npm:?}");
        }
    });
    folder.join("dist/lock.js").display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_client_keeps_all_rules() {
    let typescript = tokio::task::spawn_blocking(typescript).await.unwrap();
    keeps_all_rules(&[&["node", &typescript]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_in_several_languages_share_keys() {
    let go = tokio::task::spawn_blocking(go).await.unwrap();
    let scenarios = ["one after the other", "a queue", "a killed holder", "a paused holder", "a new era"];
    let typescript = tokio::task::spawn_blocking(typescript).await.unwrap();
    keeps_the_rules_of(&[PYTHON, &[RUST], &[&go], &["node", &typescript]], &scenarios).await;
}

/// What a checker of histories needs: who did what, and when, with which token; also what was not answered.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_says_what_each_client_did() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let clients = vec![vec![RUST.to_owned()]];
    let only = vec!["a paused holder".to_owned(), "an unknown verdict".to_owned()];
    let history = Some(file.path().to_owned());
    let settings = Settings { clients, only, history, ..Settings::default() };
    let report = Bench::start().await.unwrap().conform(settings).await.unwrap();
    assert!(report.is_clean(), "{report}");
    let text = std::fs::read_to_string(file.path()).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let find = |client: u64, operation: &str, outcome: &str| {
        let is_wanted = |line: &&serde_json::Value| {
            let run = line["run"].as_str().unwrap();
            run.ends_with("a paused holder")
                && (&line["client"], &line["operation"], &line["outcome"])
                    == (&client.into(), &operation.into(), &outcome.into())
        };
        lines.iter().find(is_wanted).unwrap_or_else(|| panic!("{client} {operation} {outcome}: {text}"))
    };
    assert_eq!(find(0, "open", "ok")["ttl_ms"], 2000);
    let (first, second) = (find(0, "try", "granted"), find(1, "lock", "granted"));
    assert!(first["token"].as_i64() < second["token"].as_i64() && first["key"] == "k");
    assert!(
        second["invoke"].as_u64() < second["return"].as_u64()
            && first["return"].as_u64() < second["return"].as_u64()
    );
    assert_eq!(find(1, "held", "yes")["token"], second["token"]);
    assert_eq!(find(0, "lost", "lost")["token"], first["token"]);
    assert_eq!(find(1, "release", "released").get("token"), None);
    assert_eq!(find(0, "write", "ok")["token"], first["token"]);
    let refused = find(0, "write", "refused");
    assert!(refused["token"] == first["token"] && refused["return"].as_u64() > first["return"].as_u64());
    // On a busy machine the second holder may release before its first write. The last write comes after its release.
    assert_eq!(find(1, "write", "refused")["token"], second["token"]);
    for line in &lines {
        assert_eq!(line["outcome"] == "unknown", line.get("return").is_none(), "{line}");
    }
}

/// A program that answers nothing but `open`.
#[tokio::test(flavor = "multi_thread")]
async fn the_outcome_of_what_is_not_answered_is_unknown() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let clients = vec![["sh", "-c", "read open; echo ok; read more; sleep 600"].map(str::to_owned).to_vec()];
    let only = vec!["a single try".to_owned()];
    let history = Some(file.path().to_owned());
    let settings = Settings { clients, only, history, attempts: 1, ..Settings::default() };
    let report = Bench::start().await.unwrap().conform(settings).await.unwrap();
    assert_eq!(names(&report), ["P1"]);
    let text = std::fs::read_to_string(file.path()).unwrap();
    let asked: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&asked["operation"], &asked["outcome"]), (&"try".into(), &"unknown".into()), "{text}");
    assert_eq!(asked.get("return"), None);
}

/// The numbers of the rules that were broken.
fn names(report: &Report) -> Vec<String> {
    report.broken.keys().map(Rule::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_client_is_named_by_the_rule_that_it_breaks_and_no_other() {
    let only = std::env::var("ONLY").ok();
    let wanted = RULES.into_iter().filter(|(rule, _)| only.as_ref().is_none_or(|only| only == rule));
    let found: Vec<_> = stream::iter(wanted)
        .map(async |(rule, scenario)| {
            let client = [PYTHON[0], BROKEN, rule];
            let report = conform(&[&client], &[scenario], 1).await;
            if names(&report) == [rule] {
                return (rule, report);
            }
            // The machine may have been too slow.
            (rule, conform(&[&client], &[scenario], 3).await)
        })
        .buffer_unordered(12)
        .collect()
        .await;
    let wrong: Vec<String> = found
        .iter()
        .filter(|(rule, report)| names(report) != [*rule])
        .map(|(rule, report)| format!("the client that breaks {rule}:\n{report}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_rule_has_a_sentence_and_a_client_that_breaks_it() {
    let named: Vec<String> =
        std::iter::once(Rule::LINES).chain(Rule::all()).map(|rule| rule.to_string()).collect();
    assert_eq!(named, RULES.map(|(rule, _)| rule.to_owned()));
    assert!(
        Rule::LINES.sentence().ends_with('.')
            && Rule::all().iter().all(|rule| rule.sentence().ends_with('.'))
    );
}
