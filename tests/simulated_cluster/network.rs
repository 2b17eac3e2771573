//! The network between replicas and pods, and the programs in the pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use leadergroup::health::{Network, Stream};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    runtime::Handle,
    sync::watch,
    time::sleep,
};

use crate::{faults::Effects, hooks::Told};

/// How long a packet is on its way.
const LATENCY: Duration = Duration::from_millis(1);
const OK: &str = "200 OK";
const UNAVAILABLE: &str = "503 Service Unavailable";
/// The longest request of a probe.
const LONGEST: usize = 4 * 1024;

/// What a pod's program does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// It answers.
    #[default]
    Serves,
    /// It answers that it is unwell.
    Fails,
    /// It hangs: its kernel accepts connections, and nothing answers.
    Hangs,
    /// It does not run: connections are refused, and those that were open are closed.
    Ended,
}

/// The network. Clones are the same network.
#[derive(Clone)]
pub struct Pods(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pods: BTreeMap<IpAddr, Pod>,
    /// Nodes between which no packet passes, in their order, and the kind of the fault.
    cut: BTreeMap<(String, String), &'static str>,
    /// Nodes that have no power, or are frozen.
    dark: BTreeSet<String>,
    effects: Effects,
    /// Whether programs refuse some of the requests to their hooks.
    hooks_refuse: bool,
}

struct Pod {
    node: String,
    program: watch::Sender<Program>,
    /// What its agent says, if it has one.
    words: Option<Words>,
    /// What its program was told.
    told: Told,
}

/// What an agent says now.
#[derive(Clone, Debug)]
pub struct Words {
    /// Its promise, signed.
    pub answer: String,
    pub is_ready: bool,
}

impl Pods {
    /// A network without pods.
    pub fn new(effects: Effects) -> Self {
        Self(Arc::new(Mutex::new(State { effects, ..State::default() })))
    }

    /// A pod with this address runs on a node.
    pub fn add(&self, address: IpAddr, node: &str) {
        let program = watch::channel(Program::Serves).0;
        let pod = Pod { node: node.to_owned(), program, words: None, told: Told::default() };
        self.0.lock().pods.insert(address, pod);
    }

    /// The pod is gone. Connections to it get no answer any more.
    pub fn remove(&self, address: IpAddr) {
        self.0.lock().pods.remove(&address);
    }

    /// What the program in the pod does from now on.
    pub fn set(&self, address: IpAddr, program: Program) {
        if let Some(pod) = self.0.lock().pods.get_mut(&address) {
            if program == Program::Ended {
                pod.told.forget();
            }
            pod.program.send_replace(program);
        }
    }

    /// The agent in the pod says this from now on.
    pub fn say(&self, address: IpAddr, words: Words) {
        if let Some(pod) = self.0.lock().pods.get_mut(&address) {
            pod.words = Some(words);
        }
    }

    /// Whether programs refuse some of the requests to their hooks from now on.
    pub fn let_hooks_refuse(&self, refuse: bool) {
        self.0.lock().hooks_refuse = refuse;
    }

    /// What the program at this address was told.
    pub fn told<T>(&self, address: IpAddr, what: impl FnOnce(&Told) -> T) -> Option<T> {
        self.0.lock().pods.get(&address).map(|pod| what(&pod.told))
    }

    /// No packets pass between two nodes from now on, because of a fault of this kind. Returns whether they did before.
    pub fn cut(&self, one: &str, other: &str, kind: &'static str) -> bool {
        self.0.lock().cut.insert(ordered(one, other), kind).is_none()
    }

    /// Packets pass between two nodes again.
    pub fn join(&self, one: &str, other: &str) {
        self.0.lock().cut.remove(&ordered(one, other));
    }

    /// Whether a node runs from now on.
    pub fn power(&self, node: &str, is_on: bool) {
        let dark = &mut self.0.lock().dark;
        if is_on {
            dark.remove(node)
        } else {
            dark.insert(node.to_owned())
        };
    }

    /// Whether a node runs.
    pub fn has_power(&self, node: &str) -> bool {
        !self.0.lock().dark.contains(node)
    }

    /// The network as seen from a node. The programs run in `world`.
    pub fn from(&self, node: &str, world: &Handle) -> impl Network + use<> {
        Seen { pods: self.clone(), node: node.to_owned(), world: world.clone() }
    }

    fn reaches(&self, node: &str, address: IpAddr) -> bool {
        let state = self.0.lock();
        let Some(pod) = state.pods.get(&address) else { return false };
        if state.dark.contains(&pod.node) || state.dark.contains(node) {
            return false;
        }
        let cut = state.cut.get(&ordered(node, &pod.node));
        if let Some(kind) = cut {
            state.effects.note(kind);
        }
        cut.is_none()
    }

    /// The answer of a program that serves, to a request for this path. Only those to hooks have a body.
    fn answer(&self, address: IpAddr, path: &str, sent: &[u8]) -> (&'static str, String) {
        if !sent.is_empty() {
            let mut state = self.0.lock();
            let refuses = state.hooks_refuse;
            let accepts = state.pods.get_mut(&address).is_some_and(|pod| pod.told.hear(path, sent, refuses));
            return (if accepts { OK } else { UNAVAILABLE }, String::new());
        }
        let words = self.0.lock().pods.get(&address).and_then(|pod| pod.words.clone());
        match words {
            Some(words) if path == "/answer" => (OK, words.answer),
            Some(words) if !words.is_ready => (UNAVAILABLE, String::new()),
            _ => (OK, String::new()),
        }
    }

    fn program(&self, address: IpAddr) -> Option<watch::Receiver<Program>> {
        self.0.lock().pods.get(&address).map(|pod| pod.program.subscribe())
    }
}

fn ordered(one: &str, other: &str) -> (String, String) {
    let (one, other) = if one <= other { (one, other) } else { (other, one) };
    (one.to_owned(), other.to_owned())
}

struct Seen {
    pods: Pods,
    node: String,
    world: Handle,
}

impl Network for Seen {
    fn connect(&self, pod: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> {
        let (pods, node, world) = (self.pods.clone(), self.node.clone(), self.world.clone());
        async move {
            sleep(LATENCY).await;
            let address = pod.ip();
            let Some(program) = pods.program(address).filter(|_| pods.reaches(&node, address)) else {
                return pending().await;
            };
            if *program.borrow() == Program::Ended {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = duplex(LONGEST);
            let answer = {
                let pods = pods.clone();
                move |path: &str, sent: &[u8]| pods.answer(address, path, sent)
            };
            let reaches = move || pods.reaches(&node, address);
            world.spawn(serve(far, program, reaches, answer));
            Ok(Box::new(near) as Box<dyn Stream>)
        }
        .boxed()
    }
}

/// Serves a connection until the other side closes it, or the program ends.
async fn serve(
    mut stream: DuplexStream,
    mut program: watch::Receiver<Program>,
    reaches: impl Fn() -> bool + Send,
    answer: impl Fn(&str, &[u8]) -> (&'static str, String) + Send,
) {
    let mut request = Vec::new();
    loop {
        tokio::select! {
            biased;
            has_ended = ended(&mut program) => {
                if !has_ended || !reaches() {
                    // The pod is gone with its kernel, or its last words do not arrive.
                    until_closed(stream).await;
                }
                return;
            }
            read = stream.read_buf(&mut request) => {
                if !matches!(read, Ok(1..)) {
                    return;
                }
            }
        }
        let Some((path, sent)) = parsed(&request) else { continue };
        request.clear();
        sleep(LATENCY).await;
        let works = program.wait_for(|program| *program != Program::Hangs).await.map(|program| *program);
        let (status, body) = match works {
            Ok(Program::Serves) => answer(&path, &sent),
            Ok(Program::Fails) => (UNAVAILABLE, String::new()),
            Ok(Program::Hangs | Program::Ended) => continue,
            Err(_) => return until_closed(stream).await,
        };
        if !reaches() {
            return until_closed(stream).await;
        }
        let response = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The path and the body of a request, once it is complete.
fn parsed(request: &[u8]) -> Option<(String, Vec<u8>)> {
    let text = std::str::from_utf8(request).expect("requests are ASCII");
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    (body.len() >= length).then(|| (path, body.as_bytes()[..length].to_vec()))
}

/// Waits until the program has ended. Returns false if the pod is gone.
async fn ended(program: &mut watch::Receiver<Program>) -> bool {
    program.wait_for(|program| *program == Program::Ended).await.is_ok()
}

/// Answers nothing until the other side closes the connection.
async fn until_closed(mut stream: DuplexStream) {
    let mut ignored = [0; 64];
    while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
}
