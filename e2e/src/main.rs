//! The command of the test cluster: `leadergroup-e2e build | up | down | status | load | demo | env | fault | page |
//! cloud-native-pg`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use leadergroup_e2e::cleanup;
use leadergroup_e2e::client::CallArgs;
use leadergroup_e2e::cluster::Cluster;
use leadergroup_e2e::command::progress;
use leadergroup_e2e::config::Config;
use leadergroup_e2e::demo;
use leadergroup_e2e::images::{self, Image};
use leadergroup_e2e::machine::wait_until;
use leadergroup_e2e::programs;
use leadergroup_e2e::state::{self, Lock, socket};
use leadergroup_e2e::supervisor::{self, Answer, Request};
use leadergroup_e2e::timeline::{Step, Timeline, page};
use leadergroup_e2e::view::ServeArgs;

/// Time limit for taking a cluster down.
const DOWN_LIMIT: Duration = Duration::from_mins(2);
/// Time limit for nodes to be Ready again.
const HEAL_LIMIT: Duration = Duration::from_mins(2);

/// A real Kubernetes of several nodes on this machine, for tests.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Install missing Debian packages and build the cluster's programs into the cache.
    Build,
    /// Start a cluster that runs until `down`, or use the one that is running.
    Up {
        /// Number of nodes.
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// Load an image of the operator, built from this program, on every node.
        #[arg(long, value_name = "PROGRAM")]
        operator: Option<PathBuf>,
        /// The name of the operator's image.
        #[arg(long, default_value = images::OPERATOR)]
        operator_image: String,
        /// Load an image of the agent, this static program, and one of busybox with it, on every node.
        #[arg(long, value_name = "PROGRAM")]
        agent: Option<PathBuf>,
        /// kube-proxy's minSyncPeriod in milliseconds; 1000 is kube-proxy's default.
        #[arg(long, default_value_t = 1000)]
        proxy_min_sync_period_ms: u64,
    },
    /// Take the cluster down, and remove the remains of a crashed one.
    Down,
    /// Report whether a cluster is running, and list its daemons.
    Status,
    /// Load images from archives, as `docker save` and `podman save` write them, on every node of the running cluster.
    Load {
        /// The archives.
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Run the demo: the node of the active pod loses power. Takes the cluster down at the end, unless KEEP=1 is set.
    Demo,
    /// Print shell commands that configure kubectl for the cluster: `eval "$(leadergroup-e2e env)"`.
    Env,
    /// Build the operator of CloudNativePG (once; several minutes) and install it in the running cluster.
    CloudNativePg,
    /// Inject a fault into the running cluster, or undo it.
    #[command(subcommand)]
    Fault(Fault),
    /// Make a page of a recorded run, such as that of `make random-faults`, and print it.
    Page {
        /// The recorded run. Without it the page has the steps only.
        run: Option<PathBuf>,
        /// Other steps of the same run: a line each, with the fields name, passed or failed, seconds, and a remark,
        /// separated by tabs.
        #[arg(long)]
        steps: Option<PathBuf>,
    },
    /// Call a Service repeatedly, with one line of JSON per call; started by tests in a node's network.
    #[command(hide = true)]
    Call(CallArgs),
    /// Serve and write to PostgreSQL; the program of test pods.
    #[command(hide = true)]
    Serve(ServeArgs),
    /// The process behind a cluster; started by `up`.
    #[command(hide = true)]
    Supervise,
}

#[derive(Subcommand)]
enum Fault {
    /// Power a node off.
    PowerOff { node: String },
    /// Power a node on.
    PowerOn { node: String },
    /// Unplug a node's cable: its pods keep running.
    CutOff { node: String },
    /// Plug in a node's cable again.
    Reconnect { node: String },
    /// Freeze every process of a pod.
    FreezePod { uid: String },
    /// Thaw a frozen pod.
    ThawPod { uid: String },
    /// Kill the processes of a pod's containers.
    KillPod { uid: String },
    /// Drop all traffic between two machines: nodes, `control`, `database`, `host`.
    CutPath { one: String, other: String },
    /// Undo `cut-path`.
    HealPath { one: String, other: String },
    /// Shut PostgreSQL down.
    StopDatabase,
    /// Start PostgreSQL again.
    StartDatabase,
    /// Kill the API server.
    KillApiServer,
    /// Start the API server again.
    StartApiServer,
    /// Undo all faults, and wait until the nodes are Ready.
    Heal,
}

fn main() -> ExitCode {
    let action = Arguments::parse().command;
    match run(action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&format!("leadergroup-e2e: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(action: Action) -> Result<()> {
    match action {
        Action::Build => {
            programs::ensure_packages().await?;
            programs::build(&state::cache()?).await?;
            Ok(())
        }
        Action::Up { nodes, operator, operator_image, agent, proxy_min_sync_period_ms } => {
            let agent = agent.iter().flat_map(|path| [Image::agent(path), Image::supervised(path)]);
            let operator = operator.iter().map(|path| Image::operator(&operator_image, path));
            let config = Config {
                nodes,
                proxy_min_sync_period: Duration::from_millis(proxy_min_sync_period_ms),
                images: operator.chain(agent).collect(),
            };
            if let Ok(running) = Cluster::attach() {
                progress("a cluster is already running: using it unchanged");
                for image in &config.images {
                    running.load_image(image).await?;
                }
                return print_environment(&running);
            }
            let cluster = Cluster::start(config).await?;
            print_environment(&cluster)?;
            cluster.detach().await
        }
        Action::Down => down().await,
        Action::Status => status().await,
        Action::Load { archives } => {
            let cluster = Cluster::attach()?;
            for archive in archives {
                cluster.load_archive(&archive).await?;
            }
            Ok(())
        }
        Action::Env => print_environment(&Cluster::attach()?),
        Action::CloudNativePg => Cluster::attach()?.install_cloud_native_pg().await,
        Action::Fault(fault) => inject(&Cluster::attach()?, fault).await,
        Action::Page { run, steps } => print_page(run.as_deref(), steps.as_deref()),
        Action::Call(args) => args.run().await,
        Action::Serve(args) => args.run().await,
        Action::Demo => demo::run().await,
        Action::Supervise => supervise().await,
    }
}

fn print_environment(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.program("kubectl")?;
    let helm = cluster.program("helm")?;
    let folders = [kubectl, helm]
        .map(|path| path.parent().map(|folder| folder.display().to_string()).unwrap_or_default());
    let mut out = std::io::stdout().lock();
    writeln!(out, "export KUBECONFIG='{}'", cluster.kubeconfig().display())?;
    writeln!(out, "export PATH='{}':\"$PATH\"", folders.join(":"))?;
    writeln!(out, "export DATABASE_URL='{}'", cluster.database_url())?;
    writeln!(out, "export ETCD_URL='{}'", cluster.etcd_url())?;
    Ok(())
}

fn print_page(run: Option<&Path>, steps: Option<&Path>) -> Result<()> {
    let run: Timeline = match run {
        Some(run) => {
            let text = fs::read(run).with_context(|| format!("cannot read {}", run.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("{} is no recorded run", run.display()))?
        }
        None => Timeline { title: "There is no recorded run".to_owned(), ..Timeline::default() },
    };
    let steps = match steps {
        Some(file) => Step::read(file).with_context(|| format!("cannot read {}", file.display()))?,
        None => Vec::new(),
    };
    write!(std::io::stdout().lock(), "{}", page(&run, &steps)).context("printing the page")
}

async fn inject(cluster: &Cluster, fault: Fault) -> Result<()> {
    match fault {
        Fault::PowerOff { node } => cluster.power_off(&node).await.map(|_| ()),
        Fault::PowerOn { node } => cluster.power_on(&node).await,
        Fault::CutOff { node } => cluster.cut_off(&node).await.map(|_| ()),
        Fault::Reconnect { node } => cluster.reconnect(&node).await,
        Fault::FreezePod { uid } => cluster.freeze_pod(&uid).await.map(|_| ()),
        Fault::ThawPod { uid } => cluster.thaw_pod(&uid),
        Fault::KillPod { uid } => cluster.kill_pod(&uid).map(|_| ()),
        Fault::CutPath { one, other } => cluster.cut_path(&one, &other).await,
        Fault::HealPath { one, other } => cluster.heal_path(&one, &other).await,
        Fault::StopDatabase => cluster.database().stop().await,
        Fault::StartDatabase => cluster.database().start().await,
        Fault::KillApiServer => cluster.api_server().kill().await,
        Fault::StartApiServer => cluster.api_server().start().await,
        Fault::Heal => cluster.heal(HEAL_LIMIT).await,
    }
}

async fn down() -> Result<()> {
    let started = Instant::now();
    if Lock::holder()?.is_some() {
        // The supervisor may already be taking the cluster down, and then it does not accept requests.
        let asked = supervisor::ask(&socket(), &Request::Shutdown, DOWN_LIMIT).await;
        let free =
            wait_until("the cluster's supervisor to end", DOWN_LIMIT, async || Ok(Lock::holder()?.is_none()))
                .await;
        free.with_context(|| format!("asking it to: {asked:?}"))?;
    }
    let _lock = Lock::take()?;
    cleanup::remove_all().await?;
    progress(&format!("the cluster is down after {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}

async fn status() -> Result<()> {
    let cluster = Cluster::attach()?;
    let mut out = std::io::stdout().lock();
    for daemon in cluster.daemons().await? {
        let state = daemon.pid.map_or_else(|| "not running".to_owned(), |pid| format!("process {pid}"));
        let restarts = if daemon.restarts == 0 {
            String::new()
        } else {
            format!(", restarted {} times", daemon.restarts)
        };
        writeln!(out, "{:<28} {state}{restarts}", daemon.name)?;
    }
    for node in cluster.nodes().iter().filter(|node| !cluster.has_power(&node.name)) {
        writeln!(out, "{} is powered off", node.name)?;
    }
    writeln!(out, "logs: {}", cluster.logs().display())?;
    Ok(())
}

/// Adds a line to a log. An error cannot be reported.
fn note(log: &Path, line: &str) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
    let _ = file.and_then(|mut file| writeln!(file, "{line}"));
}

/// The supervisor. Its only message to the process that started it is one line on standard output.
async fn supervise() -> Result<()> {
    let prepared = async {
        let lock = Lock::take()?;
        cleanup::remove_all().await.context("cleaning up after an earlier cluster")?;
        let logs = state::logs()?;
        cleanup::prepare(&logs)?;
        Ok::<_, anyhow::Error>((lock, logs.join("supervisor.log")))
    };
    let (lock, log) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => {
            println!("{error:#}");
            return Err(error);
        }
    };
    // The standard error of this process is not read.
    let crash = log.clone();
    std::panic::set_hook(Box::new(move |panic| note(&crash, &panic.to_string())));
    let reply = supervisor::serve(&socket(), &log, || println!("ready")).await;
    // Without the socket, other processes see that this cluster is being taken down.
    let _ = std::fs::remove_file(socket());
    let removed = cleanup::remove_all().await;
    drop(lock);
    for error in [reply.as_ref().err(), removed.as_ref().err()].into_iter().flatten() {
        note(&log, &format!("{error:#}"));
    }
    let removed = removed.map_or_else(|error| Answer::Failed(format!("{error:#}")), |()| Answer::Done);
    if let Some(reply) = reply? {
        reply.send_now(removed).await;
    }
    Ok(())
}
