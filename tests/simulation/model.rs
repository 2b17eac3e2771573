//! The whole: servers, replicas, requests that are on their way, and everything that may happen next.

use std::{collections::BTreeMap, fmt, time::Duration};

use leadergroup::{
    api::{Declaration, PodRef},
    election::{Effect, Outcome, Role},
};

use crate::{
    database::{Database, LockRow, Reply, Statement},
    replica::{Charge, Replica, Seen},
    server::{GroupObject, Health, Pod, Server},
    task::{End, Job, Next, Request, Response},
};

pub const NAMES: [&str; 3] = ["a", "b", "c"];
const NODES: [&str; 3] = ["node-1", "node-2", "node-2"];

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A replica's job gets its next request carried out and answered.
    Answer {
        replica: usize,
        task: usize,
    },
    /// The replica gives up waiting; the request, if it writes, is still on its way.
    TimeOut {
        replica: usize,
        task: usize,
    },
    /// A request takes effect whose sender has stopped waiting, or does no longer exist.
    Arrive {
        packet: usize,
    },
    WatchPod {
        replica: usize,
    },
    WatchGroup {
        replica: usize,
    },
    Probe {
        replica: usize,
        pod: usize,
    },
    /// Nothing fresh is known of a pod: the replica was paused, or could not send.
    Stale {
        replica: usize,
        pod: usize,
    },
    /// The clock reaches the time that the election asked to be woken at.
    Wake {
        replica: usize,
    },
    /// A heartbeat: registers, finds itself dead, or learns of a failover.
    Beat {
        replica: usize,
    },
    Claim {
        replica: usize,
    },
    /// The replica's session is marked dead: it was paused, or cut off from the database.
    MarkDead {
        replica: usize,
    },
    /// A normal exit, with the session closed; or a kill.
    Stop {
        replica: usize,
        clean: bool,
    },
    Start {
        replica: usize,
    },
    Ail {
        pod: usize,
        health: Health,
    },
    Crash {
        pod: usize,
    },
    Restarted {
        pod: usize,
    },
    Delete {
        pod: usize,
    },
    Gone {
        pod: usize,
    },
    Create {
        pod: usize,
    },
    /// Somebody takes the role label off, which is allowed.
    Unlabel {
        pod: usize,
    },
    /// The database goes back to an earlier state and another history; replicas follow one by one.
    Rewind {
        steps: usize,
    },
    /// The database is replaced by an empty one.
    Empty,
    /// A replica reaches the present database, no longer the one that was the primary before.
    Follow {
        replica: usize,
    },
    Pause {
        paused: bool,
    },
    DeleteGroup,
    CreateGroup,
    DatabaseDown,
    DatabaseUp,
}

/// How many faults of each kind a schedule may have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub time_outs: u32,
    pub stale: u32,
    pub wakes: u32,
    pub mark_dead: u32,
    pub stops: u32,
    pub ails: u32,
    pub crashes: u32,
    pub deletes: u32,
    pub unlabels: u32,
    pub rewinds: u32,
    pub empties: u32,
    pub pauses: u32,
    pub group: u32,
    pub outages: u32,
}

impl Faults {
    /// Everything, for as long as the schedule is.
    pub fn all() -> Self {
        let many = u32::MAX;
        Self {
            time_outs: many,
            stale: many,
            wakes: many,
            mark_dead: many,
            stops: many,
            ails: many,
            crashes: many,
            deletes: many,
            unlabels: many,
            rewinds: many,
            empties: many,
            pauses: many,
            group: many,
            outages: many,
        }
    }

    /// The pods stay well and the group as it is: whatever fails is a part of the system.
    pub fn components_only() -> Self {
        Self { ails: 0, crashes: 0, deletes: 0, unlabels: 0, group: 0, ..Self::all() }
    }

    fn left(&mut self, action: &Action) -> Option<&mut u32> {
        Some(match action {
            Action::TimeOut { .. } => &mut self.time_outs,
            Action::Stale { .. } => &mut self.stale,
            Action::Wake { .. } => &mut self.wakes,
            Action::MarkDead { .. } => &mut self.mark_dead,
            Action::Stop { .. } => &mut self.stops,
            Action::Ail { health: Health::Refusing | Health::Hung, .. } => &mut self.ails,
            Action::Crash { .. } => &mut self.crashes,
            Action::Delete { .. } => &mut self.deletes,
            Action::Unlabel { .. } => &mut self.unlabels,
            Action::Rewind { .. } => &mut self.rewinds,
            Action::Empty => &mut self.empties,
            Action::Pause { paused: true } => &mut self.pauses,
            Action::DeleteGroup => &mut self.group,
            Action::DatabaseDown => &mut self.outages,
            _ => return None,
        })
    }
}

/// A request on its way, with nobody waiting for its answer.
#[derive(Clone, Debug)]
pub struct Packet {
    database: usize,
    session: Option<u32>,
    request: Request,
}

#[derive(Clone)]
pub struct Model {
    pub now: Duration,
    pub server: Server,
    pub databases: Vec<Database>,
    /// Earlier states of the present database, the latest last.
    pub snapshots: Vec<Database>,
    pub replicas: Vec<Replica>,
    pub packets: Vec<Packet>,
    pub faults: Faults,
    pub database_down: bool,
    /// Watches and probes catch up by themselves before each action: for short schedules, seen through completely.
    pub prompt: bool,
    published: (BTreeMap<String, Pod>, Option<GroupObject>),
    counter: u32,
}

impl fmt::Debug for Model {
    /// For telling two states apart: without what is only a record of the past.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Server { pods, health, blemished, group, carried, .. } = &self.server;
        write!(
            f,
            "{pods:?}{health:?}{blemished:?}{group:?}{carried:?}{:?}{:?}",
            self.databases, self.replicas
        )?;
        write!(f, "{:?}{:?}{:?}{:?}", self.packets, self.faults, self.now, self.database_down)
    }
}

impl Model {
    /// Three pods, two replicas that know nothing yet, and a group that was just created.
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
            prompt: false,
            published: (BTreeMap::new(), None),
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
            node: NODES[pod],
        };
        self.server.pods.insert(name, new);
        self.server.health.insert(uid, Health::Well);
    }

    fn create_group(&mut self) {
        let (uid, version) = (self.count(), self.server.next_revision());
        let declared = Declaration::default();
        self.server.group = Some(GroupObject { uid, version, deleting: false, paused: false, declared });
        // Another group: what was carried out for the former one says nothing about the writes for this one.
        self.server.carried = 0;
    }

    /// Puts the present world onto the watches: a fresh replica lists everything.
    fn start(&mut self, replica: usize) {
        let database = self.databases.len() - 1;
        let mut fresh = Replica { alive: true, database, ..Replica::default() };
        fresh.pod_watch.extend(self.server.pods.values().cloned().map(Seen::Pod));
        fresh.group_watch.extend(self.server.group.clone().map(Some));
        self.replicas[replica] = fresh;
    }

    /// Whatever changed is put on the watches.
    fn publish(&mut self) {
        let (pods, group) = &mut self.published;
        let mut events = Vec::new();
        for (name, before) in pods.iter() {
            if self.server.pods.get(name).is_none_or(|now| now.pod.uid != before.pod.uid) {
                events.push(Seen::PodGone(before.pod.uid.clone()));
            }
        }
        for (name, now) in &self.server.pods {
            if pods.get(name) != Some(now) {
                events.push(Seen::Pod(now.clone()));
            }
        }
        let regrouped = *group != self.server.group;
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.pod_watch.extend(events.iter().cloned());
            if regrouped {
                replica.group_watch.push_back(self.server.group.clone());
            }
        }
        if !events.is_empty() {
            pods.clone_from(&self.server.pods);
        }
        if regrouped {
            group.clone_from(&self.server.group);
        }
    }

    /// Carries a request out on whichever server it is for. None: that server is down.
    fn serve(&mut self, database: usize, session: Option<u32>, request: &Request) -> Option<Response> {
        match request {
            Request::Server(call) => Some(Response::Server(self.server.serve(call))),
            Request::Database(_) if self.database_down => None,
            Request::Database(statement) => {
                let writes = request.writes();
                if writes && database + 1 == self.databases.len() {
                    self.snapshots.push(self.databases[database].clone());
                    // Older states than these are lost for good.
                    if self.snapshots.len() > 4 {
                        self.snapshots.remove(0);
                    }
                }
                let known = self.server.ledger.len();
                let reply =
                    self.databases[database].run(session.unwrap_or(0), statement, &mut self.server.ledger);
                let active = self.server.actives().first().map(|pod| pod.pod.uid.clone());
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
                None => Some(self.replicas[replica].tasks[task].failed()),
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
        let token = match (&task.job, &end) {
            (Job::Effect(_, Effect::Strip { token, .. }), End::Outcome(Outcome::Stripped)) => Some(*token),
            _ => None,
        };
        if let Some(token) = token
            && self.server.group.as_ref().is_some_and(|group| group.uid == task.group)
        {
            self.server.carried_out(token);
        }
        let seed = u128::from(self.count()) << 64;
        self.replicas[replica].finish(task, end, seed, self.now);
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

    /// The replica's process ends: its requests may still arrive.
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
        self.server.forgot = true;
        let latest = self.databases.iter().map(|database| database.present).max().unwrap_or(1);
        to.present = latest + 1;
        if !time_line {
            to.timeline = to.present;
        }
        self.databases.push(to);
        self.snapshots.clear();
    }

    fn uid(&self, pod: usize) -> Option<String> {
        self.server.pods.get(NAMES[pod]).map(|pod| pod.pod.uid.clone())
    }

    fn touch_pod(&mut self, pod: usize, change: impl FnOnce(&mut Pod)) {
        let version = self.server.next_revision();
        if let Some(pod) = self.server.pods.get_mut(NAMES[pod]) {
            change(pod);
            pod.version = version;
            self.server.blemished.push(pod.pod.uid.clone());
        }
    }

    /// Lets one thing happen.
    pub fn apply(&mut self, action: Action) {
        if let Some(left) = self.faults.left(&action) {
            *left = left.saturating_sub(1);
        }
        match action {
            Action::Answer { replica, task } => self.answer(replica, task),
            Action::TimeOut { replica, task } => {
                let packet = self.packet(replica, task);
                self.packets.extend(packet);
                let end = self.replicas[replica].tasks[task].failed();
                self.end(replica, task, end);
            }
            Action::Arrive { packet } => {
                let Packet { database, session, request } = self.packets.remove(packet);
                self.serve(database, session, &request);
            }
            Action::WatchPod { replica } => {
                let seen = self.replicas[replica].pod_watch.pop_front();
                seen.into_iter().for_each(|seen| self.replicas[replica].see_pod(seen));
            }
            Action::WatchGroup { replica } => {
                let seen = self.replicas[replica].group_watch.pop_front();
                seen.into_iter().for_each(|seen| self.replicas[replica].see_group(seen));
            }
            Action::Probe { replica, pod } => {
                if let Some(uid) = self.uid(pod) {
                    let health = self.server.health.get(&uid).copied();
                    self.replicas[replica].probe(&uid, health);
                }
            }
            Action::Stale { replica, pod } => {
                if let Some(uid) = self.uid(pod) {
                    self.replicas[replica].probe(&uid, None);
                }
            }
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
            Action::DeleteGroup | Action::CreateGroup | Action::Pause { .. } => self.regroup(action),
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
        if self.prompt {
            self.catch_up();
        }
        self.look();
    }

    fn look(&mut self) {
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.look(self.now);
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
            _ => group.deleting = true,
        }
    }

    fn happen_to_pod(&mut self, action: Action) {
        match action {
            Action::Ail { pod, health } => {
                if let Some(uid) = self.uid(pod) {
                    if health != Health::Well {
                        self.server.blemished.push(uid.clone());
                    }
                    self.server.health.insert(uid, health);
                }
            }
            Action::Crash { pod } => self.touch_pod(pod, |pod| pod.crashed = true),
            Action::Restarted { pod } => self.touch_pod(pod, |pod| pod.crashed = false),
            Action::Delete { pod } => self.touch_pod(pod, |pod| pod.deleting = true),
            Action::Unlabel { pod } => self.touch_pod(pod, |pod| pod.role = Role::None),
            Action::Gone { pod } => {
                self.server.next_revision();
                if let Some(gone) = self.server.pods.remove(NAMES[pod]) {
                    self.server.health.remove(&gone.pod.uid);
                }
            }
            Action::Create { pod } => self.create(pod),
            _ => unreachable!("{action:?} happens to no pod"),
        }
    }

    /// All watches and probes show the present.
    pub fn catch_up(&mut self) {
        for replica in 0..self.replicas.len() {
            self.catch_up_one(replica);
        }
    }

    pub fn catch_up_one(&mut self, replica: usize) {
        while let Some(seen) = self.replicas[replica].pod_watch.pop_front() {
            self.replicas[replica].see_pod(seen);
        }
        while let Some(seen) = self.replicas[replica].group_watch.pop_front() {
            self.replicas[replica].see_group(seen);
        }
        for uid in self.replicas[replica].pods.keys().cloned().collect::<Vec<_>>() {
            let health = self.server.health.get(&uid).copied();
            self.replicas[replica].probe(&uid, health);
        }
        self.look();
    }

    /// Everything that may happen now.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for (index, replica) in self.replicas.iter().enumerate() {
            self.actions_of(index, replica, &mut actions);
        }
        actions.extend((0..self.packets.len()).map(|packet| Action::Arrive { packet }));
        for pod in 0..NAMES.len() {
            self.fates_of(pod, &mut actions);
        }
        let group = match &self.server.group {
            None => Action::CreateGroup,
            Some(_) if self.database_down => Action::DatabaseUp,
            Some(_) => Action::DatabaseDown,
        };
        actions.push(group);
        if let Some(group) = self.server.group.as_ref().filter(|group| !group.deleting) {
            actions.extend([Action::DeleteGroup, Action::Pause { paused: !group.paused }]);
        }
        if self.databases.len() < 4 {
            actions.extend((0..self.snapshots.len()).map(|steps| Action::Rewind { steps }));
            actions.push(Action::Empty);
        }
        let mut faults = self.faults;
        actions.retain(|action| faults.left(action).is_none_or(|left| *left > 0));
        actions
    }

    fn actions_of(&self, index: usize, replica: &Replica, actions: &mut Vec<Action>) {
        if !replica.alive {
            return actions.push(Action::Start { replica: index });
        }
        for task in 0..replica.tasks.len() {
            actions.push(Action::Answer { replica: index, task });
            actions.push(Action::TimeOut { replica: index, task });
        }
        if !replica.pod_watch.is_empty() {
            actions.push(Action::WatchPod { replica: index });
        }
        if !replica.group_watch.is_empty() {
            actions.push(Action::WatchGroup { replica: index });
        }
        for (pod, name) in NAMES.iter().enumerate() {
            let Some(found) = self.server.pods.get(*name) else { continue };
            let uid = &found.pod.uid;
            if !replica.pods.contains_key(uid) {
                continue;
            }
            let mut shadow = Replica::default();
            shadow.probe(uid, self.server.health.get(uid).copied());
            let known = replica.evidence.get(uid);
            if known != shadow.evidence.get(uid) {
                actions.push(Action::Probe { replica: index, pod });
            }
            if known.is_some_and(|known| *known != leadergroup::election::Standing::Unproven) {
                actions.push(Action::Stale { replica: index, pod });
            }
        }
        if replica.entry.as_ref().is_some_and(|entry| entry.machine.wake().is_some()) {
            actions.push(Action::Wake { replica: index });
        }
        let database = &self.databases[replica.database];
        let dead = replica.session.is_none_or(|session| !database.lives(session));
        if !self.database_down && (dead || replica.doubt) {
            actions.push(Action::Beat { replica: index });
        }
        if !dead {
            actions.push(Action::MarkDead { replica: index });
        }
        if replica.session.is_some()
            && replica.entry.as_ref().is_some_and(|entry| entry.charge == Charge::Open && !entry.unclaimable)
            && self.claimable(replica)
        {
            actions.push(Action::Claim { replica: index });
        }
        if replica.database + 1 < self.databases.len() {
            actions.push(Action::Follow { replica: index });
        }
        actions.extend([true, false].map(|clean| Action::Stop { replica: index, clean }));
    }

    /// Whether a claim could do anything: others are only repetitions.
    fn claimable(&self, replica: &Replica) -> bool {
        let database = &self.databases[replica.database];
        let group = replica.entry.as_ref().map(|entry| entry.object.uid);
        let free = |row: &LockRow| {
            row.session.is_none_or(|other| replica.session == Some(other) || !database.lives(other))
        };
        let deleting = replica.entry.as_ref().is_some_and(|entry| entry.object.deleting);
        database
            .row
            .as_ref()
            .is_none_or(|row| free(row) && (deleting || !(row.tombstone && Some(row.group) == group)))
    }

    fn fates_of(&self, pod: usize, actions: &mut Vec<Action>) {
        let Some(found) = self.server.pods.get(NAMES[pod]) else {
            return actions.push(Action::Create { pod });
        };
        match self.server.health.get(&found.pod.uid) {
            Some(Health::Well) => {
                actions.extend([Health::Refusing, Health::Hung].map(|health| Action::Ail { pod, health }))
            }
            _ => actions.push(Action::Ail { pod, health: Health::Well }),
        }
        actions.push(if found.crashed { Action::Restarted { pod } } else { Action::Crash { pod } });
        actions.push(if found.deleting { Action::Gone { pod } } else { Action::Delete { pod } });
        if found.role == Role::Active {
            actions.push(Action::Unlabel { pod });
        }
    }

    /// The row that counts, as a replica in charge would read it.
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
