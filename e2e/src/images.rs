//! Container images built from programs of this machine: a tar file with one layer, a configuration and a manifest.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::command::{run, run_with_input};
use crate::programs::{Programs, postgres_bin};

/// The sandbox image of all nodes.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.1";
/// A shell, `wget`, `httpd`, `nslookup` and the like, for test pods.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.37";
/// The PostgreSQL server under the name of the public image.
pub const POSTGRES: &str = "docker.io/library/postgres:15";
/// The operator, unless the chart's values name another image.
pub const OPERATOR: &str = "ghcr.io/leadergroup/leadergroup:0.1.0";
/// The agent alone, under the name that `leadergroup agent inject` uses by default.
pub const AGENT_ALONE: &str = "ghcr.io/leadergroup/leadergroup-agent:0.1.0";
/// Busybox with the agent.
pub const SUPERVISED: &str = "docker.io/leadergroup/supervised:test";
/// The same with the programs that agents run in examples.
pub const EXAMPLES: &str = "docker.io/leadergroup/examples:test";
/// The user that the public PostgreSQL image runs its server as.
const POSTGRES_UID: u32 = 999;
/// The user of the operator's image.
const OPERATOR_UID: u32 = 65532;

/// Where the agent is in [`SUPERVISED`].
pub const AGENT: &str = "/usr/local/bin/leadergroup-agent";

/// An image to build.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Image {
    /// The full name with registry and tag, as in a pod spec.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// The content of an image.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub enum Content {
    /// The sandbox process.
    Pause,
    /// Debian's static busybox with a link for each of its commands.
    Busybox,
    /// Debian's PostgreSQL server, used like the public `postgres` image.
    Postgres,
    /// The operator of CloudNativePG, which its instances copy their program from.
    CloudNativePg {
        /// The path of `manager` on this machine.
        manager: PathBuf,
    },
    /// Busybox, and the agent with its shared libraries.
    Supervised {
        /// The agent's path on this machine.
        path: PathBuf,
        /// Other programs on this machine, each with its path in the image.
        programs: Vec<(PathBuf, String)>,
    },
    /// A program with its shared libraries, run as an unprivileged user.
    Program {
        /// The program's path on this machine.
        path: PathBuf,
        /// Its path in the image, which is also the entry point.
        installed: String,
    },
}

impl Image {
    /// The operator's image, made from the program at `path`.
    pub fn operator(name: &str, path: &Path) -> Self {
        let content =
            Content::Program { path: path.to_path_buf(), installed: "/usr/local/bin/leadergroup".to_owned() };
        Self { name: name.to_owned(), content }
    }

    /// The agent's image, made from the static program at `path`. Pods copy it from there.
    pub fn agent(path: &Path) -> Self {
        let content =
            Content::Program { path: path.to_path_buf(), installed: "/leadergroup-agent".to_owned() };
        Self { name: AGENT_ALONE.to_owned(), content }
    }

    /// An image for programs that run under the agent at `path`.
    pub fn supervised(path: &Path) -> Self {
        let content = Content::Supervised { path: path.to_path_buf(), programs: Vec::new() };
        Self { name: SUPERVISED.to_owned(), content }
    }

    /// The image of the examples with the agent at `path`: Redis, NATS, and a program that can elect a leader itself.
    pub fn examples(path: &Path, built: &Programs) -> Result<Self> {
        // Redis' server looks at the name that it is called by.
        let mut programs = vec![
            (PathBuf::from("/usr/bin/redis-check-rdb"), "usr/local/bin/redis-server".to_owned()),
            (PathBuf::from("/usr/bin/redis-cli"), "usr/local/bin/redis-cli".to_owned()),
        ];
        for name in ["leader", "nats-server"] {
            programs.push((built.path(name)?, format!("usr/local/bin/{name}")));
        }
        let content = Content::Supervised { path: path.to_path_buf(), programs };
        Ok(Self { name: EXAMPLES.to_owned(), content })
    }

    /// The images that every cluster has.
    pub fn standard() -> Vec<Self> {
        [(PAUSE, Content::Pause), (BUSYBOX, Content::Busybox), (POSTGRES, Content::Postgres)]
            .map(|(name, content)| Self { name: name.to_owned(), content })
            .into()
    }
}

/// The layer and the configuration of an image.
struct Root {
    tar: tar::Builder<Vec<u8>>,
    folders: BTreeSet<PathBuf>,
    settings: serde_json::Value,
}

/// Builds an image as a tar file for `ctr images import` in `folder`, and returns its path.
pub async fn pack(image: &Image, folder: &Path) -> Result<PathBuf> {
    let mut root = Root { tar: tar::Builder::new(Vec::new()), folders: BTreeSet::new(), settings: json!({}) };
    fill(&mut root, &image.content, folder)
        .await
        .with_context(|| format!("making the image {}", image.name))?;
    let settings = root.settings;
    let layer = root.tar.into_inner()?;
    let (name, folder) = (image.name.clone(), folder.to_path_buf());
    tokio::task::spawn_blocking(move || write_archive(&name, &layer, &settings, &folder)).await?
}

fn write_archive(name: &str, layer: &[u8], settings: &serde_json::Value, folder: &Path) -> Result<PathBuf> {
    let digest = hex(&Sha256::digest(layer));
    let config = serde_json::to_vec(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    }))?;
    let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
    let layer_name = format!("{digest}/layer.tar");
    let manifest = json!([{ "Config": config_name, "RepoTags": [name], "Layers": [layer_name] }]);
    let file_name: String =
        name.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' }).collect();
    let path = folder.join(format!("{file_name}.tar"));
    let mut archive = tar::Builder::new(
        fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?,
    );
    for (name, content) in [
        ("manifest.json", serde_json::to_vec(&manifest)?.as_slice()),
        (&config_name, &config),
        (&layer_name, layer),
    ] {
        archive.append_data(&mut header(content.len(), 0o644), name, content)?;
    }
    archive.into_inner()?;
    Ok(path)
}

async fn fill(root: &mut Root, content: &Content, folder: &Path) -> Result<()> {
    match content {
        Content::Pause => {
            let pause = folder.join("pause");
            let source = include_str!("../images/pause.c");
            let output = pause.display().to_string();
            run_with_input("cc", ["-Os", "-static", "-s", "-x", "c", "-o", &output, "-"], source).await?;
            root.file(&pause, "pause")?;
            root.settings = json!({ "Entrypoint": ["/pause"], "User": "65535:65535" });
        }
        Content::Busybox => {
            root.busybox().await?;
            root.folder("tmp", 0o1777)?;
            root.settings = json!({ "Cmd": ["sh"], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] });
        }
        Content::Program { path, installed } => {
            root.program(path, installed.trim_start_matches('/')).await?;
            root.folder("tmp", 0o1777)?;
            root.data("etc/passwd", b"nonroot:x:65532:65532::/:/sbin/nologin\n", 0o644)?;
            root.settings =
                json!({ "Entrypoint": [installed], "User": format!("{OPERATOR_UID}:{OPERATOR_UID}") });
        }
        Content::Supervised { path, programs } => {
            root.busybox().await?;
            root.program(path, AGENT.trim_start_matches('/')).await?;
            for (path, inside) in programs {
                root.program(path, inside).await?;
            }
            root.folder("tmp", 0o1777)?;
            root.settings = json!({
                "Entrypoint": [AGENT], "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            });
        }
        Content::Postgres => root.postgres().await?,
        Content::CloudNativePg { manager } => {
            // It looks for a program for each architecture.
            let program = format!("operator/manager_{}", architecture());
            root.file(manager, &program)?;
            root.link(&program, "manager")?;
            root.settings =
                json!({ "Entrypoint": ["/manager"], "User": format!("{OPERATOR_UID}:{OPERATOR_UID}") });
        }
    }
    Ok(())
}

impl Root {
    /// Busybox and a link for each of its commands.
    async fn busybox(&mut self) -> Result<()> {
        let path = Path::new("/bin/busybox");
        if !run("ldd", [path]).await.unwrap_or_else(|error| error.to_string()).contains("not a dynamic") {
            bail!("{} is not static: install the package busybox-static", path.display());
        }
        self.file(path, "bin/busybox")?;
        for applet in run("/bin/busybox", ["--list"]).await?.lines().filter(|applet| *applet != "busybox") {
            self.link("busybox", &format!("bin/{applet}"))?;
        }
        Ok(())
    }

    async fn postgres(&mut self) -> Result<()> {
        let bin = postgres_bin()?;
        let home = bin.parent().context("PostgreSQL's bin has no parent folder")?.to_path_buf();
        let version =
            home.file_name().context("PostgreSQL's folder has no name")?.to_string_lossy().into_owned();
        self.busybox().await?;
        let mut libraries = BTreeSet::new();
        // For the chart, CloudNativePG, and backups.
        let programs =
            "postgres initdb pg_ctl psql pg_isready pg_controldata pg_basebackup pg_rewind pg_dump";
        for program in programs.split(' ') {
            let path = bin.join(program);
            libraries.extend(shared_libraries(&path).await?);
            self.file(&path, &relative(&path))?;
        }
        for entry in home.join("lib").read_dir().context("PostgreSQL's lib")?.flatten() {
            let path = entry.path();
            // Without the just-in-time compiler, which would add all of LLVM.
            if path.extension().is_some_and(|end| end == "so")
                && !entry.file_name().to_string_lossy().starts_with("llvm")
            {
                libraries.extend(shared_libraries(&path).await?);
                self.file(&path, &relative(&path))?;
            }
        }
        for library in libraries {
            self.file(&library, &relative(&library))?;
        }
        self.tree(&Path::new("/usr/share/postgresql").join(&version))?;
        for zone in ["Etc", "UTC", "GMT", "posixrules"] {
            let path = Path::new("/usr/share/zoneinfo").join(zone);
            if path.is_dir() {
                self.tree(&path)?;
            } else if path.exists() {
                self.file(&path, &relative(&path))?;
            }
        }
        self.users()?;
        self.data(
            "usr/local/bin/docker-entrypoint.sh",
            include_bytes!("../images/postgres-entrypoint.sh"),
            0o755,
        )?;
        self.folder("docker-entrypoint-initdb.d", 0o755)?;
        for shared in ["tmp", "var/run/postgresql", "var/lib/postgresql", "var/lib/postgresql/data"] {
            self.folder(shared, 0o1777)?;
        }
        self.settings = json!({
            "Entrypoint": ["docker-entrypoint.sh"],
            "Cmd": ["postgres"],
            "Env": [
                format!("PATH=/usr/local/bin:{}:/usr/bin:/bin", bin.display()),
                format!("PG_MAJOR={version}"),
                "PGDATA=/var/lib/postgresql/data",
            ],
            "User": format!("{POSTGRES_UID}:{POSTGRES_UID}"),
            "ExposedPorts": { "5432/tcp": {} },
            "StopSignal": "SIGINT",
        });
        Ok(())
    }

    /// A name for every user id: initdb needs a name for its user, and a pod may set any user.
    fn users(&mut self) -> Result<()> {
        let mut users = format!(
            "root:x:0:0::/root:/bin/sh\npostgres:x:{POSTGRES_UID}:{POSTGRES_UID}::/var/lib/postgresql:/bin/sh\n"
        );
        for uid in (1..=65535_u32).filter(|uid| *uid != POSTGRES_UID) {
            writeln!(users, "u{uid}:x:{uid}:{uid}::/tmp:/bin/sh")?;
        }
        self.data("etc/passwd", users.as_bytes(), 0o644)?;
        self.data("etc/group", format!("root:x:0:\npostgres:x:{POSTGRES_UID}:\n").as_bytes(), 0o644)
    }

    /// A program of this machine with its libraries.
    async fn program(&mut self, path: &Path, inside: &str) -> Result<()> {
        if !path.exists() {
            bail!("{} does not exist: build it first (`cargo build`)", path.display());
        }
        for library in shared_libraries(path).await? {
            self.file(&library, &relative(&library))?;
        }
        self.file(path, inside)
    }

    fn file(&mut self, path: &Path, inside: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mode = if fs::metadata(path)?.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        self.data(inside, &content, mode)
    }

    fn data(&mut self, inside: &str, content: &[u8], mode: u32) -> Result<()> {
        self.parents(inside)?;
        self.tar.append_data(&mut header(content.len(), mode), inside, content)?;
        Ok(())
    }

    fn link(&mut self, target: &str, inside: &str) -> Result<()> {
        self.parents(inside)?;
        let mut header = header(0, 0o777);
        header.set_entry_type(tar::EntryType::Symlink);
        self.tar.append_link(&mut header, inside, target)?;
        Ok(())
    }

    fn folder(&mut self, inside: &str, mode: u32) -> Result<()> {
        self.parents(inside)?;
        if self.folders.insert(PathBuf::from(inside)) {
            let mut header = header(0, mode);
            header.set_entry_type(tar::EntryType::Directory);
            self.tar.append_data(&mut header, format!("{inside}/"), std::io::empty())?;
        }
        Ok(())
    }

    fn parents(&mut self, inside: &str) -> Result<()> {
        match Path::new(inside).parent() {
            Some(parent) if parent != Path::new("") && !self.folders.contains(parent) => {
                self.folder(&parent.display().to_string(), 0o755)
            }
            _ => Ok(()),
        }
    }

    /// All files below a directory of this machine, at the same path.
    fn tree(&mut self, folder: &Path) -> Result<()> {
        for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?.flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                self.tree(&path)?;
            } else if path.exists() {
                self.file(&path, &relative(&path))?;
            }
        }
        Ok(())
    }
}

/// The shared libraries of a program and its loader, as found by `ldd`.
async fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let Ok(text) = run("ldd", [program]).await else { return Ok(Vec::new()) }; // a static program
    let mut found = Vec::new();
    for line in text.lines() {
        if line.contains("not found") {
            bail!("{}: a library is missing: {}", program.display(), line.trim());
        }
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        found.extend(path.map(PathBuf::from));
    }
    Ok(found)
}

/// This machine's architecture, by the name that images have for it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn relative(path: &Path) -> String {
    path.display().to_string().trim_start_matches('/').to_owned()
}

fn header(size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
