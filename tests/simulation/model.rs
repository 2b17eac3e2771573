//! The complete model: servers, replicas, requests in flight, and the effect of each action.

use std::{fmt, time::Duration};

use leadergroup::{
    api::{Declaration, DeletionPolicy, PodRef, Role, Verdict},
    election::{Effect, Outcome, Ticket},
};

use crate::{
    action::{Action, Faults},
    database::{Database, Reply, Statement},
    published::Published,
    replica::Replica,
    server::{GroupObject, Health, Pod, Server},
    task::{End, Job, Next, Request, Response, Silence, Task},
};

pub const NAMES: [&str; 3] = ["a", "b", "c"];
pub const NODES: [&str; 3] = ["node-1", "node-2", "node-2"];
/// The `election.delay` of a group that has one.
const DELAY: Duration = Duration::from_secs(3);
/// The `failbackDelay` of all groups.
const FAILBACK_DELAY: Duration = Duration::from_secs(2);

/// A request in flight whose sender has stopped waiting.
#[derive(Clone, Debug)]
pub struct Packet {
    database: usize,
    session: Option<u32>,
    request: Request,
}

/// What is up to date before each action. In exhaustive schedules not everything may be late, or there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Nothing,
    /// Probes and the group, but not the pods.
    AllButPods,
    AllButGroup,
    AllButProbes,
    Everything,
}

#[derive(Clone)]
pub struct Model {
    pub now: Duration,
    pub server: Server,
    pub databases: Vec<Database>,
    /// Earlier states of the current database, the latest last.
    pub snapshots: Vec<Database>,
    pub replicas: Vec<Replica>,
    pub packets: Vec<Packet>,
    pub faults: Faults,
    pub database_down: bool,
    pub freshness: Freshness,
    pub published: Published,
    counter: u32,
}

impl fmt::Debug for Model {
    /// Identifies a state: what the next actions and the checks depend on. Each field is named here, so that a new one
    /// is left out only on purpose.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            now,
            server,
            databases,
            snapshots,
            replicas,
            packets,
            faults,
            database_down,
            published,
            // `freshness` never changes during an exploration, and names made from `counter` are only compared.
            freshness: _,
            counter: _,
        } = self;
        let Server {
            revision,
            pods,
            health,
            refusing,
            cut,
            blemished,
            bad_until,
            released,
            fulfilled,
            meddled,
            kept,
            group,
            ledger,
            declared,
            forgot,
            divided,
            // A count for tests; and what ends the exploration.
            promotions: _,
            violation: _,
        } = server;
        write!(f, "{pods:?}{health:?}{refusing:?}{cut:?}{blemished:?}{bad_until:?}{released:?}")?;
        write!(f, "{fulfilled:?}{meddled:?}{kept:?}{group:?}{ledger:?}{declared:?}{forgot}{divided}")?;
        write!(f, "{now:?}{databases:?}{replicas:?}{packets:?}{faults:?}{database_down}")?;
        // Evidence that is seen from now on counts from this revision.
        write!(f, "{revision}")?;
        if faults.relists > 0 {
            write!(f, "{published:?}")?;
        }
        if faults.rewinds > 0 {
            write!(f, "{snapshots:?}")?;
        }
        Ok(())
    }
}

impl Model {
    /// Three pods, two new replicas, and a group that was just created.
    pub fn new(faults: Faults) -> Self {
        let mut model = Self {
            now: Duration::from_secs(100),
            server: Server::default(),
            databases: vec![Database { present: 1, timeline: 1, ..Database::default() }],
            snapshots: Vec::new(),
            replicas: vec![Replica::default(), Replica::default()],
            packets: Vec::new(),
            faults,
            database_down: false,
            freshness: Freshness::Nothing,
            published: Published::default(),
            counter: 0,
        };
        for pod in 0..NAMES.len() {
            model.create(pod);
        }
        model.create_group();
        (0..model.replicas.len()).for_each(|replica| model.start(replica));
        model.publish();
        model
    }

    fn count(&mut self) -> u32 {
        self.counter += 1;
        self.counter
    }

    fn create(&mut self, pod: usize) {
        let name = NAMES[pod].to_owned();
        let uid = format!("{name}{}", self.count());
        let version = self.server.next_revision();
        let new = Pod {
            pod: PodRef { name: name.clone(), uid: uid.clone() },
            version,
            role: Role::None,
            stamp: None,
            deleting: false,
            crashed: false,
            restarts: 0,
            selected: true,
            leaving: false,
            node: NODES[pod],
            created: version,
        };
        self.server.pods.insert(name, new);
        self.server.health.insert(uid, Health::Well);
    }

    fn create_group(&mut self) {
        let (uid, version) = (self.count(), self.server.next_revision());
        let declared = Declaration::default();
        self.server.group = Some(GroupObject {
            uid,
            version,
            deleting: false,
            paused: false,
            delay: Duration::ZERO,
            failback: None,
            deletion_policy: DeletionPolicy::default(),
            contested: false,
            requested: None,
            declared,
        });
    }

    /// Shows the current world to a new replica, which lists everything.
    fn start(&mut self, replica: usize) {
        let database = self.databases.len() - 1;
        self.replicas[replica] = Replica { alive: true, database, ..Replica::default() };
        self.publish();
        self.replicas[replica].pod_watch = self.published.pods_since(0);
        self.replicas[replica].group_watch = self.published.groups_since(0);
    }

    /// Adds changes to the watches.
    fn publish(&mut self) {
        let Some((pods, group)) = self.published.add(&self.server.pods, self.server.group.as_ref()) else {
            return;
        };
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.pod_watch.extend(pods.iter().cloned());
            replica.group_watch.extend(group.clone());
        }
    }

    /// Carries out a request on its server. None if that server is down.
    fn serve(&mut self, database: usize, session: Option<u32>, request: &Request) -> Option<Response> {
        match request {
            Request::Server(call) => Some(Response::Server(self.server.serve(call))),
            Request::Database(_) if self.database_down => None,
            Request::Database(statement) => {
                let writes = request.writes();
                if writes && database + 1 == self.databases.len() {
                    self.snapshots.push(self.databases[database].clone());
                    // Keep only the latest states.
                    if self.snapshots.len() > 4 {
                        self.snapshots.remove(0);
                    }
                }
                let known = self.server.ledger.len();
                let reply =
                    self.databases[database].run(session.unwrap_or(0), statement, &mut self.server.ledger);
                let Server { meddled, .. } = &self.server;
                let mut actives = self.server.actives().into_iter();
                let active =
                    actives.find(|pod| !meddled.contains(&pod.pod.uid)).map(|pod| pod.pod.uid.clone());
                if let Some(granted) = self.server.ledger.get_mut(known) {
                    granted.active = active;
                }
                Some(Response::Database(reply))
            }
        }
    }

    fn answer(&mut self, replica: usize, task: usize) {
        let asked = &self.replicas[replica].tasks[task];
        let (database, session) = (self.replicas[replica].database, asked.session);
        let end = match asked.next() {
            Next::End(end) => Some(end),
            Next::Ask(request) => match self.serve(database, session, &request) {
                None => Some(self.replicas[replica].tasks[task].unanswered(Silence::Unsent)),
                Some(response) => {
                    let task = &mut self.replicas[replica].tasks[task];
                    let end = task.absorb(response);
                    end.or_else(|| match task.next() {
                        // The end needs no further request.
                        Next::End(end) => Some(end),
                        Next::Ask(_) => None,
                    })
                }
            },
        };
        if let Some(end) = end {
            self.end(replica, task, end);
        }
    }

    fn end(&mut self, replica: usize, task: usize, end: End) {
        let task = self.replicas[replica].tasks.remove(task);
        if let (Job::Effect(ticket, Effect::Strip { .. }), End::Outcome(Outcome::Failed)) = (&task.job, &end)
        {
            self.abandon(replica, *ticket);
        }
        let count = u128::from(self.count());
        let seed = count << 64 | count << 32;
        self.replicas[replica].finish(task, end, seed, (self.now, self.server.revision));
    }

    /// The first failure of a strip ends it, and what was sent for the other pods may still arrive.
    fn abandon(&mut self, replica: usize, ticket: Ticket) {
        let is_part = |task: &Task| task.ticket() == Some(ticket);
        while let Some(other) = self.replicas[replica].tasks.iter().position(is_part) {
            let packet = self.packet(replica, other);
            self.packets.extend(packet);
            self.replicas[replica].tasks.remove(other);
        }
    }

    fn packet(&mut self, replica: usize, task: usize) -> Option<Packet> {
        let Replica { database, tasks, .. } = &self.replicas[replica];
        match tasks[task].next() {
            Next::Ask(request) if request.writes() => {
                Some(Packet { database: *database, session: tasks[task].session, request })
            }
            _ => None,
        }
    }

    /// Ends the replica's process. Its requests may still arrive.
    fn stop(&mut self, replica: usize, clean: bool) {
        for task in 0..self.replicas[replica].tasks.len() {
            let packet = self.packet(replica, task);
            self.packets.extend(packet);
        }
        let Replica { session, database, .. } = self.replicas[replica];
        if let (true, false, Some(session)) = (clean, self.database_down, session)
            && let Some(dead) = self.databases[database].sessions.get_mut(&session)
        {
            *dead = true;
        }
        self.replicas[replica] = Replica::default();
    }

    fn beat(&mut self, replica: usize) {
        let Replica { database, session, doubt, .. } = self.replicas[replica];
        let now = self.now;
        match session {
            Some(session) if self.databases[database].lives(session) => {
                if doubt {
                    self.replicas[replica].doubt(now);
                }
            }
            Some(_) => self.replicas[replica].lose_session(now),
            None => {
                let session = self.count();
                self.databases[database].sessions.insert(session, false);
                self.replicas[replica].session = Some(session);
            }
        }
    }

    fn failover(&mut self, mut to: Database, time_line: bool) {
        (self.server.forgot, self.server.divided) = (true, true);
        let latest = self.databases.iter().map(|database| database.present).max().unwrap_or(1);
        to.present = latest + 1;
        if !time_line {
            to.timeline = to.present;
        }
        self.databases.push(to);
        self.snapshots.clear();
    }

    pub fn uid(&self, pod: usize) -> Option<String> {
        self.server.pods.get(NAMES[pod]).map(|pod| pod.pod.uid.clone())
    }

    pub fn touch_pod(&mut self, pod: usize, change: impl FnOnce(&mut Pod)) {
        let version = self.server.next_revision();
        if let Some(pod) = self.server.pods.get_mut(NAMES[pod]) {
            change(pod);
            pod.version = version;
            self.server.blemished.insert(pod.pod.uid.clone());
        }
    }

    /// This is no evidence against the pod.
    fn cordon(&mut self, pod: usize, leaving: bool) {
        let version = self.server.next_revision();
        if let Some(pod) = self.server.pods.get_mut(NAMES[pod]) {
            (pod.leaving, pod.version) = (leaving, version);
        }
    }

    /// Performs one action.
    pub fn apply(&mut self, action: Action) {
        if let Some(left) = self.faults.left(&action) {
            *left = left.saturating_sub(1);
        }
        match action {
            Action::Answer { replica, task } => self.answer(replica, task),
            Action::TimeOut { replica, task } => {
                let packet = self.packet(replica, task);
                self.packets.extend(packet);
                let end = self.replicas[replica].tasks[task].unanswered(Silence::Lost);
                self.end(replica, task, end);
            }
            Action::Fail { replica, task } => {
                let end = self.replicas[replica].tasks[task].unanswered(Silence::Unsent);
                self.end(replica, task, end);
            }
            Action::Arrive { packet } => {
                let Packet { database, session, request } = self.packets.remove(packet);
                self.serve(database, session, &request);
            }
            Action::WatchPod { replica } => {
                if let Some(seen) = self.replicas[replica].pod_watch.pop_front() {
                    self.replicas[replica].see_pod(seen);
                }
            }
            Action::WatchGroup { replica } => {
                if let Some(seen) = self.replicas[replica].group_watch.pop_front() {
                    self.replicas[replica].see_group(seen);
                }
            }
            Action::RelistPods { replica, back } => {
                self.replicas[replica].pod_watch = self.published.pods_since(back);
            }
            Action::RelistGroup { replica, back } => {
                self.replicas[replica].group_watch = self.published.groups_since(back);
            }
            Action::Probe { replica, pod } => {
                if let Some(uid) = self.uid(pod) {
                    self.probe(replica, &uid);
                }
            }
            Action::Stale { replica, pod } => {
                if let Some(uid) = self.uid(pod) {
                    self.replicas[replica].evidence.insert(uid, Verdict::Unknown);
                }
            }
            Action::CutPath { replica, pod } => {
                self.server.cut = self.uid(pod).map(|uid| (replica, uid));
            }
            Action::MendPath => self.server.cut = None,
            Action::HandOver { replica } => self.hand_over(replica),
            Action::Wake { replica } => {
                let wake = self.replicas[replica].entry.as_ref().and_then(|entry| entry.machine.wake());
                self.now = self.now.max(wake.unwrap_or_default());
            }
            Action::Beat { replica } => self.beat(replica),
            Action::Claim { replica } => self.replicas[replica].begin_claim(),
            Action::MarkDead { replica } => {
                let Replica { session, database, .. } = self.replicas[replica];
                session.map(|session| self.databases[database].sessions.insert(session, true));
            }
            Action::Stop { replica, clean } => self.stop(replica, clean),
            Action::Start { replica } => self.start(replica),
            Action::DeleteGroup
            | Action::CreateGroup
            | Action::Pause { .. }
            | Action::Request
            | Action::Delay { .. }
            | Action::FailBack { .. }
            | Action::Keep { .. }
            | Action::Contest { .. } => self.regroup(action),
            Action::Rival { pod } => self.rival(pod),
            Action::Rewind { steps } => {
                let to = self.snapshots[self.snapshots.len() - 1 - steps].clone();
                self.failover(to, true);
            }
            Action::Empty => self.failover(Database::default(), false),
            Action::Follow { replica } => {
                self.replicas[replica].database = self.databases.len() - 1;
                self.replicas[replica].doubt = true;
            }
            Action::DatabaseDown | Action::DatabaseUp => {
                self.database_down = action == Action::DatabaseDown;
                for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
                    replica.lock_away = self.database_down;
                }
            }
            _ => self.happen_to_pod(action),
        }
        self.publish();
        for replica in 0..self.replicas.len() {
            self.refresh(replica);
        }
        self.look();
        self.acquit();
    }

    fn look(&mut self) {
        self.server.note_bad_pods();
        self.note_unheard_pod();
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.look(self.now, self.server.revision);
            if let Some(holder) = replica.released.take() {
                self.server.released.insert(holder);
            }
            if let Some((holder, since)) = replica.replaced.take() {
                self.server.judge_evidence(&holder, since);
            }
            if let Some(violation) = replica.violation.take() {
                self.server.violation.get_or_insert(violation);
            }
        }
    }

    fn regroup(&mut self, action: Action) {
        if action == Action::CreateGroup {
            return self.create_group();
        }
        let version = self.server.next_revision();
        let Some(group) = &mut self.server.group else { return };
        group.version = version;
        match action {
            Action::Pause { paused } => group.paused = paused,
            Action::Request => group.requested = Some(version.to_string()),
            Action::Delay { on } => group.delay = if on { DELAY } else { Duration::ZERO },
            Action::FailBack { on } => group.failback = on.then_some(FAILBACK_DELAY),
            Action::Keep { keep } => {
                group.deletion_policy =
                    if keep { DeletionPolicy::Retain } else { DeletionPolicy::RemoveLabels }
            }
            Action::Contest { contested } => group.contested = contested,
            _ => group.deleting = true,
        }
    }

    fn happen_to_pod(&mut self, action: Action) {
        match action {
            Action::Ail { pod, health } => {
                if let Some(uid) = self.uid(pod) {
                    if health != Health::Well {
                        self.server.blemished.insert(uid.clone());
                    }
                    self.server.health.insert(uid, health);
                }
            }
            Action::Crash { pod } => self.touch_pod(pod, |pod| pod.crashed = true),
            Action::Restarted { pod } => self.touch_pod(pod, |pod| {
                pod.crashed = false;
                pod.restarts += 1;
            }),
            Action::Delete { pod } => self.touch_pod(pod, |pod| pod.deleting = true),
            Action::Cordon { pod } => self.cordon(pod, true),
            Action::Uncordon { pod } => self.cordon(pod, false),
            Action::Leave { pod } => self.touch_pod(pod, |pod| pod.selected = false),
            Action::Rejoin { pod } => self.rejoin(pod),
            Action::Relabel { pod, role } => self.relabel(pod, role),
            Action::Restamp { pod, forgery } => self.restamp(pod, forgery),
            Action::Unlabel { pod } => self.relabel(pod, Role::None),
            Action::Refuse { pod, refusal } => {
                self.server.refusing = self.uid(pod).map(|uid| (uid, refusal));
            }
            Action::Permit => self.server.refusing = None,
            Action::Gone { pod } => {
                self.server.next_revision();
                if let Some(gone) = self.server.pods.remove(NAMES[pod]) {
                    self.server.health.remove(&gone.pod.uid);
                    self.server.refusing.take_if(|(uid, _)| *uid == gone.pod.uid);
                    self.server.cut.take_if(|(_, uid)| *uid == gone.pod.uid);
                }
            }
            Action::Create { pod } => self.create(pod),
            _ => unreachable!("{action:?} happens to no pod"),
        }
    }

    /// What is never late is shown to a replica.
    fn refresh(&mut self, replica: usize) {
        match self.freshness {
            Freshness::Nothing => {}
            Freshness::AllButPods => {
                self.see_group(replica);
                self.see_probes(replica);
            }
            Freshness::AllButGroup => {
                self.see_pods(replica);
                self.see_probes(replica);
            }
            Freshness::AllButProbes => {
                self.see_pods(replica);
                self.see_group(replica);
            }
            Freshness::Everything => self.catch_up_one(replica),
        }
    }

    /// Brings all watches and probes of a replica up to date.
    pub fn catch_up_one(&mut self, replica: usize) {
        self.see_pods(replica);
        self.see_group(replica);
        self.see_probes(replica);
    }

    fn see_pods(&mut self, replica: usize) {
        while let Some(seen) = self.replicas[replica].pod_watch.pop_front() {
            self.replicas[replica].see_pod(seen);
        }
    }

    fn see_group(&mut self, replica: usize) {
        while let Some(seen) = self.replicas[replica].group_watch.pop_front() {
            self.replicas[replica].see_group(seen);
        }
    }

    fn see_probes(&mut self, replica: usize) {
        // A restart is seen before the new container's first success.
        self.look();
        for uid in self.replicas[replica].pods.keys().cloned().collect::<Vec<_>>() {
            self.probe(replica, &uid);
        }
        self.look();
    }

    /// The current row, as its owner would read it.
    pub fn row(&mut self) -> Option<leadergroup::election::Row> {
        let group = self.server.group.as_ref()?.uid;
        let database = self.databases.last_mut()?;
        let session = database.row.as_ref()?.session?;
        match database.run(session, &Statement::Row { group }, &mut Vec::new()) {
            Reply::Row(row) => Some(row),
            _ => None,
        }
    }
}
