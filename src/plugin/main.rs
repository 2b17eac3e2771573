//! The `kubectl-leadergroup` program. kubectl runs it as `kubectl leadergroup`.

use std::process::ExitCode;

use clap::Parser as _;
use leadergroup::plugin::{CommandLine, Kind, run};

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("the runtime cannot be started: {error}")),
    };
    match runtime.block_on(run(&line)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) if failure.kind == Kind::NoReader => ExitCode::SUCCESS,
        Err(failure) => failed(&line.access.with_cluster(&failure.to_string())),
    }
}

/// Prints what went wrong, and in a second line what to do.
fn failed(text: &str) -> ExitCode {
    eprintln!("kubectl leadergroup: {}", text.replace('\n', "\n  -> "));
    ExitCode::FAILURE
}
