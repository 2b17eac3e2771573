//! A node: containerd, kubelet and kube-proxy in their own network and mount namespaces. So each node has its own
//! `/run/containerd`, `/var/lib/kubelet` and so on, and no mounts remain after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use serde_json::json;

use crate::cgroup::ROOT as CGROUP_ROOT;
use crate::command::{LIMIT, output, run};
use crate::credentials::Credentials;
use crate::images::PAUSE;
use crate::machine::{Machines, wait_until};
use crate::network::{CONTROL_ADDRESS, Machine, POD_RANGE};
use crate::process::{is_stopped, took_effect};
use crate::state::RUN_DIR;

/// A node's directories and their mount points. The first is lost at a power-off, the others are its disk.
const FOLDERS: [(&str, &str); 5] = [
    ("run", "/run/containerd"),
    ("containerd", "/var/lib/containerd"),
    ("kubelet", "/var/lib/kubelet"),
    ("cni", "/var/lib/cni"),
    ("log", "/var/log"),
];
/// Number of volumes for `PersistentVolumeClaim`s on each node.
pub const VOLUMES: u8 = 8;
/// Time limit for containerd to answer, and for an image import.
const CONTAINERD_LIMIT: Duration = Duration::from_mins(2);

/// A node of the cluster.
#[derive(Debug, Clone)]
pub struct Node<'a> {
    /// Its machine.
    pub machine: &'a Machine,
    /// Starts its daemons.
    pub machines: &'a Machines,
}

impl Node<'_> {
    fn name(&self) -> &str {
        &self.machine.name
    }

    /// The node's own directory.
    pub fn folder(&self) -> PathBuf {
        folder(self.name())
    }

    fn daemon(&self, name: &str) -> String {
        format!("{name} {}", self.name())
    }

    /// Starts the node's mount namespace and containerd, and waits until containerd answers.
    pub async fn start_containerd(&self) -> Result<()> {
        let folder = self.folder();
        // As after a boot, the data that a running system keeps in memory is gone.
        let _ = fs::remove_dir_all(folder.join("run"));
        let _ = fs::remove_dir_all(folder.join("cni"));
        for (name, _) in FOLDERS {
            fs::create_dir_all(folder.join(name))
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        self.write_settings()?;
        let mounts = self.start_namespace().await?;
        let containerd = self.machines.programs.path("containerd")?.display().to_string();
        let settings = folder.join("containerd.toml").display().to_string();
        let argv = vec![containerd, "--config".to_owned(), settings];
        self.machines.start_in(self.name(), &self.daemon("containerd"), Some(mounts), argv, true).await?;
        let (ctr, socket) = (self.ctr()?, self.socket());
        wait_until(&format!("containerd of {} to answer", self.name()), CONTAINERD_LIMIT, async || {
            Ok(Path::new(&socket).exists() && run(&ctr, ["--address", &socket, "version"]).await.is_ok())
        })
        .await
    }

    /// Starts kubelet and kube-proxy.
    pub async fn start_kubelet(&self, credentials: &Credentials) -> Result<()> {
        let folder = self.folder();
        let mounts = self.namespace_pid().await?;
        let argv = |program: &str, args: Vec<String>| -> Result<Vec<String>> {
            Ok(std::iter::once(self.machines.programs.path(program)?.display().to_string())
                .chain(args)
                .collect())
        };
        let kubelet = vec![
            format!("--config={}", folder.join("kubelet.json").display()),
            format!("--kubeconfig={}", credentials.kubeconfig(self.name()).display()),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", self.machine.address),
            "--node-labels=topology.kubernetes.io/zone=zone-".to_owned() + self.name(),
        ];
        let proxy = vec![format!("--config={}", folder.join("kube-proxy.json").display())];
        let (kubelet, proxy) = (argv("kubelet", kubelet)?, argv("kube-proxy", proxy)?);
        self.machines.start_in(self.name(), &self.daemon("kubelet"), Some(mounts), kubelet, true).await?;
        self.machines.start_in(self.name(), &self.daemon("kube-proxy"), Some(mounts), proxy, true).await?;
        Ok(())
    }

    /// Restarts kube-proxy, which reads its configuration then.
    pub async fn restart_proxy(&self) -> Result<()> {
        let daemon = self.daemon("kube-proxy");
        self.machines.end(&daemon, Signal::TERM).await?;
        self.machines.start_again(&daemon).await
    }

    /// Stops kube-proxy with SIGSTOP, so that the node's rules stay as they are.
    pub async fn pause_proxy(&self) -> Result<()> {
        let daemon = self.daemon("kube-proxy");
        let pid = self.machines.running(&daemon).await?;
        self.machines.signal(&daemon, Signal::STOP, false).await?;
        took_effect(|| (!is_stopped(pid)).then(|| format!("{daemon} is not stopped")))
    }

    /// Resumes it.
    pub async fn resume_proxy(&self) -> Result<()> {
        self.machines.signal(&self.daemon("kube-proxy"), Signal::CONT, false).await
    }

    /// Loads an image on the node.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        let mut ctr = tokio::process::Command::new(self.ctr()?);
        ctr.args(["--address", &self.socket(), "--namespace", "k8s.io", "images", "import", "--no-unpack"])
            .arg(archive);
        output(ctr, CONTAINERD_LIMIT)
            .await
            .with_context(|| format!("importing an image on {}", self.name()))?;
        Ok(())
    }

    fn ctr(&self) -> Result<String> {
        Ok(self.machines.programs.path("ctr")?.display().to_string())
    }

    fn socket(&self) -> String {
        self.folder().join("run/containerd.sock").display().to_string()
    }

    /// The process that holds the node's mount namespace.
    async fn namespace_pid(&self) -> Result<i32> {
        let name = self.daemon("namespace");
        let daemons = self.machines.daemons().await?;
        let found = daemons.into_iter().find(|daemon| daemon.name == name).and_then(|daemon| daemon.pid);
        found.with_context(|| format!("{} is powered off", self.name()))
    }

    async fn start_namespace(&self) -> Result<i32> {
        let folder = self.folder();
        let mut script = "set -e; mount --make-rshared /; ".to_owned();
        for (name, path) in FOLDERS {
            script.push_str(&format!(
                "mount --bind '{}' {path}; mount --make-rshared {path}; ",
                folder.join(name).display()
            ));
        }
        let ready = folder.join("run/mounted");
        script.push_str(&format!("touch '{}'; exec sleep infinity", ready.display()));
        let argv = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", &script]
            .map(str::to_owned)
            .into();
        let pid = self.machines.start_in(self.name(), &self.daemon("namespace"), None, argv, false).await?;
        wait_until(&format!("the mounts of {}", self.name()), LIMIT, async || Ok(ready.exists())).await?;
        Ok(pid)
    }

    fn write_settings(&self) -> Result<()> {
        let folder = self.folder();
        let cni = folder.join("cni.d");
        fs::create_dir_all(&cni)?;
        // ptp instead of bridge: with routed pods, answers of a pod on the same node do not need br_netfilter.
        let network = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/containerd/cni-addresses",
                    "ranges": [[{ "subnet": self.machine.pods }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        fs::write(cni.join("10-pods.conflist"), serde_json::to_vec_pretty(&network)?)?;
        fs::write(folder.join("containerd.toml"), containerd_settings(&folder, &cni))?;
        let kubelet = serde_json::to_vec_pretty(&self.kubelet_settings())?;
        fs::write(folder.join("kubelet.json"), kubelet)?;
        Ok(())
    }

    fn kubelet_settings(&self) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": Path::new(RUN_DIR).join("credentials/ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{CGROUP_ROOT}/{}", self.name()),
            "clusterDNS": [CONTROL_ADDRESS],
            "clusterDomain": "cluster.local",
            // Restart containers that crash repeatedly soon, so that they crash again.
            "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            // The tests do not depend on free space on the machine's disk.
            "evictionHard": { "memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
            "failCgroupV1": false,
            "failSwapOn": false,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": false,
            // A lower value needs CAP_SYS_RESOURCE, which a container often lacks.
            "oomScoreAdj": 0,
            "resolvConf": "",
            // A test that waits for a rescheduled pod should not wait for the back-off of a missing image.
            "serializeImagePulls": false,
        })
    }

    /// Writes kube-proxy's configuration. `min_sync_period` is the least time between two changes of the rules.
    pub fn write_proxy_settings(&self, credentials: &Credentials, min_sync_period: Duration) -> Result<()> {
        let proxy = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": { "kubeconfig": credentials.kubeconfig("kube-proxy") },
            "clusterCIDR": POD_RANGE,
            "hostnameOverride": self.name(),
            "conntrack": { "maxPerCore": 0, "min": 0 },
            "nftables": { "minSyncPeriod": format!("{}ms", min_sync_period.as_millis()) },
        });
        fs::create_dir_all(self.folder())?;
        fs::write(self.folder().join("kube-proxy.json"), serde_json::to_vec_pretty(&proxy)?)?;
        Ok(())
    }

    /// The directory of a volume of this node.
    pub fn volume(&self, number: u8) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.folder().join(format!("volumes/{number}"));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }
}

/// A node's directory.
pub fn folder(node: &str) -> PathBuf {
    Path::new(RUN_DIR).join(node)
}

/// Creates the mount points for the nodes' directories, and returns those that did not exist before.
pub fn create_mount_points() -> Result<Vec<PathBuf>> {
    let mut created = Vec::new();
    for (_, path) in FOLDERS {
        if !Path::new(path).exists() {
            fs::create_dir_all(path).with_context(|| format!("cannot create {path}"))?;
            created.push(PathBuf::from(path));
        }
    }
    Ok(created)
}

fn containerd_settings(folder: &Path, cni: &Path) -> String {
    // Overlay file systems cannot be stacked arbitrarily: in a container, copy instead.
    let is_overlay = rustix::fs::statfs(folder).is_ok_and(|stat| stat.f_type == OVERLAYFS_MAGIC);
    let snapshotter = if is_overlay { "native" } else { "overlayfs" };
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{cni}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"#,
        cni = cni.display()
    )
}

/// The kernel's number of overlayfs (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAYFS_MAGIC: rustix::fs::FsWord = 0x794c_7630;
