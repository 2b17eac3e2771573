//! False failovers: groups with a short ttl whose pods all work, while a compiler keeps every core busy.

use std::{
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use leadergroup_e2e::{
    command::progress,
    history::{History, check},
    scenario::Stage,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    time,
};

use crate::{
    candidate::{Candidate, Kind},
    report::Report,
};

/// The groups: name in the table, namespace, ttl and retryInterval.
const GROUPS: [(&str, &str, Kind); 6] = [
    ("ttl 5 s, retryInterval 1 s", "quiet-5s", of("5s", "1s")),
    ("ttl 1 s, retryInterval 200 ms", "quiet-1s", of("1s", "200ms")),
    ("ttl 1 s, retryInterval 200 ms", "quiet-1s-more", of("1s", "200ms")),
    ("ttl 500 ms, retryInterval 100 ms", "quiet-500ms", of("500ms", "100ms")),
    ("ttl 500 ms, retryInterval 50 ms", "quiet-500ms-50ms", of("500ms", "50ms")),
    ("ttl 500 ms, retryInterval 50 ms", "quiet-500ms-more", of("500ms", "50ms")),
];

const fn of(ttl: &'static str, retry_interval: &'static str) -> Kind {
    Kind::Ours { managed: false, ttl, retry_interval }
}

/// Counts the changes of holder in this time. Each is a false failover.
pub(crate) async fn run(stage: &Rc<Stage>, lasting: Duration) -> Result<()> {
    let groups = try_join_all(GROUPS.into_iter().map(|group| Candidate::set_up(stage, group))).await?;
    let recorder = stage.recorder.as_ref().context("nothing records")?;
    let begin = recorder.revision().await?;
    let mut compiler = Compiler::start()?;
    let end = Instant::now() + lasting;
    while Instant::now() < end {
        time::sleep(Duration::from_secs(10)).await;
        compiler.keep_busy()?;
    }
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let builds = compiler.stop();
    progress(&format!("builds begun: {builds}; load at the end: {}", load.trim()));
    let history = recorder.history().await?;
    let table = Report::table(
        &format!("False failovers in {} minutes under a compiler", lasting.as_secs() / 60),
        &[("group", -34), ("false failovers", 15)],
    );
    let mut all = 0;
    for group in &groups {
        let changes = changes(&history, &group.scenario.namespace, begin);
        table.row(&[group.name.to_owned(), changes.to_string()]);
        all += changes;
    }
    let checked = check(&history);
    println!("quiet: {all} false failovers · at most {} active at every revision", checked.most_active);
    ensure!(checked.violations.is_empty(), "violations: {:?}", checked.violations);
    Ok(())
}

fn changes(history: &History, namespace: &str, since: i64) -> usize {
    let checked = check(&history.of_namespaces(&[namespace]));
    checked.promotions.iter().filter(|promotion| promotion.revision > since).count()
}

/// Builds this workspace again and again.
struct Compiler {
    target: tempfile::TempDir,
    build: Child,
    begun: usize,
}

impl Compiler {
    fn start() -> Result<Self> {
        let target = tempfile::tempdir().context("a directory for the builds")?;
        let build = build(target.path().join("1"))?;
        Ok(Self { target, build, begun: 1 })
    }

    /// Begins the next build if the last one has ended.
    fn keep_busy(&mut self) -> Result<()> {
        let Some(status) = self.build.try_wait()? else { return Ok(()) };
        ensure!(status.success(), "the build failed: {status}");
        let _ = std::fs::remove_dir_all(self.target.path().join(self.begun.to_string()));
        self.begun += 1;
        self.build = build(self.target.path().join(self.begun.to_string()))?;
        Ok(())
    }

    fn stop(self) -> usize {
        let pid = self.build.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // With the compilers that it has started.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.begun
    }
}

fn build(target: PathBuf) -> Result<Child> {
    Command::new("cargo")
        .args(["build", "--workspace", "--quiet", "--target-dir"])
        .arg(target)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .process_group(0)
        .spawn()
        .context("starting cargo")
}
