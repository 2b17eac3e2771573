//! Processes, as the kernel reports them: whether a signal took effect, and what an agent has started.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;

/// The kernel carries a signal out within milliseconds, unless the process is frozen or waits for a disk.
const EFFECTIVE: Duration = Duration::from_secs(2);

/// Whether a process is stopped by a signal.
pub fn is_stopped(pid: Pid) -> bool {
    matches!(state(pid), Some('T' | 't'))
}

/// Whether a process has ended. It may be there until its parent has read its exit status.
pub fn has_ended(pid: Pid) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}

/// The agent's program, wherever it is installed.
const AGENT: &str = "leadergroup-agent";
/// The unit of the times in `/proc/<pid>/stat`, in milliseconds. It is the same on all machines that this runs on.
const TICK: u64 = 10;

/// The time since the machine's start, to a hundredth of a second, as programs read it that write a journal.
pub fn uptime() -> Result<Duration> {
    let text = fs::read_to_string("/proc/uptime").context("reading /proc/uptime")?;
    let seconds = text.split_whitespace().next().context("/proc/uptime is empty")?;
    Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
}

/// A process that has not ended.
struct Living {
    is_agent: bool,
    parent: i32,
    /// Since the machine's start.
    begun: Duration,
}

impl Living {
    fn read(pid: Pid) -> Option<Self> {
        // A process that has ended has no program any more, also before its parent has read its exit status.
        let program = fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            is_agent: program.file_name().is_some_and(|name| name == AGENT),
            parent: fields.get(1)?.parse().ok()?,
            begun: Duration::from_millis(fields.get(19)?.parse::<u64>().ok()? * TICK),
        })
    }
}

/// A process of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfProgram {
    /// Its number.
    pub pid: Pid,
    /// When it began, since the machine's start.
    pub begun: Duration,
    /// Whether the agent has started it. Otherwise one of the program's processes has.
    pub is_first: bool,
}

/// Those of these processes that an agent among them has started, and that these have started. What else runs in a
/// container, such as the command of a `kubectl exec`, is not of the program.
pub fn of_programs(pids: impl IntoIterator<Item = Pid>) -> Vec<OfProgram> {
    let living =
        pids.into_iter().filter_map(|pid| Some((pid.as_raw_nonzero().get(), (pid, Living::read(pid)?))));
    let living: BTreeMap<i32, (Pid, Living)> = living.collect();
    let parent = |one: &Living| living.get(&one.parent).map(|(_, parent)| parent);
    let descends = |one: &Living| {
        // A chain is never longer than the number of processes.
        let mut ancestors = std::iter::successors(parent(one), |one| parent(one)).take(living.len());
        ancestors.any(|ancestor| ancestor.is_agent)
    };
    let programs = living.values().filter(|(_, one)| !one.is_agent && descends(one));
    let found = |(pid, one): &(Pid, Living)| OfProgram {
        pid: *pid,
        begun: one.begun,
        is_first: parent(one).is_some_and(|parent| parent.is_agent),
    };
    programs.map(found).collect()
}

/// The letter in `/proc/<pid>/stat`; `None` if there is no such process.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before it is in parentheses and may contain any character.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits, without giving the thread away, until a fault took effect. `missing` says what has not happened yet.
pub fn took_effect(mut missing: impl FnMut() -> Option<String>) -> Result<()> {
    let started = Instant::now();
    while let Some(what) = missing() {
        if started.elapsed() > EFFECTIVE {
            bail!("the fault did not take place: {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;

    #[test]
    fn a_signal_is_seen_to_take_effect() -> Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let pid = Pid::from_child(&child);
        assert!(!is_stopped(pid) && !has_ended(pid));
        for (signal, reached) in [(Signal::STOP, is_stopped as fn(Pid) -> bool), (Signal::KILL, has_ended)] {
            kill_process(pid, signal)?;
            took_effect(|| (!reached(pid)).then(|| "it runs".to_owned()))?;
        }
        child.wait()?;
        assert!(has_ended(pid) && !is_stopped(pid));
        Ok(())
    }

    #[test]
    fn a_fault_that_does_not_take_place_is_an_error() -> Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let pid = Pid::from_child(&child);
        let error = took_effect(|| (!is_stopped(pid)).then(|| "it runs".to_owned()));
        child.kill()?;
        child.wait()?;
        assert_eq!(error.expect_err("no signal").to_string(), "the fault did not take place: it runs");
        Ok(())
    }

    /// A shell with the agent's name starts `cat`. The shell itself runs in another one.
    #[test]
    fn what_an_agent_has_started_is_of_a_program_and_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let agent = folder.path().join(AGENT);
        fs::copy("/bin/busybox", &agent)?;
        let before = uptime()?;
        let mut shell = Command::new(&agent);
        shell.arg0("sh").args(["-c", "/bin/cat; exit 7"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn()?;
        let (mut input, output) =
            (shell.stdin.take().context("stdin")?, shell.stdout.take().context("stdout")?);
        input.write_all(b"it runs\n")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        assert_eq!(line, "it runs\n");

        let all = fs::read_dir("/proc")?.flatten();
        let all: Vec<Pid> =
            all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect();
        let own = Pid::from_child(&shell);
        let children =
            |pid: Pid| Living::read(pid).is_some_and(|one| one.parent == own.as_raw_nonzero().get());
        let cat = all.iter().copied().find(|pid| children(*pid)).context("no child")?;
        let this = Pid::from_raw(std::process::id().cast_signed());
        let found = of_programs(this.into_iter().chain([own, cat]));
        let [program] = found.as_slice() else { bail!("{found:?}") };
        assert!(program.pid == cat && program.is_first, "{program:?}");
        let precision = Duration::from_millis(2 * TICK);
        assert!(
            program.begun + precision >= before && program.begun <= uptime()?,
            "{program:?} after {before:?}"
        );
        assert_eq!(of_programs([cat]), [], "not without its agent");

        drop(input);
        assert_eq!(shell.wait()?.code(), Some(7));
        assert_eq!(of_programs([own, cat]), []);
        Ok(())
    }
}
