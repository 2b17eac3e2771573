//! The programs of the cluster: Go programs built once from pinned modules into the cache, and Debian packages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::command::{output, progress, run};

/// The version of Kubernetes that the modules build, as its programs report it.
pub const KUBERNETES_VERSION: &str = "v1.36.3";
/// How often the long build says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// The longest that one family may take to build.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The oldest Go that builds the modules.
const GO_MINIMUM: (u32, u32) = (1, 26);

/// Programs that are built from one go.mod.
struct Family {
    name: &'static str,
    /// The files that decide what comes out.
    files: &'static [&'static str],
    tags: &'static str,
    programs: &'static [&'static str],
    /// What is built: `tool` for go.mod's tools, `.` for a program of our own.
    target: &'static str,
}

const FAMILIES: [Family; 5] = [
    Family { name: "etcd", files: &["go.mod", "go.sum"], tags: "", programs: &["server"], target: "tool" },
    Family {
        name: "kubernetes",
        files: &["go.mod", "go.sum"],
        tags: "",
        programs: &[
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        ],
        target: "tool",
    },
    Family {
        name: "containerd",
        files: &["go.mod", "go.sum"],
        tags: "no_btrfs,no_devmapper,no_zfs",
        programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
        target: "tool",
    },
    Family {
        name: "coredns",
        files: &["go.mod", "go.sum", "main.go"],
        tags: "",
        programs: &["coredns"],
        target: ".",
    },
    Family { name: "helm", files: &["go.mod", "go.sum"], tags: "", programs: &["helm"], target: "tool" },
];

/// Debian packages and a file by which each is known to be there. `*` stands for one folder of any name.
const PACKAGES: [(&str, &str); 12] = [
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
    ("runc", "/usr/sbin/runc"),
    ("util-linux", "/usr/bin/nsenter"),
];

/// Where the built programs are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Programs {
    folders: Vec<PathBuf>,
}

impl Programs {
    /// The path of a program, by the name under which it was built.
    pub fn path(&self, program: &str) -> Result<PathBuf> {
        let mut all = self.folders.iter().map(|folder| folder.join(program));
        all.find(|path| path.exists())
            .with_context(|| format!("{program} is not built: run `leadergroup-e2e build`"))
    }

    /// A value for PATH that finds these programs first.
    pub fn search_path(&self) -> String {
        let mut folders: Vec<String> =
            self.folders.iter().map(|folder| folder.display().to_string()).collect();
        folders.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        folders.join(":")
    }
}

/// The built programs, without building. Fails when one is missing.
pub fn built(cache: &Path) -> Result<Programs> {
    let mut folders = Vec::new();
    for family in &FAMILIES {
        let folder = folder(cache, family)?;
        if !folder.exists() {
            bail!(
                "{} is not built yet: run `leadergroup-e2e build` (takes minutes the first time)",
                family.name
            );
        }
        folders.push(folder);
    }
    Ok(Programs { folders })
}

/// Builds what is missing and returns where everything is. Two processes that build at once take turns.
pub async fn build(cache: &Path) -> Result<Programs> {
    if let Ok(programs) = built(cache) {
        return Ok(programs);
    }
    check_go().await?;
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let lock = File::create(bin.join("build.lock")).context("cannot create the build's lock file")?;
    // Off the runtime's threads: it may wait for minutes for the other build.
    let _lock =
        tokio::task::spawn_blocking(move || flock(&lock, FlockOperation::LockExclusive).map(|()| lock))
            .await?
            .context("cannot take the build's lock")?;
    for (index, family) in FAMILIES.iter().enumerate() {
        let folder = folder(cache, family)?;
        if !folder.exists() {
            progress(&format!(
                "building {} ({} of {}) from its pinned Go modules",
                family.name,
                index + 1,
                FAMILIES.len()
            ));
            build_family(family, &folder).await.with_context(|| format!("building {}", family.name))?;
        }
    }
    built(cache)
}

async fn build_family(family: &Family, folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)?;
    let started = Instant::now();
    let mut child = Command::new("go")
        .current_dir(modules().join(family.name))
        .args([
            "install",
            "-v",
            "-trimpath",
            "-mod=readonly",
            "-tags",
            family.tags,
            "-ldflags",
            &linker_flags(family),
        ])
        .arg(family.target)
        .env("CGO_ENABLED", "0")
        .env("GOBIN", &unfinished)
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run `go`")?;
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
    // What Go says: a line for each package that it compiled, and its errors.
    let (mut packages, mut last_words) = (0_u32, Vec::new());
    let mut next = Instant::now() + PROGRESS_EVERY;
    let work = async {
        loop {
            let line = tokio::time::timeout_at(next.into(), lines.next_line()).await;
            if next <= Instant::now() {
                progress(&format!(
                    "  {}: {packages} packages compiled, {} s",
                    family.name,
                    started.elapsed().as_secs()
                ));
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
    for program in family.programs {
        if !unfinished.join(program).exists() {
            bail!("the build made no {program}");
        }
    }
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))?;
    progress(&format!("  {}: built in {} s", family.name, started.elapsed().as_secs()));
    Ok(())
}

fn linker_flags(family: &Family) -> String {
    let mut flags = "-s -w".to_owned();
    if family.name == "kubernetes" {
        // Without these the programs call themselves v0.0.0, and clients that look at the version misjudge them.
        let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags.push_str(&format!(
                " -X {package}.gitVersion={KUBERNETES_VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            ));
        }
    }
    flags
}

/// The folder of a family's programs; its name changes with everything that decides what is in it.
fn folder(cache: &Path, family: &Family) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    for file in family.files {
        let path = modules().join(family.name).join(file);
        hash.update(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    hash.update(family.tags);
    hash.update(linker_flags(family));
    let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(cache.join("bin").join(format!("{}-{hash}", family.name)))
}

fn modules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("modules")
}

async fn check_go() -> Result<()> {
    let (major, minor) = GO_MINIMUM;
    let remedy = format!(
        "the test cluster is built with Go {major}.{minor} or newer: install it from https://go.dev/dl"
    );
    let text = run("go", ["version"]).await.with_context(|| remedy.clone())?;
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
    let limit = Duration::from_secs(900);
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

/// The newest folder of PostgreSQL server programs.
pub fn postgres_bin() -> Result<PathBuf> {
    let postgres =
        find("/usr/lib/postgresql/*/bin/postgres").context("no PostgreSQL server: install `postgresql`")?;
    Ok(postgres.parent().context("postgres has no folder")?.to_path_buf())
}

/// Resolves a path in which one part may be `*`, to the last one by name.
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
