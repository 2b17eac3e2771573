//! Pods that answer some replicas and not others, as if a path of the network were cut.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use rustix::{
    net::getsockname,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

use crate::kubelet::report;

/// A pod whose probe is answered here.
pub(crate) struct Answering {
    /// The processes that get no answer.
    unheard: Arc<Mutex<BTreeSet<u32>>>,
    task: AbortHandle,
}

impl Answering {
    /// Creates a pod on this machine's own address, because loopback is never probed.
    pub(crate) async fn start(pods: &Api<Pod>, name: &str) -> Self {
        // Nothing is sent. This asks for the address that packets to elsewhere would be sent from. To a network of the
        // test cluster, that would be the cluster's address of this machine, which goes with the cluster.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect("203.0.113.1:9").expect("a machine with a default route");
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
        let cut = unheard.lock().unwrap().iter().any(|process| is_of(*process, from));
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

/// Whether the process has a connection from this address. Its sockets are asked one by one: the kernel's table of
/// connections may leave some out while others come and go, and takes milliseconds to read.
fn is_of(process: u32, from: SocketAddr) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("the id of a child");
    let Ok(pidfd) = pidfd_open(process, PidfdFlags::empty()) else { return false };
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let mut numbers = files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok());
    numbers.any(|number| {
        let file = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
        file.and_then(getsockname).is_ok_and(|address| SocketAddr::try_from(address) == Ok(from))
    })
}
