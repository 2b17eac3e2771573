//! The metrics of the process, under the standard names of Prometheus clients.

use std::{
    fmt, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

/// Reads memory, CPU time and file descriptors at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    started: Duration,
}

impl ProcessCollector {
    /// Create this at the start of the process: its creation is reported as the start time.
    pub(super) fn new() -> Self {
        Self { started: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        let started = self.started.as_secs_f64();
        gauge("process_start_time", "When the process started", Some(&Unit::Seconds), started)?;
        if let Some(bytes) = resident_bytes() {
            gauge("process_resident_memory", "Memory in use", Some(&Unit::Bytes), bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // Without the descriptor of this directory.
            let open = u32::try_from(open.count().saturating_sub(1)).unwrap_or(u32::MAX);
            gauge("process_open_fds", "Open file descriptors", None, open.into())?;
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            gauge("process_max_fds", "Maximum number of open file descriptors", None, limit.into())?;
        }
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = Duration::new(cpu.tv_sec.unsigned_abs(), u32::try_from(cpu.tv_nsec).unwrap_or(0));
        let cpu = ConstCounter::new(cpu.as_secs_f64());
        let (name, help) = ("process_cpu", "CPU time used");
        cpu.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), cpu.metric_type())?)
    }
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u32 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(f64::from(kibibytes) * 1024.0)
}
