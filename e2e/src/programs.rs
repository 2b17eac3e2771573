//! The programs of the cluster: Go programs, built once from a module with pinned versions and cached, and Debian
//! packages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::command::{output, progress};

/// The version of Kubernetes that the module builds, as its programs report it.
pub const KUBERNETES_VERSION: &str = "v1.36.3";
/// How often the build reports its progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Time limit for the build.
const BUILD_LIMIT: Duration = Duration::from_hours(1);
/// The oldest supported version of Go.
const GO_MINIMUM: (u32, u32) = (1, 26);

/// A Go module in a directory of this crate, and what is built from it.
struct Module {
    /// The directory, and the first part of the name of the build's.
    name: &'static str,
    /// What progress calls it.
    builds: &'static str,
    /// The inputs of the build.
    files: &'static [&'static str],
    /// The targets: the tools of go.mod, and our own programs.
    targets: &'static [&'static str],
    tags: &'static str,
    /// The programs that the build must produce.
    programs: &'static [&'static str],
    /// A file of a module that it requires, which is kept beside the programs.
    kept: Option<(&'static str, &'static str)>,
}

/// The programs of the cluster. There is one module for all of them, so that the packages they share, which are most of
/// them, are compiled once.
const CLUSTER: Module = Module {
    name: "programs",
    builds: "Kubernetes, etcd, containerd, CoreDNS, Helm and NATS",
    files: &["go.mod", "go.sum", "coredns/main.go", "elector/main.go", "leader/main.go"],
    targets: &["tool", "./coredns", "./elector", "./leader"],
    // Excludes parts of containerd that need C libraries.
    tags: "no_btrfs,no_devmapper,no_zfs",
    // `server` is etcd.
    programs: &[
        "containerd",
        "containerd-shim-runc-v2",
        "coredns",
        "ctr",
        "elector",
        "helm",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubectl",
        "kubelet",
        "leader",
        "nats-server",
        "server",
    ],
    kept: None,
};

/// The name of the file that is kept.
const KEPT: &str = "kept";

/// The version of CloudNativePG.
pub const CLOUD_NATIVE_PG_VERSION: &str = "1.29.1";
/// Its operator, with the versions of packages that it was released with. Only one scenario needs it.
const CLOUD_NATIVE_PG: Module = Module {
    name: "cloudnative-pg",
    builds: "CloudNativePG",
    files: &["go.mod", "go.sum"],
    targets: &["tool"],
    tags: "",
    programs: &["manager"],
    kept: Some(("github.com/cloudnative-pg/cloudnative-pg", "releases/cnpg-1.29.1.yaml")),
};

/// Debian packages, each with a file that shows that it is installed. `*` stands for one directory of any name.
/// `redis-tools` has the server, too, under another name, and unlike `redis-server` starts none on this machine.
const PACKAGES: [(&str, &str); 13] = [
    ("busybox-static", "/bin/busybox"),
    ("conntrack", "/usr/sbin/conntrack"),
    ("containernetworking-plugins", "/usr/lib/cni/ptp"),
    ("gcc", "/usr/bin/cc"),
    ("iproute2", "/usr/sbin/ip"),
    ("libc6-dev", "/usr/include/stdlib.h"),
    ("mount", "/usr/bin/mount"),
    ("nftables", "/usr/sbin/nft"),
    ("openssl", "/usr/bin/openssl"),
    ("postgresql", "/usr/lib/postgresql/*/bin/postgres"),
    ("redis-tools", "/usr/bin/redis-check-rdb"),
    ("runc", "/usr/sbin/runc"),
    ("util-linux", "/usr/bin/nsenter"),
];

/// The location of the built programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The path of a program, by the name under which it was built.
    pub fn path(&self, program: &str) -> Result<PathBuf> {
        let path = self.folder.join(program);
        ensure!(path.exists(), "{program} is not built: run `leadergroup-e2e build`");
        Ok(path)
    }

    /// A value for PATH with these programs first.
    pub fn search_path(&self) -> String {
        format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.display())
    }
}

/// The built programs. Fails if they are missing.
pub fn built(cache: &Path) -> Result<Programs> {
    let folder = folder(&CLUSTER, cache)?;
    ensure!(
        folder.exists(),
        "the programs of the cluster are not built yet: run `leadergroup-e2e build` (takes minutes the first time)"
    );
    Ok(Programs { folder })
}

/// Builds missing programs and returns their location. Concurrent builds take turns.
pub async fn build(cache: &Path) -> Result<Programs> {
    build_module(&CLUSTER, cache).await
}

/// The same for the operator of CloudNativePG: `manager`, and the manifests of its release.
pub async fn build_cloud_native_pg(cache: &Path) -> Result<(Programs, PathBuf)> {
    let programs = build_module(&CLOUD_NATIVE_PG, cache).await?;
    let manifests = programs.folder.join(KEPT);
    Ok((programs, manifests))
}

async fn build_module(module: &Module, cache: &Path) -> Result<Programs> {
    let folder = folder(module, cache)?;
    if folder.exists() {
        return Ok(Programs { folder });
    }
    check_go().await?;
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let lock = File::create(bin.join("build.lock")).context("cannot create the build's lock file")?;
    // On a blocking thread, because it may wait minutes for another build.
    let _lock =
        tokio::task::spawn_blocking(move || flock(&lock, FlockOperation::LockExclusive).map(|()| lock))
            .await?
            .context("cannot take the build's lock")?;
    if !folder.exists() {
        progress(&format!("building {} from their pinned Go modules", module.builds));
        build_into(module, &folder).await.with_context(|| format!("building {}", module.builds))?;
    }
    Ok(Programs { folder })
}

async fn build_into(module: &Module, folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)?;
    let started = Instant::now();
    let mut child = Command::new("go")
        .current_dir(directory(module))
        .args(["install", "-v", "-trimpath", "-mod=readonly", "-tags", module.tags])
        .args(["-ldflags", &linker_flags()])
        .args(module.targets)
        .env("CGO_ENABLED", "0")
        .env("GOBIN", &unfinished)
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run `go`")?;
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
    // Go's output: a line for each compiled package, and errors.
    let (mut packages, mut last_words) = (0_u32, Vec::new());
    let mut next = Instant::now() + PROGRESS_EVERY;
    let work = async {
        loop {
            let line = tokio::time::timeout_at(next.into(), lines.next_line()).await;
            if next <= Instant::now() {
                progress(&format!("  {packages} packages compiled, {} s", started.elapsed().as_secs()));
                next = Instant::now() + PROGRESS_EVERY;
            }
            match line {
                Ok(Ok(Some(line))) => {
                    packages += u32::from(!line.contains(' '));
                    last_words.push(line);
                    if last_words.len() > 20 {
                        last_words.remove(0);
                    }
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok::<_, anyhow::Error>(child.wait().await?)
    };
    let status = tokio::time::timeout(BUILD_LIMIT, work).await.context("the build takes too long")??;
    if !status.success() {
        bail!("go install failed ({status}):\n{}", last_words.join("\n"));
    }
    for program in module.programs {
        ensure!(unfinished.join(program).exists(), "the build did not produce {program}");
    }
    keep(module, &unfinished).await?;
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))?;
    progress(&format!("  built in {} s", started.elapsed().as_secs()));
    Ok(())
}

/// Copies the file of a required module that is kept beside the programs.
async fn keep(module: &Module, folder: &Path) -> Result<()> {
    let Some((required, file)) = module.kept else { return Ok(()) };
    let mut list = Command::new("go");
    list.current_dir(directory(module)).args(["list", "-m", "-f", "{{.Dir}}", required]);
    let source = Path::new(output(list, BUILD_LIMIT).await?.trim()).join(file);
    fs::copy(&source, folder.join(KEPT)).with_context(|| format!("cannot copy {}", source.display()))?;
    Ok(())
}

fn linker_flags() -> String {
    let mut flags = "-s -w".to_owned();
    // Without these the programs report version v0.0.0, which confuses clients that check the version.
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags.push_str(&format!(
            " -X {package}.gitVersion={KUBERNETES_VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        ));
    }
    flags
}

/// The directory of the programs. Its name contains a hash of all inputs of the build.
fn folder(module: &Module, cache: &Path) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for file in module.files {
        let path = directory(module).join(file);
        hash.update(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    hash.update(module.tags);
    hash.update(linker_flags());
    let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(cache.join("bin").join(format!("{}-{hash}", module.name)))
}

/// The directory of a Go module.
fn directory(module: &Module) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(module.name)
}

async fn check_go() -> Result<()> {
    let (major, minor) = GO_MINIMUM;
    let remedy = format!(
        "the test cluster is built with Go {major}.{minor} or newer: install it from https://go.dev/dl"
    );
    // In the module's directory, because Go may download the version that the module requires.
    let mut go = Command::new("go");
    go.arg("version").current_dir(directory(&CLUSTER));
    let text = output(go, BUILD_LIMIT).await.with_context(|| remedy.clone())?;
    let found = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("go1."))
        .and_then(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok());
    match found {
        Some(found) if found >= minor => Ok(()),
        _ => bail!("{remedy} (found: {})", text.trim()),
    }
}

/// The Debian packages that are missing.
pub fn missing_packages() -> Vec<&'static str> {
    PACKAGES.iter().filter(|(_, file)| find(file).is_none()).map(|(package, _)| *package).collect()
}

/// Installs the Debian packages that are missing.
pub async fn ensure_packages() -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("missing programs: as root, run `apt-get install {list}`");
    }
    if find("/usr/bin/apt-get").is_none() {
        bail!("missing programs, and no apt-get to install them with: install what your system calls {list}");
    }
    progress(&format!("installing Debian packages: {list}"));
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-q", "-y"]).args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let limit = Duration::from_mins(15);
    output(apt(&["update"]), limit).await?;
    let mut install = vec!["install", "--no-install-recommends"];
    install.extend(&missing);
    output(apt(&install), limit).await?;
    let missing = missing_packages();
    if !missing.is_empty() {
        bail!("still missing after apt-get install: {}", missing.join(" "));
    }
    Ok(())
}

/// The newest directory of PostgreSQL server programs.
pub fn postgres_bin() -> Result<PathBuf> {
    let postgres =
        find("/usr/lib/postgresql/*/bin/postgres").context("no PostgreSQL server: install `postgresql`")?;
    Ok(postgres.parent().context("postgres has no folder")?.to_path_buf())
}

/// Resolves a path in which one part may be `*`, to the last match by name.
fn find(pattern: &str) -> Option<PathBuf> {
    let Some((before, after)) = pattern.split_once("/*/") else {
        return Some(PathBuf::from(pattern)).filter(|path| path.exists());
    };
    let mut found: Vec<PathBuf> =
        Path::new(before).read_dir().ok()?.flatten().map(|entry| entry.path().join(after)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop()
}
