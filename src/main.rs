//! The `leadergroup` program: reads the command line and the settings, and turns signals into a request to stop.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use leadergroup::cli::{
    Cli, Command, ExecArgs, InstallationArgs, LockArgs, LockCommand, UninstallArgs, agent, crd_yaml, exec,
    explain, guard, ready, start, uninstall,
};
use leadergroup::config::{Settings, SettingsArgs, in_settings};
use leadergroup::telemetry::{end_on_panic, init_logs};
use leadergroup_lock::ClientConfig;
use tikv_jemalloc_ctl::background_thread;
use tikv_jemallocator::Jemalloc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The C library's allocator keeps most of the memory of a burst of changes. This one gives it back.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The command line or the settings are invalid.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut status = 0;
    match perform(Cli::parse().command, &mut status) {
        Ok(()) => ExitCode::from(status),
        Err(Failure::Usage(problem)) => {
            eprintln!("leadergroup: {}", problem.replace('\n', "\nleadergroup: "));
            ExitCode::from(EXIT_USAGE)
        }
        Err(Failure::Run(error)) => {
            eprintln!("leadergroup: {}", in_settings(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Performs a command. `status` is the exit status of one that succeeds.
fn perform(command: Command, status: &mut u8) -> Result<(), Failure> {
    match command {
        Command::Crd => {
            print!("{}", crd_yaml());
            Ok(())
        }
        Command::Version => {
            println!("leadergroup {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Command::Agent(args) => {
            agent(&args).map_err(anyhow::Error::from).and_then(|text| print_out(&text)).map_err(Failure::Run)
        }
        Command::Migrate(args) => with_settings(args.settings, |settings| block_on(migrate(settings))),
        Command::Exec(args) => with_settings(args.settings.clone(), |settings| {
            *status = block_on(run_under_lock(settings, args))?;
            Ok(())
        }),
        // These two commands read no settings and start no runtime: the guardian runs as long as the command.
        Command::Start(args) => {
            *status = start(&args);
            Ok(())
        }
        Command::Guard(args) => {
            *status = guard(&args);
            Ok(())
        }
        Command::Lock(LockArgs { command: LockCommand::Alone(command) }) => block_on(async {
            let answer = command.run().await;
            *status = answer.status;
            print_out(&answer.text)
        })
        .map_err(Failure::Run),
        Command::Lock(args) => with_settings(args.command.settings().unwrap_or_default(), |settings| {
            *status = block_on(lock(settings, args.command))?;
            Ok(())
        }),
        Command::Explain(args) => with_database_or_not(args.settings.clone(), |settings| {
            block_on(async {
                let answer = explain(&args, &settings).await?;
                print_out(&answer.text)?;
                *status = answer.status;
                Ok(())
            })
        })
        .and_then(|result| result.map_err(Failure::Run)),
        Command::Uninstall(args) => block_on(let_go(args)).map_err(Failure::Run),
        Command::Ready(args) => block_on(wait_for(args)).map_err(Failure::Run),
        Command::Run(args) if args.print_config => with_settings(args.settings, |settings| {
            print!("{settings}");
            Ok(())
        }),
        Command::Run(args) => with_database_or_not(args.settings, |settings| block_on(run(settings)))
            .and_then(|result| result.map_err(Failure::Run)),
    }
}

/// Runs the operator until a signal ends it.
async fn run(settings: Settings) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let signals = tokio::spawn(stop_on_signal(shutdown.clone())?);
    let result = operate(settings, shutdown).await;
    signals.abort();
    result
}

/// Why the program fails.
enum Failure {
    Usage(String),
    Run(anyhow::Error),
}

fn with_settings(
    args: SettingsArgs,
    command: impl FnOnce(Settings) -> anyhow::Result<()>,
) -> Result<(), Failure> {
    with_database_or_not(args, |settings| match &settings.database_problem {
        Some(problem) => Err(Failure::Usage(problem.to_string())),
        None => command(settings).map_err(Failure::Run),
    })?
}

/// Also accepts an invalid database URL from the environment or a file: the operator runs and reports it.
fn with_database_or_not<T>(args: SettingsArgs, command: impl FnOnce(Settings) -> T) -> Result<T, Failure> {
    args.load().map(command).map_err(|errors| Failure::Usage(errors.to_string()))
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("the runtime cannot be started: check the limits of threads and file descriptors")?
        .block_on(work)
}

/// Runs a replica until `shutdown`.
async fn operate(settings: Settings, shutdown: CancellationToken) -> anyhow::Result<()> {
    init_logs(settings.log.format, &settings.log.filter)?;
    end_on_panic();
    // Only here: the commands that start another program must not change what it inherits, and a thread would.
    if let Err(error) = background_thread::write(true) {
        tracing::warn!(%error, "unused memory is returned late: the allocator has no background threads");
    }
    Ok(leadergroup::operator::run(settings, shutdown).await?)
}

async fn migrate(settings: Settings) -> anyhow::Result<()> {
    let store = settings.store()?;
    store.migrate().await?;
    println!("the tables are up to date");
    Ok(())
}

async fn run_under_lock(settings: Settings, args: ExecArgs) -> anyhow::Result<u8> {
    let config = ClientConfig {
        name: settings.replica.clone(),
        ttl: settings.ttl,
        retry_interval: settings.retry_interval,
        reason: "leadergroup exec".to_owned(),
        lock_delay: args.lock_delay.map_or(Duration::ZERO, |delay| delay.0),
        max_hold: args.max_hold.map(|max| max.0),
        reentrant: false,
        heartbeat_thread: true,
        confirm_death: !args.no_confirm_death,
    };
    Ok(exec(&args, settings.store()?, config).await?)
}

async fn lock(settings: Settings, command: LockCommand) -> anyhow::Result<u8> {
    let answer = command.run(&settings.store()?).await?;
    print_out(&answer.text)?;
    Ok(answer.status)
}

/// Prints a text. It is no error if the reader closes the pipe early.
fn print_out(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

async fn cluster() -> anyhow::Result<kube::Client> {
    let client = kube::Client::try_default().await;
    client.context("no access to a cluster: run this in a pod with a service account, or set KUBECONFIG")
}

async fn wait_for(args: InstallationArgs) -> anyhow::Result<()> {
    print_out(&format!("{}\n", ready(cluster().await?, &args).await?))
}

async fn let_go(args: UninstallArgs) -> anyhow::Result<()> {
    let groups = uninstall(cluster().await?, &args).await?;
    println!("the operator is stopped, and its finalizer was removed from {groups} groups");
    Ok(())
}

/// Listens for SIGTERM and SIGINT. The first signal requests an orderly shutdown, which hands the groups over. A
/// second signal ends the process at once; other replicas then take over the groups after this replica's ttl.
fn stop_on_signal(shutdown: CancellationToken) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        for exit in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if exit {
                eprintln!("leadergroup: second signal: exiting at once");
                std::process::exit(1);
            }
            shutdown.cancel();
        }
    })
}
