//! CPU time, memory and connections of processes, from the kernel, and a record of them for each second.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// The unit of times in `/proc/*/stat`; Linux gives it to programs as a hundredth of a second on all common platforms.
const TICK: Duration = Duration::from_millis(10);
const MEGABYTE: f64 = 1e6;
const INTERVAL: Duration = Duration::from_secs(1);
/// Connections are counted this seldom, in samples: the kernel's table also has each probe's connection of the last
/// minute, two hundred thousand lines.
const CONNECTIONS_EVERY: u32 = 20;

/// The CPU time of a process so far, all threads together.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name, which may hold anything: the fields from the third on. 14 and 15 are user and system time.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = fields.iter().skip(11).take(2).map(|field| field.parse::<u32>()).sum::<Result<u32, _>>()?;
    Ok(TICK * ticks)
}

/// The memory that a process has now, and the most that it ever had, in megabytes.
pub(crate) fn memory(pid: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
        Ok(kibibytes.with_context(|| format!("no {name} of process {pid}"))? * 1024.0 / MEGABYTE)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// How many connections a process has to this port.
fn connections(pid: u32, port: u16) -> Result<usize> {
    let mut own = HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        // A file that was closed in the meantime does not count.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let socket = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        own.extend(socket.map(str::to_owned));
    }
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    let port = format!(":{port:04X}");
    let to_port = table.lines().filter(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Remote address, state (1: established), inode.
        matches!(fields[..], [_, _, remote, "01", _, _, _, _, _, inode, ..]
            if remote.ends_with(&port) && own.contains(inode))
    });
    Ok(to_port.count())
}

/// The usage of one process in one second.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Seconds since the record began.
    pub(crate) at: f64,
    /// Share of one core.
    pub(crate) cores: f64,
    /// Megabytes.
    pub(crate) memory: f64,
    /// To the API server; 0 if they were not counted.
    pub(crate) connections: usize,
}

/// A record of the usage of each process, by name.
#[derive(Clone)]
pub(crate) struct Record(Arc<Mutex<Recorded>>);

struct Recorded {
    processes: BTreeMap<&'static str, u32>,
    samples: BTreeMap<&'static str, Vec<Sample>>,
}

impl Record {
    /// `port` is the API server's.
    pub(crate) fn start(port: u16) -> Self {
        let recorded = Recorded { processes: BTreeMap::new(), samples: BTreeMap::new() };
        let record = Self(Arc::new(Mutex::new(recorded)));
        let task = record.clone();
        // Not on the runtime: it reads files.
        thread::spawn(move || task.run(port));
        record
    }

    /// Records this process under the name from now on.
    pub(crate) fn of(&self, name: &'static str, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).processes.insert(name, pid);
    }

    pub(crate) fn samples(&self, name: &str) -> Vec<Sample> {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.samples.get(name).cloned().unwrap_or_default()
    }

    fn run(self, port: u16) {
        let begin = Instant::now();
        let mut before: BTreeMap<&'static str, (u32, Instant, Duration)> = BTreeMap::new();
        for number in 0.. {
            thread::sleep(INTERVAL);
            let processes = self.0.lock().unwrap_or_else(PoisonError::into_inner).processes.clone();
            for (name, pid) in processes {
                let now = Instant::now();
                // The process may have just ended.
                let (Ok(cpu), Ok((memory, _))) = (cpu(pid), memory(pid)) else { continue };
                let is_counted = number % CONNECTIONS_EVERY == 0;
                let connections = if is_counted { connections(pid, port).unwrap_or_default() } else { 0 };
                if let Some((same, then, used)) = before.insert(name, (pid, now, cpu))
                    && same == pid
                {
                    let cores = cpu.saturating_sub(used).as_secs_f64() / (now - then).as_secs_f64();
                    let at = begin.elapsed().as_secs_f64();
                    let sample = Sample { at, cores, memory, connections };
                    let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    recorded.samples.entry(name).or_default().push(sample);
                }
            }
        }
    }
}
