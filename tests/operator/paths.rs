//! Pods that answer some replicas and not others, as if a path of the network were cut.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, UdpSocket},
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::kubelet::report;

/// How often a socket is looked for. The kernel may leave sockets out of its table while others come and go.
const ATTEMPTS: usize = 20;

/// A pod whose probe is answered here.
pub(crate) struct Answering {
    /// The processes that get no answer.
    unheard: Arc<Mutex<BTreeSet<u32>>>,
    task: AbortHandle,
}

impl Answering {
    /// Creates a pod on this machine's own address, because loopback is never probed.
    pub(crate) async fn start(pods: &Api<Pod>, name: &str) -> Self {
        // Nothing is sent. This asks for the address that packets to elsewhere would be sent from.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("198.18.0.1:9").expect("a machine with a default route");
        let listener = TcpListener::bind((socket.local_addr().unwrap().ip(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": { "nodeName": format!("node-of-{name}"), "containers": [{
                "name": "main", "image": "none", "readinessProbe": { "httpGet": { "port": address.port() } },
            }] },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let ip = address.ip();
        let status = json!({ "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } });
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        report(pods, name, "True").await;
        let unheard = Arc::new(Mutex::new(BTreeSet::new()));
        let task = tokio::spawn(answer(listener, unheard.clone()));
        Self { unheard, task: task.abort_handle() }
    }

    /// This process gets no answer from now on.
    pub(crate) fn cut(&self, process: u32) {
        self.unheard.lock().unwrap().insert(process);
    }

    /// Every process is answered again.
    pub(crate) fn mend(&self) {
        self.unheard.lock().unwrap().clear();
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(listener: TcpListener, unheard: Arc<Mutex<BTreeSet<u32>>>) {
    while let Ok((stream, from)) = listener.accept().await {
        // The other side has closed the connection already if there is no such socket.
        let Some(inode) = (0..ATTEMPTS).find_map(|_| inode_of(from)) else { continue };
        let cut = unheard.lock().unwrap().iter().any(|process| has_open(*process, inode));
        tokio::spawn(serve(stream, cut));
    }
}

/// Answers one request, or none until the other side closes.
async fn serve(mut stream: TcpStream, cut: bool) {
    let mut request = [0; 1024];
    while matches!(stream.read(&mut request).await, Ok(1..)) {
        if !cut {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    }
}

/// The socket at the other side of a connection from this address.
fn inode_of(from: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(from) = from else { return None };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(from.ip().octets()), from.port());
    let connections = fs::read_to_string("/proc/net/tcp").unwrap();
    let connection = connections.lines().find(|line| line.split_whitespace().nth(1) == Some(&local))?;
    let inode = connection.split_whitespace().nth(9)?.parse().ok()?;
    // A connection that is closed has none.
    (inode != 0).then_some(inode)
}

fn has_open(process: u32, inode: u64) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.filter_map(|file| Some(fs::metadata(file.ok()?.path()).ok()?.ino())).any(|file| file == inode)
}
