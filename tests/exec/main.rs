//! Tests of `leadergroup exec` with a real PostgreSQL: several processes, signals, and lost locks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guardian;
#[path = "../../lock/tests/postgres/mod.rs"]
mod postgres;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use leadergroup_lock::{Changed, Key, Store, Token};
use postgres::{Database, Server, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// Shorter times than the defaults, so that the tests are fast.
const QUICK: [&str; 6] = ["--ttl", "2s", "--retry-interval", "200ms", "--database-statement-timeout", "1s"];

/// Times that are long enough on a busy machine.
const PATIENT: [&str; 4] = ["--ttl", "40s", "--database-statement-timeout", "20s"];

/// Ignores SIGTERM.
const STUBBORN: &str = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
const OBEDIENT: &str = "trap 'echo ended; exit 7' TERM; echo ready; while :; do sleep 0.05; done";

fn exec(database: &Database, options: &[&str], script: &str) -> Command {
    exec_with("--default-signal", database, options, script)
}

/// The same with an option of env(1) for signals, because some may be ignored in the test process.
fn exec_with(signals: &str, database: &Database, options: &[&str], script: &str) -> Command {
    // The program would refuse the tests' own variables as misspelt settings.
    let mut command = Command::new("/usr/bin/env");
    command
        .args([signals, env!("CARGO_BIN_EXE_leadergroup")])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LEADERGROUP_DATABASE_URL", database.url())
        .args(["exec", "--key", "a", "--replica", "test"])
        .args(if options.contains(&"--ttl") { &[][..] } else { &PATIENT[..] })
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(database: &Database, options: &[&str], script: &str) -> Output {
    exec(database, options, script).output().unwrap()
}

/// A command that has printed that it is running.
struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(database: &Database, options: &[&str], script: &str) -> Self {
        let mut child = exec(database, options, script).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, lines };
        let line = running.line();
        assert!(line == "ready\n", "it says {line:?}: {:?}", running.child.wait_with_output().unwrap());
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit status and the remaining output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

async fn held(store: &Store) -> bool {
    let lock = store.info(&Key::new("a").unwrap()).await.unwrap();
    lock.is_some_and(|lock| lock.holder.is_some() && lock.session.is_some_and(|session| !session.dead))
}

#[tokio::test]
async fn the_command_gets_key_and_token_and_its_status_is_passed_on() {
    let (database, store) = postgres::migrated().await;
    for token in 1..3 {
        let output = run(&database, &[], "echo $LEADERGROUP_KEY $LEADERGROUP_TOKEN; exit 3");
        assert_eq!(status(&output), 3, "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("a {token}\n"));
        assert!(!held(&store).await, "released at the end");
    }
    assert_eq!(status(&run(&database, &[], "kill -9 $$")), 128 + 9);
    let history = store.history(&Key::new("a").unwrap(), 10).await.unwrap();
    assert_eq!(history[0].term.token, Token::new(3));
    assert_eq!(history[0].term.holder.name, "test");
}

/// The release is slow here. If the session ended in the meantime, the term would not end with a release.
#[tokio::test]
async fn the_lock_is_released_before_the_program_ends() {
    let (database, _store) = postgres::migrated().await;
    database
        .sql(
            "create function leadergroup.slow() returns trigger language plpgsql as
             $$ begin perform pg_sleep(0.5); return new; end $$;
             create trigger slow before update of end_reason on leadergroup.lock
             for each row execute function leadergroup.slow()",
        )
        .await;
    assert_eq!(status(&run(&database, &["--ttl", "30s"], "true")), 0);
    let released = "select count(*) from leadergroup.terms where end_reason = 'released by its holder'";
    assert_eq!(database.number(released).await, 1);
}

#[tokio::test]
async fn a_command_whose_lock_is_taken_away_is_stopped() {
    let (database, store) = postgres::migrated().await;
    let running = Running::start(&database, &["--ttl", "10m", "--retry-interval", "100ms"], OBEDIENT);
    eventually("it holds the lock", async || held(&store).await).await;
    let key = Key::new("a").unwrap();
    assert_eq!(store.force_release(&key, Token::new(1), "stuck").await.unwrap(), Changed::Done);
    assert_eq!(running.end(), (Some(76), "ended\n".to_owned()));
}

/// Between the loss and the end of the command there is no heartbeat, so only the release shows the loss.
#[tokio::test]
async fn a_loss_just_before_the_end_of_the_command_shows_in_the_status() {
    let (database, store) = postgres::migrated().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("end");
    let script = format!("echo ready; until [ -e {} ]; do sleep 0.01; done", file.display());
    let running = Running::start(&database, &["--ttl", "10m", "--retry-interval", "3m"], &script);
    eventually("it holds the lock", async || held(&store).await).await;
    let key = Key::new("a").unwrap();
    assert_eq!(store.force_release(&key, Token::new(1), "stuck").await.unwrap(), Changed::Done);
    std::fs::write(&file, "").unwrap();
    assert_eq!(running.end().0, Some(76));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let (database, store) = postgres::migrated().await;
    let output = Command::new(env!("CARGO_BIN_EXE_leadergroup"))
        .env_clear()
        .env("LEADERGROUP_DATABASE_URL", database.url())
        .args(["exec", "--key", "a", "--replica", "test", "--", "/no/such/program"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("/no/such/program") && errors.lines().count() == 1, "{errors}");
    assert!(!held(&store).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_waits_for_a_held_lock_as_long_as_requested() {
    let (database, _store) = postgres::migrated().await;
    let running = Running::start(&database, &[], OBEDIENT);
    for (wait, why) in
        [("0s", "is not available: others hold it"), ("200ms", "could not be acquired within ")]
    {
        let output = run(&database, &["--wait", wait], "echo never");
        assert_eq!(status(&output), 75, "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout.is_empty() && errors.contains(why) && errors.lines().count() == 1, "{errors}");
    }
    // A waiting program ends on a signal.
    let mut waiting = exec(&database, &[], "echo never").spawn().unwrap();
    let queued = "select count(*) from leadergroup.waiter w join leadergroup.session s on s.id = w.session where not s.dead";
    eventually("it waits", async || database.number(queued).await == 1).await;
    kill_process(Pid::from_child(&waiting), Signal::TERM).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(128 + 15));

    let next = exec(&database, &[], "echo next").spawn().unwrap();
    eventually("the next one waits", async || database.number(queued).await == 1).await;
    running.signal(Signal::TERM);
    assert_eq!(
        running.end(),
        (Some(7), "ended\n".to_owned()),
        "the signal was passed on, and the status, too"
    );
    let next = next.wait_with_output().unwrap();
    assert_eq!((status(&next), next.stdout), (0, b"next\n".to_vec()));
}

#[tokio::test]
async fn the_lock_is_held_until_what_the_command_left_running_has_ended() {
    let (database, store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let script = format!(
        "(until [ -e {} ]; do sleep 0.05; done; echo worked) & echo $$ > {}; echo ready; exit 5",
        path("go").display(),
        path("pid").display()
    );
    let running = Running::start(&database, &["--ttl", "10s"], &script);
    let leader = format!("/proc/{}", pid_in(&path("pid")).as_raw_nonzero());
    eventually("the command has ended", async || !Path::new(&leader).exists()).await;
    assert_eq!(status(&run(&database, &["--wait", "1s"], "true")), 75);
    std::fs::write(path("go"), "").unwrap();
    assert_eq!(running.end(), (Some(5), "worked\n".to_owned()));
    assert!(!held(&store).await);
}

#[tokio::test]
async fn signals_are_passed_on_to_the_command() {
    let (database, store) = postgres::migrated().await;
    let signals = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    let traps = signals.map(|(_, name)| format!("trap 'echo {name}' {name}; ")).concat();
    let mut running = Running::start(&database, &[], &format!("{traps}{OBEDIENT}"));
    for (signal, name) in signals {
        running.signal(signal);
        assert_eq!(running.line(), format!("{name}\n"));
    }
    assert!(held(&store).await);
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (Some(7), "ended\n".to_owned()));
}

/// As with Ctrl-Z. Without heartbeats another program would get the lock, while the command is not finished.
#[tokio::test]
async fn the_command_is_suspended_and_the_lock_kept() {
    let (database, store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    // The script starts nothing in the foreground, because a shell that waits for a child to start is not shown as
    // suspended.
    let script =
        format!("sleep 60 & trap 'echo ended; exit 7' TERM; echo $$ > {}; echo ready; wait", file.display());
    let running = Running::start(&database, &["--ttl", "10s", "--retry-interval", "200ms"], &script);
    let (own, command) = (Pid::from_child(&running.child), pid_in(&file));
    for _ in 0..2 {
        running.signal(Signal::TSTP);
        eventually("the command is suspended", async || suspended(command)).await;
        assert!(!suspended(own));
        let beat = "select (extract(epoch from max(seen)) * 1000000)::bigint from leadergroup.session";
        let before = database.number(beat).await;
        eventually("the heartbeats continue", async || database.number(beat).await > before).await;
        running.signal(Signal::CONT);
        eventually("the command continues", async || !suspended(command)).await;
    }
    running.signal(Signal::TSTP);
    eventually("the command is suspended", async || suspended(command)).await;
    assert!(held(&store).await);
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (Some(7), "ended\n".to_owned()), "a suspended command can be ended");
}

/// The database accepts the connection but does not answer.
#[tokio::test]
async fn a_program_that_waits_for_the_database_can_be_told_to_end() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut waiting = Command::new("/usr/bin/env")
        .args(["--default-signal", env!("CARGO_BIN_EXE_leadergroup")])
        .env_clear()
        .env("LEADERGROUP_DATABASE_URL", format!("postgres://app@{}/locks", silent.local_addr().unwrap()))
        .args(["exec", "--key", "a", "--replica", "test", "--", "true"])
        .spawn()
        .unwrap();
    let _connection = silent.accept().await.unwrap();
    kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(128 + 2));
}

/// Many concurrent processes; each records its start and end.
#[tokio::test]
async fn commands_of_many_processes_never_overlap() {
    let (database, _store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let book = directory.path().join("book");
    let script = format!("echo begin >> {0}; sleep 0.01; echo end >> {0}", book.display());
    // They all connect at the same time, perhaps on a busy machine.
    let all: Vec<Child> = (0..12).map(|_| exec(&database, &PATIENT, &script).spawn().unwrap()).collect();
    for child in all {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(std::fs::read_to_string(&book).unwrap(), "begin\nend\n".repeat(12));
}

#[tokio::test]
async fn a_command_whose_lock_is_lost_is_stopped() {
    let (database, _store) = postgres::migrated().await;
    // Long enough for a clean end on a busy machine; the heartbeats detect the loss soon.
    let quick = ["--ttl", "8s", "--retry-interval", "200ms", "--database-statement-timeout", "4s"];
    let with = |more: &[&'static str]| [&quick, more].concat();
    for (options, script, expected) in [
        (with(&[]), OBEDIENT, "ended\n"),
        (with(&[]), STUBBORN, ""),
        (with(&["--on-lost", "kill"]), OBEDIENT, ""),
        (with(&[]), "(trap '' TERM; echo ready; sleep 60; echo never) &", ""),
        (with(&["--on-lost", "ignore"]), "echo ready; sleep 2; echo went on", "went on\n"),
    ] {
        let running = Running::start(&database, &options, script);
        database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
        assert_eq!(running.end(), (Some(76), expected.to_owned()), "{options:?}");
    }
}

/// No other client marks the session dead. The program itself detects that it was paused for too long, and does not
/// end cleanly then.
#[tokio::test]
async fn what_a_paused_program_holds_goes_to_others_only_after_the_delay() {
    let (database, store) = postgres::migrated().await;
    let options = [&QUICK[..], &["--lock-delay", "1h"]].concat();
    let paused = Running::start(&database, &options, OBEDIENT);
    paused.signal(Signal::STOP);
    let silent = "select count(*) from leadergroup.session where seen < now() - interval '2.5 seconds'";
    eventually("its ttl is over", async || database.number(silent).await == 1).await;
    paused.signal(Signal::CONT);
    let killed = (Some(76), String::new());
    assert_eq!(paused.end(), killed, "the time for a clean end was over, too");
    assert_eq!(database.number("select count(*) from leadergroup.session where not dead").await, 0);
    let refused = run(&database, &["--wait", "0s", "--no-confirm-death"], "true");
    assert_eq!(status(&refused), 75);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("a lock delay of 3600s") && told.contains("s are left"), "{told}");
    let key = Key::new("a").unwrap();
    assert_eq!(store.force_release(&key, Token::new(1), "nothing comes late").await.unwrap(), Changed::Done);
    assert_eq!(status(&run(&database, &["--wait", "0s", "--lock-delay", "1h"], "true")), 0);
    assert_eq!(status(&run(&database, &["--wait", "0s"], "true")), 0, "that one ended cleanly");
}

/// As with jobs that cron starts: each one tries once.
#[tokio::test]
async fn a_program_that_tries_once_sits_the_delay_of_one_that_was_killed_out() {
    let (database, store) = postgres::migrated().await;
    let options = [&QUICK[..], &["--lock-delay", "1s"]].concat();
    let killed = Running::start(&database, &options, OBEDIENT);
    killed.signal(Signal::KILL);
    killed.end();
    database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    assert_eq!(status(&run(&database, &["--wait", "0s"], "true")), 0);
    assert_eq!(store.read(&[Key::new("a").unwrap()]).await.unwrap()[0].token, Token::new(2));
}

/// There is no message about the loss of the lock; the program detects it by its own clock.
#[tokio::test]
async fn without_the_database_the_command_ends_before_others_can_have_the_lock() {
    let server = Server::start(&[]);
    let database = server.database().await;
    database.store().migrate().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let alive = directory.path().join("alive");
    let script =
        format!("trap '' TERM; echo ready; while :; do echo >> {}; sleep 0.05; done", alive.display());
    let running = Running::start(&database, &["--ttl", "5s"], &script);
    server.stop();
    let away = SystemTime::now();
    assert_eq!(running.end().0, Some(76));
    let last_sign = std::fs::metadata(&alive).unwrap().modified().unwrap();
    let survived = last_sign.duration_since(away).unwrap_or_default();
    assert!(survived < Duration::from_secs(5), "it worked for {survived:?} without the lock's database");
}

/// The whole program is stopped for three times the ttl, and then resumes.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_program_finds_its_lock_lost_and_ends_its_command() {
    let (database, store) = postgres::migrated().await;
    let paused = Running::start(&database, &QUICK, STUBBORN);
    paused.signal(Signal::STOP);
    let next = Running::start(&database, &QUICK, OBEDIENT);
    let stopped = Instant::now();
    eventually("three times the ttl", async || stopped.elapsed().as_secs() >= 6).await;
    paused.signal(Signal::CONT);
    assert_eq!(paused.end().0, Some(76));
    assert!(held(&store).await, "the next one still has it");
    next.signal(Signal::TERM);
    assert_eq!(next.end(), (Some(7), "ended\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_s_lock_is_free_after_its_ttl() {
    let (database, _store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let mut running = Running::start(
        &database,
        &QUICK,
        &format!("echo $$ > {}; echo ready; exec sleep 1000", pid.display()),
    );
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    // Long before the command would end by itself.
    let patient = [&QUICK[..], &["--wait", "1m"]].concat();
    let output = run(&database, &patient, "echo $LEADERGROUP_TOKEN");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n");
    assert_eq!(
        database.number("select count(*) from leadergroup.session where dead and not closed").await,
        1
    );
    assert!(guardian::ended(pid_in(&pid)), "the command ended before others could have the lock");
}

fn pid_in(file: &Path) -> Pid {
    Pid::from_raw(std::fs::read_to_string(file).unwrap().trim().parse().unwrap()).unwrap()
}

fn suspended(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    // The fields after the name, which is in brackets and may contain anything.
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}
