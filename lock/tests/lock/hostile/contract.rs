//! The contract of the functions (lock/docs/sql-protocol.md, docs/fencing.md, docs/security.md), as rules about what a
//! call may change, what it answers, and with which errors it fails.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::functions::{Function, Kind};
use super::state::{Change, Lock, Mark, Meta, PROGRAMS, Session, State, Term, Waiter};

/// The longest key, in bytes.
const LONGEST_KEY: usize = 2_000;

const ACQUIRE_VERDICTS: &[&str] = &[
    "granted",
    "waiting",
    "held",
    "delayed",
    "quarantine",
    "busy",
    "fenced",
    "forbidden",
    "full",
    "void",
    "dead",
    "tombstone",
    "foreign",
    "newer",
];
const RELEASE_VERDICTS: &[&str] = &["done", "changed", "dead", "missing", "tombstone", "foreign", "newer"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// May connect and use the schema.
    Application,
    /// May also write to the tables.
    Program,
}

/// What holds of the transaction around the call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// It is not at the level READ COMMITTED.
    pub snapshot: bool,
    pub read_only: bool,
    /// It may wait for a lock for a moment only.
    pub impatient: bool,
}

/// A call with its arguments, as they were sent.
#[derive(Debug)]
pub struct Call<'a> {
    pub caller: Caller,
    pub function: &'a Function,
    pub arguments: Vec<Option<String>>,
    pub limits: Limits,
    /// The key that a transaction of another application shows the token of.
    pub fenced: Option<&'static str>,
}

/// SQLSTATE and text of an error.
#[derive(Debug)]
pub struct Failure {
    pub code: String,
    pub text: String,
}

pub type Outcome = Result<Vec<Value>, Failure>;

/// A request or a release. One that is not an object asks for nothing, and has its place all the same.
#[derive(Default)]
struct Wish {
    key: Option<String>,
    token: Option<i64>,
    reason: Option<String>,
    grant: Option<Uuid>,
    uid: Option<String>,
    wait: Option<String>,
    sat_out: Option<i64>,
}

impl Wish {
    fn read(object: &Map<String, Value>) -> Self {
        let text = |member| match object.get(member)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let number = |member| text(member)?.parse().ok();
        Self {
            key: text("key"),
            token: number("token"),
            reason: text("reason"),
            grant: text("grant_id").and_then(|id| id.parse().ok()),
            uid: text("uid"),
            wait: text("wait"),
            sat_out: number("sat_out"),
        }
    }
}

impl Call<'_> {
    fn argument(&self, name: &str) -> Option<&str> {
        let place = self.function.parameters.iter().position(|parameter| parameter.name == name)?;
        self.arguments[place].as_deref()
    }

    fn uuid(&self, name: &str) -> Option<Uuid> {
        self.argument(name)?.parse().ok()
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.argument(name)?.parse().ok()
    }

    /// The requests of `acquire`, and the releases of `release` and of `give_up`.
    fn wishes(&self) -> Vec<Wish> {
        let objects = self.argument("requests").or(self.argument("releases"));
        match objects.map(|text| serde_json::from_str(text).expect("the server has read it, too")) {
            Some(Value::Array(all)) => {
                all.iter().map(|wish| wish.as_object().map(Wish::read).unwrap_or_default()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The observed counters of `mark_dead`.
    fn observed(&self) -> Vec<(&str, &str)> {
        let list = |name| {
            let text = self.argument(name).unwrap_or_default();
            // A lower bound of the array may stand before it.
            let elements = text.split_once('=').map_or(text, |(_, elements)| elements).split(['{', '}', ',']);
            elements.filter(|element| !element.is_empty()).collect::<Vec<_>>()
        };
        list("sessions").into_iter().zip(list("beats")).collect()
    }
}

/// A call with the states before and after it.
pub struct Case<'a> {
    pub call: &'a Call<'a>,
    pub before: &'a State,
    pub after: &'a State,
}

/// Whether this held as the rest of the message says.
macro_rules! check {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}

impl Case<'_> {
    pub fn check(&self, outcome: &Outcome) -> Result<(), String> {
        let (call, kind) = (self.call, self.call.function.kind);
        for change in self.before.changes(self.after) {
            check!(self.sound(&change), "no call may change this: {change:#?}");
            let allowed = match (outcome, kind) {
                (Err(_), _) | (Ok(_), Kind::Harmless) => false,
                (Ok(_), Kind::Marks) => self.marks(&change),
                (Ok(_), Kind::Protocol) => call.caller == Caller::Program && self.protocol(&change),
                (Ok(_), Kind::Internal) => call.caller == Caller::Program,
            };
            check!(allowed, "this call may not change this: {change:#?}");
        }
        match outcome {
            Err(failure) => self.failed(failure),
            Ok(answers) => {
                // Some parts of other functions answer before they look at a table.
                let fails = call.caller == Caller::Application && kind == Kind::Protocol;
                check!(!fails, "an application may not call it");
                self.answered(answers)
            }
        }
    }

    /// What holds for every call of whatever function.
    fn sound(&self, change: &Change<'_>) -> bool {
        match *change {
            Change::Lock(Some(old), Some(new)) => {
                let fenced = self.call.fenced == Some(old.key.as_str());
                new.token >= old.token && (!fenced || new.token == old.token || new.holder_uid.is_none())
            }
            Change::Session(Some(old), Some(new)) => {
                new.beat >= old.beat && new.ttl_ms > 0 && (new.dead || !old.dead)
                    // Only these two end a session.
                    && (new.dead == old.dead || matches!(self.call.function.name, "close" | "mark_dead"))
            }
            Change::Mark(Some(old), Some(new)) => new.token >= old.token && new.role == old.role,
            Change::Meta(old, new) => new.era >= old.era && new.token_floor >= old.token_floor,
            Change::Lock(None, Some(new)) => new.token >= 0 && (1..=LONGEST_KEY).contains(&new.key.len()),
            Change::Lock(_, None)
            | Change::Session(_, None)
            | Change::Mark(_, None)
            | Change::Term(Some(_), _) => false,
            Change::Session(None, _) | Change::Mark(None, _) | Change::Term(None, _) | Change::Waiter(..) => {
                true
            }
        }
    }

    /// A mark is raised only by those whom it names, and to what they ask for.
    fn marks(&self, change: &Change<'_>) -> bool {
        let Change::Mark(old, Some(new)) = *change else { return false };
        let (Some(key), Some(token)) = (self.call.argument("key"), self.call.number("token")) else {
            return false;
        };
        let raised = Mark { key: key.to_owned(), token, role: None };
        *new == old.map_or(raised.clone(), |old| Mark { token: old.token.max(token), ..raised })
    }

    /// Each call acts for one session, and on nothing that others have, as long as their sessions live.
    fn protocol(&self, change: &Change<'_>) -> bool {
        let (call, own) = (self.call, self.call.uuid("session"));
        match (call.function.name, *change) {
            ("register", Change::Session(None, Some(new))) => {
                Some(new.id) == call.uuid("id") && (new.beat, new.dead, new.closed) == (1, false, false)
            }
            ("end_quarantine", Change::Meta(old, new)) => {
                call.uuid("era_id") == Some(old.era_id) && *new == Meta { quarantine: false, ..old.clone() }
            }
            ("commits_were_lost", Change::Meta(old, new)) => {
                let begun = new.era > old.era && new.era_id != old.era_id && new.quarantine;
                let Meta { era, era_id, token_floor, .. } = new.clone();
                let unchanged = Meta { era, era_id, quarantine: true, token_floor, ..old.clone() };
                call.uuid("era_id") == Some(old.era_id)
                    && begun
                    && token_floor >= old.token_floor
                    && *new == unchanged
            }
            (name, Change::Session(Some(old), Some(new))) if !old.dead => {
                let expected = match name {
                    "beat" => Session { beat: old.beat + 1, ..old.clone() },
                    "close" => {
                        let closed = call.argument("in_order") == Some("true");
                        Session { dead: true, closed, ..old.clone() }
                    }
                    "mark_dead" => {
                        let (id, beat) = (old.id.to_string(), old.beat.to_string());
                        let observed = call.observed().contains(&(id.as_str(), beat.as_str()));
                        return observed && *new == Session { dead: true, ..old.clone() };
                    }
                    _ => return false,
                };
                Some(old.id) == own && *new == expected
            }
            ("acquire", change) => call.wishes().iter().any(|wish| self.acquires(wish, &change)),
            ("release", change) => call.wishes().iter().any(|wish| {
                let ends = |old: &Lock| wish.token == Some(old.token) && wish.reason.is_some();
                self.ends(wish.key.as_deref(), ends, &change)
            }),
            ("give_up", change) => self.gives_up(&change),
            _ => false,
        }
    }

    fn acquires(&self, wish: &Wish, change: &Change<'_>) -> bool {
        let own = self.call.uuid("session");
        let (Some(key), true) = (wish.key.as_deref(), self.before.lives(own)) else { return false };
        let mine = |session: Uuid, grant: Uuid| Some(session) == own && Some(grant) == wish.grant;
        match *change {
            Change::Lock(None, Some(new)) => {
                new.key == key
                    && new.group_id == PROGRAMS
                    && (new.holder_uid.is_none() || self.taken(wish, None, new))
            }
            Change::Lock(Some(old), Some(new)) => {
                let noted = Lock { awaited: new.awaited, ..old.clone() };
                old.key == key && (*new == noted || self.taken(wish, Some(old), new))
            }
            Change::Waiter(None, Some(new)) => {
                new.key == key && mine(new.session, new.grant_id) && wish.wait.as_deref() != Some("false")
            }
            // With the grant, or of a session that has ended.
            Change::Waiter(Some(old), None) => {
                old.key == key && (mine(old.session, old.grant_id) || !self.before.lives(Some(old.session)))
            }
            Change::Term(None, Some(new)) => {
                new.key == key && self.ended(new) && !self.before.lives(new.session)
            }
            _ => false,
        }
    }

    /// Whether the key went to this request, and could.
    fn taken(&self, wish: &Wish, old: Option<&Lock>, new: &Lock) -> bool {
        let own = self.call.uuid("session");
        let place = self.before.waiters.values().find(|waiter| {
            waiter.key == new.key && Some(waiter.session) == own && Some(waiter.grant_id) == wish.grant
        });
        let first = self
            .before
            .queue(&new.key)
            .next()
            .is_none_or(|first| place.is_some_and(|own| own.id <= first.id));
        let free = old.is_none_or(|old| {
            let holder = old.session.and_then(|session| self.before.sessions.get(&session));
            let in_order = holder.is_some_and(|holder| holder.closed);
            let over =
                old.holder_uid.is_none() || in_order || old.delay_ms <= 0 || wish.sat_out == Some(old.token);
            old.group_id == PROGRAMS
                && !old.tombstone
                && !self.before.lives(old.session)
                && over
                && new.token > old.token
        });
        let mine = (new.session, new.grant_id, &new.holder_uid) == (own, wish.grant, &wish.uid);
        first
            && free
            && mine
            && new.token > self.before.meta.era * 1_000_000
            && new.group_id == PROGRAMS
            && !self.before.meta.quarantine
            && self.call.fenced != Some(new.key.as_str())
    }

    /// Whether this term is the one that the key had before.
    fn ended(&self, term: &Term) -> bool {
        let old = self.before.locks.get(&term.key);
        old.is_some_and(|old| {
            (old.token, old.session) == (term.token, term.session) && old.holder_uid.is_some()
        })
    }

    /// The end of a term of the own session, for which `ends` holds. The key goes to the first who waits, or to nobody.
    fn ends(&self, key: Option<&str>, ends: impl Fn(&Lock) -> bool, change: &Change<'_>) -> bool {
        let own = self.call.uuid("session");
        let Some(old) = key.and_then(|key| self.before.locks.get(key)) else { return false };
        let may = self.before.lives(own) && old.session == own && old.group_id == PROGRAMS && !old.tombstone;
        if !may || old.holder_uid.is_none() || !ends(old) {
            return false;
        }
        let next = self.before.queue(&old.key).next();
        match *change {
            Change::Lock(Some(changed), Some(new)) if changed.key == old.key => {
                let freed =
                    (new.session, new.grant_id, &new.holder_uid, new.token) == (None, None, &None, old.token);
                let passed = next.is_some_and(|next| {
                    (new.session, new.grant_id) == (Some(next.session), Some(next.grant_id))
                        && new.token > old.token
                        && !self.before.meta.quarantine
                });
                (freed || passed) && new.group_id == PROGRAMS && !new.tombstone
            }
            Change::Waiter(Some(waiter), None) if waiter.key == old.key => {
                next.is_some_and(|next| next.id == waiter.id) || !self.before.lives(Some(waiter.session))
            }
            Change::Term(None, Some(new)) => new.key == old.key && self.ended(new),
            _ => false,
        }
    }

    fn gives_up(&self, change: &Change<'_>) -> bool {
        let (key, own, grant) =
            (self.call.argument("key"), self.call.uuid("session"), self.call.uuid("grant_id"));
        match *change {
            // It waits for one that is being created.
            Change::Lock(None, Some(new)) => {
                Some(new.key.as_str()) == key && new.group_id == PROGRAMS && new.holder_uid.is_none()
            }
            Change::Waiter(Some(Waiter { key: of, session, grant_id, .. }), None)
                if Some(of.as_str()) == key && (Some(*session), Some(*grant_id)) == (own, grant) =>
            {
                true
            }
            ref change => self.ends(key, |old| old.grant_id == grant, change),
        }
    }

    /// Whether the error is one of those that the documents name, or says what is wrong with the arguments.
    fn failed(&self, failure: &Failure) -> Result<(), String> {
        let (call, name) = (self.call, self.call.function.name);
        let Limits { snapshot, read_only, impatient } = call.limits;
        let fence = matches!(name, "fence" | "fence_seen");
        let documented = match failure.code.as_str() {
            "42501" if call.function.kind == Kind::Marks => self.reserved(),
            "42501" => call.caller == Caller::Application,
            "LG001" => fence && self.outdated(),
            // A number that is written out, or one that only its own caller reads.
            "22003" => failure.text.contains('"') || name == "next_token",
            "22012" => false,
            // For marks and sessions: a key or a group of peers that is too long for an index.
            "54000" => call.function.kind == Kind::Marks || name == "register",
            "54001" => true,
            "40001" => snapshot,
            "25006" => read_only,
            "57014" | "55P03" => impatient || failure.code == "55P03" && call.function.kind == Kind::Internal,
            code => code.starts_with("22") || code.starts_with("23"),
        };
        check!(documented, "this error is not documented, or says nothing");
        Ok(())
    }

    /// Whether only the members of a role may raise the mark.
    fn reserved(&self) -> bool {
        let mark = self.call.argument("key").and_then(|key| self.before.marks.get(key));
        mark.is_some_and(|mark| mark.role.is_some())
    }

    /// Whether the token is not that of the key's present term, or below its mark.
    fn outdated(&self) -> bool {
        let (key, token) = (self.call.argument("key").unwrap_or_default(), self.call.number("token"));
        match self.call.function.name {
            "fence" => {
                let lock = self.before.locks.get(key);
                !lock.is_some_and(|lock| Some(lock.token) == token && lock.holder_uid.is_some())
            }
            _ => self.before.marks.get(key).is_some_and(|mark| Some(mark.token) > token),
        }
    }

    fn answered(&self, answers: &[Value]) -> Result<(), String> {
        let (call, own) = (self.call, self.call.uuid("session"));
        let lives = self.before.lives(own);
        match call.function.name {
            "fence" | "fence_seen" => {
                let whole = call.argument("key").is_some() && call.argument("token").is_some();
                check!(whole && !self.outdated(), "the token is not the present one");
            }
            "fence_mark_read" | "fence_mark_raise" => {
                let mark =
                    call.argument("key").and_then(|key| self.after.marks.get(key)).map(|mark| mark.token);
                check!(answers[0].as_i64() == mark, "the mark is {mark:?}");
            }
            "beat" => check!(answers[0]["dead"] == !lives, "whether it is dead"),
            "close" => check!(answers == [Value::Bool(lives)], "whether it lived"),
            "mark_dead" => {
                let marked = answers.iter().filter(|answer| answer["marked"] == true);
                let marked: BTreeSet<_> = marked.map(|answer| answer["id"].as_str()).collect();
                let ended = self.before.changes(self.after).len();
                check!(marked.len() == ended, "{ended} sessions were marked");
            }
            "acquire" => self.acquire_answered(answers)?,
            "release" => self.release_answered(answers)?,
            _ => {}
        }
        Ok(())
    }

    /// The answers with their requests and verdicts. A single request always has an answer, and none has two.
    fn places<'a>(
        &self,
        answers: &'a [Value],
        verdicts: &[&str],
    ) -> Result<Vec<(Wish, &'a Value, &'a str)>, String> {
        let mut wishes: Vec<Option<Wish>> = self.call.wishes().into_iter().map(Some).collect();
        check!(wishes.len() != 1 || answers.len() == 1, "the number of answers");
        let placed = |answer: &'a Value| {
            let place = answer["place"].as_u64().and_then(|place| usize::try_from(place).ok());
            let wish = place.and_then(|place| wishes.get_mut(place.checked_sub(1)?)?.take());
            let verdict = answer["verdict"].as_str().unwrap_or_default();
            check!(verdicts.contains(&verdict), "the verdict {verdict}");
            Ok((wish.ok_or_else(|| format!("the place {place:?}"))?, answer, verdict))
        };
        answers.iter().map(placed).collect()
    }

    fn acquire_answered(&self, answers: &[Value]) -> Result<(), String> {
        let own = self.call.uuid("session");
        for (wish, answer, verdict) in self.places(answers, ACQUIRE_VERDICTS)? {
            let key = wish.key.as_deref().unwrap_or_default();
            let lock = self.after.locks.get(key);
            let has = lock.is_some_and(|lock| {
                (lock.session, lock.grant_id) == (own, wish.grant)
                    && own.is_some()
                    && lock.group_id == PROGRAMS
            });
            check!(has == (verdict == "granted") || verdict == "dead", "whether it was granted: {lock:#?}");
            check!(!has || lock.map(|lock| lock.token) == answer["token"].as_i64(), "the token: {lock:#?}");
            check!(verdict != "dead" || !self.before.lives(own), "whether it lives");
            let foreign = lock.is_some_and(|lock| lock.group_id != PROGRAMS);
            let unknown = matches!(verdict, "busy" | "dead" | "void");
            check!(
                foreign == matches!(verdict, "foreign" | "tombstone") || unknown,
                "whose key it is: {lock:#?}"
            );
            let waits = |waiter: &Waiter| (Some(waiter.session), Some(waiter.grant_id)) == (own, wish.grant);
            let queued = self.after.queue(key).any(waits);
            check!(verdict != "waiting" || queued, "it has no place in the queue");
        }
        Ok(())
    }

    fn release_answered(&self, answers: &[Value]) -> Result<(), String> {
        let own = self.call.uuid("session");
        for (wish, _, verdict) in self.places(answers, RELEASE_VERDICTS)? {
            let key = wish.key.clone().unwrap_or_default();
            let term = self.after.terms.get(&(key.clone(), wish.token.unwrap_or(-1)));
            let over = term
                .is_some_and(|term| term.session == own && own.is_some() && term.end_reason == wish.reason);
            check!(over == (verdict == "done") || verdict == "dead", "whether it is over: {term:#?}");
            check!((verdict == "dead") != self.before.lives(own), "whether it lives");
            let held = self.after.locks.get(&key);
            let held = held
                .is_some_and(|lock| lock.session == own && Some(lock.token) == wish.token && own.is_some());
            check!(!held || matches!(verdict, "foreign" | "dead" | "newer"), "it is still held");
        }
        Ok(())
    }
}
