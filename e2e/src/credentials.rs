//! Keys, certificates and tokens of a cluster, created at each start, and the kubeconfig files that contain them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::command::run;
use crate::network::{CONTROL_ADDRESS, DATABASE_ADDRESS, Machine};

/// The URL of the API server, valid on the host and on every machine.
pub const SERVER: &str = "https://198.18.0.10:6443";
/// The `ClusterIP` of the API server's own Service: the first of the range.
const SERVICE_ADDRESS: &str = "198.19.0.1";

/// A user of the API server with a token.
struct User {
    file: String,
    name: String,
    group: &'static str,
}

/// The files below a run directory.
#[derive(Debug, Clone)]
pub struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    /// The existing files in this directory.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Creates all of them.
    pub async fn create(folder: &Path, nodes: &[Machine]) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let this = Self { folder: folder.to_path_buf() };
        // Without our own file, openssl adds extensions from the system's configuration.
        fs::write(this.path("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n")?;
        this.authority().await?;
        this.certificate(
            "apiserver",
            "/CN=kube-apiserver",
            &format!(
                "subjectAltName=IP:{CONTROL_ADDRESS},IP:{SERVICE_ADDRESS},IP:127.0.0.1,DNS:localhost,DNS:kubernetes,\
                 DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
            ),
        )
        .await?;
        this.certificate("postgres", "/CN=postgres", &format!("subjectAltName=IP:{DATABASE_ADDRESS}"))
            .await?;
        // The API server uses it to get logs from kubelets and to run commands.
        this.certificate(
            "kubelet-client",
            "/O=system:masters/CN=kube-apiserver-kubelet-client",
            "extendedKeyUsage=clientAuth",
        )
        .await?;
        let key = this.text("service-account.key");
        run("openssl", ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", &key])
            .await?;
        run("openssl", ["pkey", "-in", &key, "-pubout", "-out", &this.text("service-account.pub")]).await?;

        let mut users = vec![
            User { file: "admin".to_owned(), name: "admin".to_owned(), group: "system:masters" },
            User {
                file: "kube-controller-manager".to_owned(),
                name: "system:kube-controller-manager".to_owned(),
                group: "",
            },
            User { file: "kube-scheduler".to_owned(), name: "system:kube-scheduler".to_owned(), group: "" },
            User { file: "kube-proxy".to_owned(), name: "system:kube-proxy".to_owned(), group: "" },
            User { file: "coredns".to_owned(), name: "system:coredns".to_owned(), group: "system:masters" },
        ];
        users.extend(nodes.iter().map(|node| User {
            file: node.name.clone(),
            name: format!("system:node:{}", node.name),
            group: "system:nodes",
        }));
        let authority = run("openssl", ["base64", "-A", "-in", &this.text("ca.crt")]).await?;
        let mut table = String::new();
        for user in users {
            let token = uuid::Uuid::new_v4().simple().to_string();
            table.push_str(&format!("{token},{0},{0},\"{1}\"\n", user.name, user.group));
            fs::write(this.kubeconfig(&user.file), kubeconfig_text(authority.trim(), &user.name, &token)?)?;
        }
        fs::write(this.path("tokens.csv"), table)?;
        Ok(this)
    }

    /// A file in the directory.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The kubeconfig of `admin`, of a component, or of a node.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.path(&format!("{user}.kubeconfig"))
    }

    /// A file's path as an argument.
    pub fn text(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    async fn authority(&self) -> Result<()> {
        let (key, certificate) = (self.text("ca.key"), self.text("ca.crt"));
        run(
            "openssl",
            [
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-sha256",
                "-days",
                "365",
                "-config",
                &self.text("openssl.cnf"),
                "-subj",
                "/CN=leadergroup-e2e",
                "-addext",
                "basicConstraints=critical,CA:TRUE",
                "-addext",
                "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
                "-keyout",
                &key,
                "-out",
                &certificate,
            ],
        )
        .await?;
        Ok(())
    }

    async fn certificate(&self, name: &str, subject: &str, extension: &str) -> Result<()> {
        let (key, certificate) = (self.text(&format!("{name}.key")), self.text(&format!("{name}.crt")));
        let (authority, authority_key) = (self.text("ca.crt"), self.text("ca.key"));
        run(
            "openssl",
            [
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-sha256",
                "-days",
                "365",
                "-config",
                &self.text("openssl.cnf"),
                "-subj",
                subject,
                "-addext",
                extension,
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-CA",
                &authority,
                "-CAkey",
                &authority_key,
                "-keyout",
                &key,
                "-out",
                &certificate,
            ],
        )
        .await?;
        Ok(())
    }
}

/// JSON is valid YAML, so no YAML writer is needed.
fn kubeconfig_text(authority: &str, user: &str, token: &str) -> Result<String> {
    Ok(serde_json::to_string_pretty(&serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "leadergroup-e2e",
            "cluster": { "server": SERVER, "certificate-authority-data": authority },
        }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": "leadergroup-e2e", "context": { "cluster": "leadergroup-e2e", "user": user } }],
        "current-context": "leadergroup-e2e",
    }))?)
}
