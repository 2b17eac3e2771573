//! `make test` reaches no cluster of the user's, whatever KUBECONFIG and the environment say.

#![allow(clippy::unwrap_used, reason = "a failure is a failing test")]

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Stands in for the user's cluster: everything in the environment leads to it.
struct Decoy {
    listener: TcpListener,
    home: TempDir,
}

impl Decoy {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let home = tempfile::tempdir().unwrap();
        let address = listener.local_addr().unwrap();
        let mine = fs::read_to_string(script("no-cluster.yaml")).unwrap();
        fs::create_dir(home.path().join(".kube")).unwrap();
        fs::write(home.path().join(".kube/config"), mine.replace("127.0.0.1:1", &address.to_string()))
            .unwrap();
        Self { listener, home }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Runs the program in a shell, after `first`, as a user whose whole environment leads to the decoy.
    fn run(&self, first: &str) -> Output {
        let config = self.home.path().join(".kube/config");
        let uninstall = "uninstall --deployment x --deployment-namespace y --timeout 2s";
        Command::new("bash")
            .args(["-euc", &format!("{first}\nexec \"$PROGRAM\" {uninstall}")])
            .env("PROGRAM", env!("CARGO_BIN_EXE_leadergroup"))
            .env("HOME", self.home.path())
            .env("KUBECONFIG", config)
            .env("LEADERGROUP_PROVIDER", "kubeconfig")
            .env("KUBERNETES_SERVICE_HOST", self.address().ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", self.address().port().to_string())
            .output()
            .unwrap()
    }

    fn was_called(&self) -> bool {
        match self.listener.accept() {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}

#[test]
fn the_tests_leave_the_users_cluster_alone() {
    let decoy = Decoy::new();
    let without = decoy.run("");
    assert!(!without.status.success() && decoy.was_called(), "the decoy works: {without:?}");

    let source = format!("source '{}'", script("no-cluster.sh").display());
    let with = decoy.run(&source);
    let text = String::from_utf8_lossy(&with.stderr);
    assert!(!with.status.success() && text.contains("Connection refused"), "{text}");
    assert!(!decoy.was_called(), "{text}");
    let cut = format!(
        "{source}\n[[ $LEADERGROUP_PROVIDER == own && -z ${{KUBERNETES_SERVICE_HOST:-}} ]] || exit 77"
    );
    assert_ne!(decoy.run(&cut).status.code(), Some(77));

    // Not even where the file that names no cluster is missing: neither ~/.kube/config nor the pod's cluster steps in.
    let missing = decoy.run(&format!("{source}\nKUBECONFIG=/nonexistent"));
    assert!(!missing.status.success() && !decoy.was_called(), "{missing:?}");
}

#[test]
fn the_whole_test_begins_with_that() {
    let text = fs::read_to_string(script("test.sh")).unwrap();
    let first = text.lines().position(|line| line == "source scripts/no-cluster.sh").unwrap();
    let work = text.lines().position(|line| line.starts_with("step ")).unwrap();
    assert!(first < work);
    assert!(!text.contains("KUBECONFIG=") && !text.contains("--server"), "nothing names another cluster");
}
