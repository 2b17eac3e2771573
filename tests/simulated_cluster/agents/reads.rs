//! How an agent reads its `LeaderGroup`: quorum reads by the agent's own schedule, through the same API server and with
//! the same fates as all other requests.

use std::{mem, sync::Arc, time::Duration};

use http::Request;
use kube::Client;
use leadergroup_agent::{
    moment::Moment,
    network::{BREATH, Group, LastRead, Read, Schedule},
};
use leadergroup_e2e::random::Random;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{
    api_server::{ApiServer, Kind},
    cluster::NAMESPACE,
};

/// How long a change takes to reach the watch of an agent.
const WATCHED: usize = 60;

/// The way of agents to the API server.
#[derive(Clone)]
pub struct Access {
    api: ApiServer,
    client: Client,
}

impl Access {
    pub fn new(api: &ApiServer) -> Self {
        Self { api: api.clone(), client: api.client("agents") }
    }
}

/// What was read, or `None` if that failed.
type Answer = Option<Read>;

/// A read without an answer so far.
struct Asked {
    number: u64,
    sent_at: Moment,
    /// When the agent gives it up.
    until: Duration,
}

/// The network process, as far as it reads.
pub struct Reader {
    access: Access,
    group: String,
    usual: Duration,
    schedule: Schedule,
    numbers: u64,
    asked: Option<Asked>,
    answers: Arc<Mutex<Vec<(u64, Answer)>>>,
    next: Duration,
    /// The earliest time of the next read, whatever changes.
    breath: Duration,
    /// The version that the watch has shown, and when it shows a later one.
    watched: (u64, Option<Duration>),
    last: Option<LastRead>,
}

impl Reader {
    pub fn new(group: &str, access: &Access, usual: Duration) -> Self {
        Self {
            access: access.clone(),
            group: group.to_owned(),
            usual,
            schedule: Schedule::new(usual),
            numbers: 0,
            asked: None,
            answers: Arc::default(),
            next: Duration::ZERO,
            breath: Duration::ZERO,
            watched: (0, None),
            last: None,
        }
    }

    /// The process has ended, and another one takes its place.
    pub fn start_again(&mut self, now: Duration) {
        self.numbers += 1;
        (self.asked, self.last) = (None, None);
        (self.schedule, self.next, self.breath) = (Schedule::new(self.usual), now, now);
        self.answers.lock().clear();
    }

    /// The last read that was answered.
    pub fn last(&self) -> Option<&LastRead> {
        self.last.as_ref()
    }

    /// Sends a read if it is time to, and returns one that was answered.
    pub fn turn(
        &mut self,
        shown: Moment,
        reaches: bool,
        now: Duration,
        random: &mut Random,
    ) -> Option<LastRead> {
        let answers = mem::take(&mut *self.answers.lock());
        if let Some(asked) = &self.asked {
            let own = answers.into_iter().find(|(number, _)| *number == asked.number);
            match own.map(|(_, answer)| answer).filter(|_| reaches) {
                Some(Some(read)) => return Some(self.answered(read, now)),
                Some(None) => self.failed(now),
                None if now >= asked.until => self.failed(now),
                None => {}
            }
        }
        if reaches {
            self.watch(now, random);
        }
        let is_changed = self.watched.1.is_some_and(|at| now >= at);
        if self.asked.is_none() && now >= self.breath && (is_changed || now >= self.next) {
            if is_changed {
                self.watched.1 = None;
            }
            self.send(shown, reaches, now);
        }
        None
    }

    fn answered(&mut self, Read { declared: shown, problem, .. }: Read, now: Duration) -> LastRead {
        let sent_at = self.asked.take().map(|asked| asked.sent_at).unwrap_or_default();
        (self.next, self.breath) = (now + self.schedule.answered(shown.as_ref()), now + BREATH);
        let read = LastRead { sent_at, shown, problem };
        self.last = Some(read.clone());
        read
    }

    fn failed(&mut self, now: Duration) {
        self.asked = None;
        (self.next, self.breath) = (now + self.schedule.failed(), now + BREATH);
    }

    fn send(&mut self, sent_at: Moment, reaches: bool, now: Duration) {
        self.numbers += 1;
        let (number, limit) = (self.numbers, self.schedule.limit());
        self.asked = Some(Asked { number, sent_at, until: now + limit });
        if !reaches {
            return;
        }
        let (client, answers) = (self.access.client.clone(), self.answers.clone());
        let path =
            format!("/apis/leadergroup.dev/v1alpha1/namespaces/{NAMESPACE}/leadergroups/{}", self.group);
        let request = Request::get(path).body(Vec::new()).expect("the path is valid");
        tokio::spawn(async move {
            let answer = match timeout(limit, client.request::<Group>(request)).await {
                Ok(Ok(group)) => Some(group.into()),
                Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Some(Read::of_no_group()),
                Ok(Err(_)) | Err(_) => None,
            };
            answers.lock().push((number, answer));
        });
    }

    /// Notices that the group has changed.
    fn watch(&mut self, now: Duration, random: &mut Random) {
        let found =
            self.access.api.store().get(Kind::LeaderGroup, NAMESPACE, &self.group).map(|it| it.revision);
        let revision = found.unwrap_or(0);
        if self.access.api.is_running() && self.watched.0 != revision {
            // Now and then a watch ends, and shows nothing until it is begun again.
            let within = if random.below(20) == 0 { 2_000 } else { WATCHED };
            let at = now + crate::simulation::millis(random, within);
            self.watched = (revision, Some(self.watched.1.map_or(at, |before| before.min(at))));
        }
    }
}
