//! False failovers: groups with a short silenceTimeout whose pods all work, while two builds keep every core busy.

use std::{convert::Infallible, path::Path, rc::Rc, time::Duration};

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

/// The groups: name in the table, namespace, silenceTimeout and interval.
const GROUPS: [(&str, &str, Kind); 6] = [
    ("silenceTimeout 5 s, interval 1 s", "quiet-5s", of("5s", "1s")),
    ("silenceTimeout 2 s, interval 500 ms", "quiet-2s", of("2s", "500ms")),
    ("silenceTimeout 1 s, interval 200 ms", "quiet-1s", of("1s", "200ms")),
    ("silenceTimeout 1 s, interval 200 ms", "quiet-1s-more", of("1s", "200ms")),
    ("silenceTimeout 1 s, interval 100 ms", "quiet-100ms", of("1s", "100ms")),
    ("silenceTimeout 1 s, interval 100 ms", "quiet-100ms-more", of("1s", "100ms")),
];

const fn of(silence_timeout: &'static str, interval: &'static str) -> Kind {
    Kind::Ours { managed: false, silence_timeout, interval, kept: false }
}

/// Counts the changes of holder in this time. Each is a false failover.
pub(crate) async fn run(stage: &Rc<Stage>, lasting: Duration) -> Result<()> {
    let groups = try_join_all(GROUPS.into_iter().map(|group| Candidate::set_up(stage, group))).await?;
    let recorder = stage.recorder.as_ref().context("nothing records")?;
    let begin = recorder.revision().await?;
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    tokio::select! {
        ended = try_join_all(folders.iter().map(|folder| compile(folder.path()))) => drop(ended?),
        () = time::sleep(lasting) => {}
    }
    let load = std::fs::read_to_string("/proc/loadavg")?;
    progress(&format!("load at the end: {}", load.trim()));
    let history = recorder.history().await?;
    let table = Report::table(
        &format!("False failovers in {} minutes beside two builds", lasting.as_secs() / 60),
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
    let promotions = check(&history.of_namespaces(&[namespace])).promotions;
    // A pod that keeps its role under a larger token was not replaced.
    let changes = promotions.windows(2).filter(|pair| pair[0].uid != pair[1].uid);
    changes.filter(|pair| pair[1].revision > since).count()
}

/// Builds this workspace again and again, until it is dropped.
async fn compile(target: &Path) -> Result<Infallible> {
    loop {
        let mut build = Build::start(target)?;
        let status = build.0.wait().await?;
        ensure!(status.success(), "the build failed: {status}");
        tokio::fs::remove_dir_all(target).await?;
    }
}

/// A build, which is killed with the compilers that it has started when this value is dropped.
struct Build(Child);

impl Build {
    fn start(target: &Path) -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["build", "--workspace", "--quiet", "--target-dir"])
            .arg(target)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .process_group(0);
        Ok(Self(cargo.spawn().context("starting cargo")?))
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // It has no id any more if it has ended.
        if let Some(pid) = self.0.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}
