//! Runs the programs that set up the test cluster (`ip`, `nft`, `ctr`, ...), each with a time limit and an error that
//! contains the command and its output.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Time limit for a small command. It is generous because the machine may be busy compiling.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Runs a program and returns its standard output.
pub async fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    output(command, LIMIT).await
}

/// Runs a program with `input` on its standard input.
pub async fn run_with_input<S: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = S>,
    input: &str,
) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    finish(command, Some(input), LIMIT).await
}

/// Runs a command and returns its standard output. Fails on a non-zero exit status, a signal, or if it takes longer
/// than `limit` (it is then killed).
pub async fn output(command: Command, limit: Duration) -> Result<String> {
    finish(command, None, limit).await
}

/// The same with `input` on standard input. The input does not appear in errors.
pub async fn output_with_input(command: Command, input: &str, limit: Duration) -> Result<String> {
    finish(command, Some(input), limit).await
}

async fn finish(command: Command, input: Option<&str>, limit: Duration) -> Result<String> {
    let text = {
        let std = command.as_std();
        let words: Vec<_> = std::iter::once(std.get_program()).chain(std.get_args()).collect();
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let mut command = bound_to_us(&command);
    command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot run `{text}`"))?;
    let stdin = child.stdin.take();
    let work = async move {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A program that ends without reading all of its input prints the reason on stderr, which is the better
            // message.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(limit, work)
        .await
        .with_context(|| format!("`{text}` did not end within {} s", limit.as_secs()))?
        .with_context(|| format!("cannot wait for `{text}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{text}` failed ({}): {}", output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The same command, but it is killed with this process. Otherwise it could continue to create objects while they are
/// being removed.
fn bound_to_us(command: &Command) -> Command {
    let command = command.as_std();
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound
}

/// Prints a line of progress to stderr, so that stdout stays usable.
pub fn progress(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
