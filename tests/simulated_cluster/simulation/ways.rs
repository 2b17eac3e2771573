//! The ways to the API server and to the database: who reaches them, and what becomes of each call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leadergroup_e2e::random::Random;
use leadergroup_lock::memory::{Call, End, Fate as DatabaseFate};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api_server::{Dropped, Fate, Key, Kind, Outcome, Refusal, RequestInfo, Verb},
    faults::Effects,
};

/// How late a call may be carried out, in milliseconds: its client has given it up by then.
const LATEST: usize = 20_000;
/// How soon a proxy sends a request again, in milliseconds.
const SOON: usize = 200;

/// The ways to the API server and to the database. Clones are the same.
#[derive(Clone, Default)]
pub struct Ways(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// What replicas do not reach, by their names.
    cuts: BTreeMap<String, Cut>,
    storm: Storm,
    /// The kind of the fault that lets writes arrive twice, if there is one.
    repeats: Option<&'static str>,
    /// The kind of the fault that lets the answers to most writes of slices be lost, if there is one.
    slices: Option<&'static str>,
    /// The requests for slices and the reads of pods that got no answer: the object, and when each was sent.
    unanswered: Vec<(Kind, Key, Instant)>,
    /// The writes of declarations and of slices that take effect late: when each was sent, and how much later it does.
    late: Vec<(Kind, Key, Instant, Duration)>,
    effects: Effects,
}

/// What a replica does not reach, and the kind of the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    pub kind: &'static str,
    pub api: Lost,
    /// Only its lists and watches of the API server.
    pub watches: bool,
    pub database: Lost,
}

/// Which packets between a replica and a server are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    #[default]
    None,
    /// Those in both directions.
    All,
    /// Those of the replica: no request arrives. What the server sends on connections that are open does: the events
    /// of watches, and notifications.
    Requests,
    /// Those of the server: requests are carried out, and neither answers nor events arrive.
    Answers,
}

impl Lost {
    /// Whether nothing that the server sends by itself arrives.
    pub fn silences(self) -> bool {
        matches!(self, Self::All | Self::Answers)
    }
}

/// Which calls fail now and then: one in four. And the kind of the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storm {
    pub kind: &'static str,
    pub api: bool,
    pub database: bool,
}

impl Ways {
    /// All are open. Faults note here that they took effect.
    pub fn new(effects: &Effects) -> Self {
        let ways = Self::default();
        ways.0.lock().effects = effects.clone();
        ways
    }

    /// What a replica does not reach from now on.
    pub fn cut(&self, replica: &str, cut: Cut) {
        self.0.lock().cuts.insert(replica.to_owned(), cut);
    }

    /// A replica reaches everything from now on.
    pub fn open(&self, replica: &str) {
        self.0.lock().cuts.remove(replica);
    }

    /// Which calls may fail from now on.
    pub fn set_storm(&self, storm: Storm) {
        self.0.lock().storm = storm;
    }

    /// Lets writes to the API server arrive twice from now on, because of a fault of this kind, or none.
    pub fn repeat_writes(&self, kind: Option<&'static str>) {
        self.0.lock().repeats = kind;
    }

    /// Lets most answers to writes of slices be lost from now on, because of a fault of this kind, or none.
    pub fn lose_answers_of_slices(&self, kind: Option<&'static str>) {
        self.0.lock().slices = kind;
    }

    fn of(&self, client: &str) -> (Cut, Storm) {
        let replica = client.split('/').next().unwrap_or_default();
        let state = self.0.lock();
        (state.cuts.get(replica).copied().unwrap_or_default(), state.storm)
    }

    /// The fault by which this request may arrive twice.
    fn repeats(&self, request: &RequestInfo) -> Option<&'static str> {
        self.0.lock().repeats.filter(|_| request.verb.writes())
    }

    /// The fault that the answer to this request may be lost by.
    fn loses_answer(&self, request: &RequestInfo) -> Option<&'static str> {
        let writes = request.kind == Kind::EndpointSlice && request.verb.writes();
        self.0.lock().slices.filter(|_| writes)
    }

    /// The requests for slices and the reads of pods that got no answer: the object, and when each was sent.
    pub fn unanswered(&self) -> Vec<(Kind, Key, Instant)> {
        self.0.lock().unanswered.clone()
    }

    /// The writes of declarations and of slices that take effect late: when each was sent, and how much later it does.
    pub fn late_writes(&self) -> Vec<(Kind, Key, Instant, Duration)> {
        self.0.lock().late.clone()
    }

    /// This request takes effect so late.
    fn note_late(&self, request: &RequestInfo, by: Duration) {
        let declares =
            request.kind == Kind::LeaderGroup && request.is_status && request.client.ends_with("/changes");
        if declares || (request.kind == Kind::EndpointSlice && request.verb.writes()) {
            let object = Key::new(&request.namespace, &request.name);
            self.0.lock().late.push((request.kind, object, Instant::now(), by));
        }
    }

    /// This request is left without an answer, perhaps for long.
    pub fn note_unanswered(&self, request: &RequestInfo) {
        let is_of_slice =
            request.kind == Kind::EndpointSlice && !matches!(request.verb, Verb::List | Verb::Watch);
        if is_of_slice || (request.kind == Kind::Pod && request.verb == Verb::Get) {
            let object = Key::new(&request.namespace, &request.name);
            self.0.lock().unanswered.push((request.kind, object, Instant::now()));
        }
    }

    /// A fault of this kind has met a call.
    fn met(&self, kind: &'static str) {
        self.0.lock().effects.note(kind);
    }
}

/// What becomes of requests to the API server: most take a few milliseconds, a few much longer, and in a storm some
/// fail.
pub fn fates(mut random: Random, ways: Ways) -> impl FnMut(&RequestInfo) -> Fate + Send {
    const FAILURES: [Outcome; 8] = [
        Outcome::Refused,
        Outcome::Failed(Refusal::TooManyRequests),
        Outcome::Failed(Refusal::Internal),
        Outcome::Failed(Refusal::Unavailable),
        Outcome::FailedAfterwards(Refusal::Timeout),
        Outcome::AnswerLost,
        Outcome::Hung,
        Outcome::HungAfterwards,
    ];
    const LOST: [Outcome; 3] =
        [Outcome::AnswerLost, Outcome::FailedAfterwards(Refusal::Timeout), Outcome::HungAfterwards];
    move |request| {
        let (cut, storm) = ways.of(&request.client);
        let is_watch = request.client.ends_with("/watches");
        if cut.api != Lost::None || (cut.watches && is_watch) {
            ways.met(cut.kind);
            if cut.api != Lost::Answers {
                return Fate { outcome: Outcome::Hung, ..Fate::default() };
            }
            ways.note_unanswered(request);
            let (before, outcome) = (delay(&mut random), Outcome::HungAfterwards);
            return Fate { before, outcome, dropped: Dropped::CarriedOut, ..Fate::default() };
        }
        let mut outcome = Outcome::Served;
        if let Some(kind) = ways.loses_answer(request)
            && random.below(4) > 0
        {
            ways.met(kind);
            outcome = LOST[random.below(LOST.len())].clone();
        } else if storm.api && random.below(4) == 0 {
            ways.met(storm.kind);
            let Some(failure) = FAILURES.get(random.below(FAILURES.len() + 1)) else {
                ways.note_unanswered(request);
                let before = millis(&mut random, LATEST);
                ways.note_late(request, before);
                return Fate { before, dropped: Dropped::CarriedOut, ..Fate::default() };
            };
            outcome = failure.clone();
        } else if let Some(kind) = ways.repeats(request)
            && random.below(2) == 0
        {
            ways.met(kind);
            outcome = match random.below(2) {
                0 => Outcome::SentAgain(millis(&mut random, SOON)),
                _ => Outcome::ArrivesAgain(millis(&mut random, LATEST)),
            };
        }
        if matches!(outcome, Outcome::Hung | Outcome::HungAfterwards) {
            ways.note_unanswered(request);
        }
        let (before, after) = (delay(&mut random), delay(&mut random));
        let dropped = if random.below(2) == 0 { Dropped::Cancelled } else { Dropped::CarriedOut };
        Fate { before, outcome, after, dropped }
    }
}

/// The same for statements.
pub fn statements(random: Random, ways: Ways) -> impl Fn(&Call<'_>) -> DatabaseFate + Send + Sync {
    const FAILURES: [End; 4] = [
        End::Broken { commits: false },
        End::Broken { commits: true },
        End::Silent { commits: false },
        End::Silent { commits: true },
    ];
    let random = Mutex::new(random);
    move |call| {
        let (cut, storm) = ways.of(call.client);
        let mut random = random.lock();
        if let Some(end) = ended_by(cut.database, call.statement) {
            ways.met(cut.kind);
            let request = delay(&mut random);
            return DatabaseFate { end, outlives: true, ..DatabaseFate::answered(request, Duration::ZERO) };
        }
        let mut end = End::Answered;
        if storm.database && random.below(4) == 0 {
            ways.met(storm.kind);
            let Some(failure) = FAILURES.get(random.below(FAILURES.len() + 1)) else {
                let request = millis(&mut random, LATEST);
                return DatabaseFate { outlives: true, ..DatabaseFate::answered(request, Duration::ZERO) };
            };
            end = *failure;
        }
        let outlives = random.below(2) == 0;
        let (request, answer) = (delay(&mut random), delay(&mut random));
        DatabaseFate { end, outlives, ..DatabaseFate::answered(request, answer) }
    }
}

/// How a call ends if these packets are lost; none if that does not concern it.
fn ended_by(lost: Lost, statement: &str) -> Option<End> {
    // Nothing but a statement, or a notification, goes in one direction only.
    let needs_both = matches!(statement, "connect" | "listen" | "ping");
    match (lost, statement) {
        (Lost::None, _) | (Lost::Requests, "notification") => None,
        (Lost::Answers, statement) if !needs_both && statement != "notification" => {
            Some(End::Silent { commits: true })
        }
        _ => Some(End::Silent { commits: false }),
    }
}

fn delay(random: &mut Random) -> Duration {
    let longest = if random.below(50) == 0 { 200 } else { 3 };
    millis(random, longest)
}

/// A number of milliseconds below this one.
pub fn millis(random: &mut Random, below: usize) -> Duration {
    Duration::from_millis(u64::try_from(random.below(below)).expect("a small number"))
}
