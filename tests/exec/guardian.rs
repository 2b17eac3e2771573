//! The command and its process group end with `leadergroup exec`, even if it is killed. Apart from that, the guardian
//! has no effect on the command.

use std::fs::read_to_string;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::postgres::{self, Database, eventually};
use super::{OBEDIENT, PATIENT, Running, exec, exec_with, held, pid_in, run, status, suspended};

/// With this ttl, no test loses its lock.
const LONG: [&str; 2] = ["--ttl", "10m"];

/// A command with a child. Only SIGKILL ends them. Their process ids are written to the file PIDS.
const FAMILY: &str =
    "trap '' TERM HUP INT QUIT; echo $$ > PIDS; sleep 600 & echo $! >> PIDS; echo ready; wait";

/// Whether a process has ended. It may still be in the process table as a zombie.
pub(super) fn ended(process: Pid) -> bool {
    stat(process.as_raw_nonzero().get()).is_none_or(|(state, _)| state == "Z")
}

/// The state of a process, and its parent.
fn stat(process: i32) -> Option<(String, i32)> {
    let stat = read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields after the name, which is in brackets and may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn processes() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn children(of: &Running) -> Vec<Pid> {
    let parent = i32::try_from(of.child.id()).unwrap();
    let is_child = |process: &i32| stat(*process).is_some_and(|(state, its)| its == parent && state != "Z");
    processes().filter(is_child).filter_map(Pid::from_raw).collect()
}

fn guardian(running: &Running) -> Pid {
    let command_line = |process: &Pid| read_to_string(format!("/proc/{}/cmdline", process.as_raw_nonzero()));
    let is_guardian = |process: &Pid| command_line(process).is_ok_and(|line| line.contains("__guard"));
    children(running).into_iter().find(is_guardian).unwrap()
}

/// Whether there is a process that inherited the URL of this test's database.
fn any_process_of(database: &Database) -> bool {
    let url = database.url();
    let mentions = |environment: Vec<u8>| environment.windows(url.len()).any(|part| part == url.as_bytes());
    processes().any(|process| std::fs::read(format!("/proc/{process}/environ")).is_ok_and(mentions))
}

fn kill(process: Pid) {
    kill_process(process, Signal::KILL).unwrap();
}

fn lines_of_pids(file: &Path) -> Vec<Pid> {
    let text = read_to_string(file).unwrap();
    text.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn nothing_outlives_a_program_that_is_killed() {
    let (database, _store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let script = FAMILY.replace("PIDS", &pids.display().to_string());
    let free = "update leadergroup.session set dead = true, dead_at = now()";

    let mut running = Running::start(&database, &LONG, &script);
    running.child.kill().unwrap();
    eventually("all has ended", async || !any_process_of(&database)).await;
    for process in lines_of_pids(&pids) {
        assert!(ended(process));
    }

    database.sql(free).await;
    let mut running = Running::start(&database, &LONG, &script);
    running.signal(Signal::TSTP);
    let command = lines_of_pids(&pids)[0];
    eventually("the command is suspended", async || suspended(command)).await;
    running.child.kill().unwrap();
    eventually("all that was suspended has ended", async || !any_process_of(&database)).await;

    database.sql(free).await;
    let script = format!("echo $$ > {}; sleep 600 & echo ready", pids.display());
    let mut running = Running::start(&database, &LONG, &script);
    let command = pid_in(&pids);
    eventually("the command has ended", async || ended(command)).await;
    running.signal(Signal::STOP);
    running.child.kill().unwrap();
    eventually("all that it left running has ended", async || !any_process_of(&database)).await;
}

/// The program is killed as soon as it has one child, or two: the process that becomes the command, and the guardian.
#[tokio::test]
async fn nothing_outlives_a_program_that_is_killed_while_it_starts_the_command() {
    let (database, _store) = postgres::migrated().await;
    for attempt in 0..10 {
        let mut child = exec(&database, &LONG, "sleep 600 & sleep 600").spawn().unwrap();
        let own = i32::try_from(child.id()).unwrap();
        let count =
            || processes().filter(|process| stat(*process).is_some_and(|(_, its)| its == own)).count();
        while count() < 1 + attempt % 2 {
            assert!(child.try_wait().unwrap().is_none());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("all has ended", async || !any_process_of(&database)).await;
        database.sql("update leadergroup.session set dead = true, dead_at = now()").await;
    }
}

#[tokio::test]
async fn a_command_whose_guardian_is_killed_ends() {
    let (database, store) = postgres::migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let family = FAMILY.replace("PIDS", &pids.display().to_string());
    let left_behind = format!("echo $$ > {}; sleep 600 & echo ready; exit 0", pids.display());
    for script in [family, left_behind] {
        let running = Running::start(&database, &LONG, &script);
        let command = lines_of_pids(&pids)[0];
        let is_left_behind = script.ends_with("exit 0");
        eventually("it is under way", async || ended(command) == is_left_behind).await;
        kill(guardian(&running));
        let output = running.child.wait_with_output().unwrap();
        assert_eq!(status(&output), 128 + 9, "{script}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("the guardian of the command was killed"), "{errors}");
        assert!(!held(&store).await);
        eventually("all has ended", async || !any_process_of(&database)).await;
    }
}

/// A service manager sends the signal to all processes of the service. The command may need time to shut down.
#[tokio::test]
async fn the_guardian_is_ended_by_no_signal_that_is_meant_for_the_command() {
    let (database, _store) = postgres::migrated().await;
    let script = format!("trap 'echo USR1' USR1; {OBEDIENT}");
    let mut running = Running::start(&database, &LONG, &script);
    let guardian = guardian(&running);
    let signals = [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::TSTP,
        Signal::CONT,
        Signal::TERM,
    ];
    for signal in signals {
        kill_process(guardian, signal).unwrap();
    }
    running.signal(Signal::USR1);
    assert_eq!(running.line(), "USR1\n");
    assert!(!ended(guardian) && !suspended(guardian));
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (Some(7), "ended\n".to_owned()));
    eventually("the guardian has ended", async || !any_process_of(&database)).await;
}

#[tokio::test]
async fn a_command_ends_even_if_the_guardian_is_killed_together_with_the_program() {
    let (database, _store) = postgres::migrated().await;
    let mut running = Running::start(&database, &LONG, "echo ready; exec sleep 600");
    // Stop `exec`, so that it cannot kill the command itself.
    running.signal(Signal::STOP);
    kill(guardian(&running));
    running.child.kill().unwrap();
    eventually("the command has ended", async || !any_process_of(&database)).await;
}

#[tokio::test]
async fn the_command_s_status_is_passed_on_unchanged() {
    let (database, _store) = postgres::migrated().await;
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 126", 126),
        ("exit 127", 127),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -SEGV $$", 128 + 11),
    ] {
        let output = run(&database, &[], script);
        assert_eq!(status(&output), expected, "{script}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_run_is_named_and_the_lock_freed() {
    let (database, store) = postgres::migrated().await;
    for (program, why) in [
        ("/no/such/program", "No such file or directory"),
        ("no-such-program", "No such file or directory"),
        ("/etc/passwd", "Permission denied"),
        ("/etc", "Permission denied"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
        let options = ["exec", "--key", "a", "--replica", "test"];
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LEADERGROUP_DATABASE_URL", database.url());
        let output = command.args(options).args(PATIENT).args(["--", program]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(status(&output), 1);
        let expected = format!("{program:?} cannot be run: {why}");
        assert!(errors.contains(&expected) && errors.lines().count() == 1, "{errors}");
        assert!(!held(&store).await);
        eventually("its guardian has ended", async || !any_process_of(&database)).await;
    }
}

/// Open files, signal handling and standard input are unchanged, and the command leads its process group.
#[tokio::test]
async fn the_guardian_changes_nothing_for_the_command() {
    let (database, _store) = postgres::migrated().await;
    let files = "ls /proc/$$/fd; trap | grep -v EXIT; grep Sig /proc/$$/status | grep -v SigQ";
    // The second as under nohup(1) and in the background of a script.
    for signals in ["--default-signal", "--ignore-signal=HUP,INT,QUIT"] {
        let plain =
            Command::new("/usr/bin/env").args([signals, "sh", "-c", files]).stdin(Stdio::null()).output();
        let under_lock = exec_with(signals, &database, &[], files).output().unwrap();
        let plain = String::from_utf8(plain.unwrap().stdout).unwrap();
        assert_eq!(String::from_utf8(under_lock.stdout).unwrap(), plain, "{signals}");
    }

    let leader = run(&database, &[], "test $$ = $(cut -d ' ' -f 5 /proc/$$/stat)");
    assert_eq!(status(&leader), 0, "{leader:?}");

    let mut reader =
        exec(&database, &[], "read line; echo \"$line\"; cat").stdin(Stdio::piped()).spawn().unwrap();
    reader.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    assert_eq!(reader.wait_with_output().unwrap().stdout, b"one\ntwo\n");
}

#[tokio::test]
async fn the_command_s_arguments_are_passed_on_unchanged() {
    let (database, _store) = postgres::migrated().await;
    let odd = std::ffi::OsString::from_vec(vec![b'\xff', b'=']);
    let mut command = exec(&database, &[], "printf '%s,' \"$@\"");
    command.args(["sh", "--", "--key", "-h", "", "a b"]).arg(odd);
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"--,--key,-h,,a b,\xff=,", "{output:?}");
}

#[test]
fn the_help_shows_no_command_that_only_the_program_itself_uses() {
    let output = Command::new(env!("CARGO_BIN_EXE_leadergroup")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("exec") && !help.contains("__"), "{help}");
}
