//! What the functions are called with: mostly what a client would say, and in its place anything that the type allows.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::functions::Parameter;
use super::state::{PROGRAMS, State};
use crate::cast::GROUP;

/// The keys that the calls are about: of the operator's groups (the third one was deleted), of an honest program, and
/// of the caller.
pub const KEYS: [&str; 7] = ["g0", "g1", "gone", "p0", "p1", "own0", "own1"];

/// What the objects of `requests` and `releases` consist of.
const MEMBERS: [(&str, &str); 11] = [
    ("key", "text"),
    ("token", "bigint"),
    ("reason", "text"),
    ("grant_id", "uuid"),
    ("uid", "text"),
    ("namespace", "text"),
    ("name", "text"),
    ("wait", "boolean"),
    ("delay_ms", "bigint"),
    ("sat_out", "bigint"),
    ("void_after", "bigint"),
];

#[derive(Debug, Clone)]
pub enum Argument {
    /// What a client would say.
    Right,
    Null,
    /// Something of the same kind that exists, and belongs to somebody else.
    Others(usize),
    /// A number beside the right one.
    Beside(i64),
    Text(String),
    /// A text of so many bytes, which can be compressed well or not at all.
    Long {
        bytes: usize,
        random: bool,
    },
    List(Vec<Argument>),
    Objects(Vec<Object>),
}

/// A request or a release, of another key than the rest of the call, and with some members changed or left out.
#[derive(Debug, Clone)]
pub struct Object {
    subject: usize,
    wait: bool,
    altered: Vec<(usize, Option<Argument>)>,
}

pub fn arguments(parameters: &[Parameter]) -> Vec<BoxedStrategy<Argument>> {
    parameters.iter().map(|parameter| argument(&parameter.of)).collect()
}

fn argument(of: &str) -> BoxedStrategy<Argument> {
    match of {
        "jsonb" => prop_oneof![3 => Just(Argument::Right), 6 => objects(), 1 => hostile(of)].boxed(),
        _ => prop_oneof![7 => Just(Argument::Right), 3 => hostile(of)].boxed(),
    }
}

fn texts(of: &'static [&'static str]) -> BoxedStrategy<Argument> {
    select(of).prop_map(|text| Argument::Text(text.to_owned())).boxed()
}

/// The values of a type among which errors are expected. One that is not listed fails the test.
fn hostile(of: &str) -> BoxedStrategy<Argument> {
    let others = || (0..20_usize).prop_map(Argument::Others);
    let null = || Just(Argument::Null);
    let beside = || prop_oneof![Just(1_i64), Just(-1), Just(1_000_000)].prop_map(Argument::Beside);
    let elements = |of: &'static str| vec(argument(of), 0..5).prop_map(Argument::List);
    match of {
        "text" => {
            prop_oneof![2 => null(), 4 => others(), 3 => texts(TEXTS), 2 => long(), 1 => any_text()].boxed()
        }
        "uuid" => prop_oneof![3 => null(), 6 => others(), 1 => texts(UUIDS)].boxed(),
        "bigint" => {
            prop_oneof![2 => null(), 3 => beside(), 2 => others(), 3 => texts(NUMBERS), 1 => any_number()]
                .boxed()
        }
        "integer" => prop_oneof![1 => null(), 3 => texts(INTEGERS)].boxed(),
        "boolean" => prop_oneof![1 => null(), 2 => texts(&["true", "false"])].boxed(),
        "uuid[]" => prop_oneof![1 => null(), 6 => elements("uuid"), 1 => texts(UUID_LISTS)].boxed(),
        "bigint[]" => prop_oneof![1 => null(), 6 => elements("bigint"), 1 => texts(NUMBER_LISTS)].boxed(),
        "jsonb" => prop_oneof![1 => null(), 3 => texts(JSON)].boxed(),
        "leadergroup.meta" => prop_oneof![1 => null(), 3 => texts(METAS)].boxed(),
        _ => panic!("an argument of the type {of}: list its hostile values here"),
    }
}

const TEXTS: &[&str] = &[
    "",
    " ",
    "'",
    "''; drop table leadergroup.lock; --",
    "$1",
    "%s%n",
    "\\",
    "\"",
    "null",
    "NaN",
    "\u{1}\n\r\t\u{1b}[2J\u{7f}",
    "\u{202e}\u{feff}\u{e000}",
    "e\u{301}\u{1f600}\u{10ffff}",
];
const UUIDS: &[&str] =
    &["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "not a uuid", ""];
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "9007199254740993",
    "1e3",
    "NaN",
];
const INTEGERS: &[&str] = &["0", "-1", "1", "2147483647", "-2147483648", "2147483648"];
const UUID_LISTS: &[&str] = &[
    "{NULL}",
    "{NULL,NULL,00000000-0000-0000-0000-000000000000}",
    "{{00000000-0000-0000-0000-000000000000},{NULL}}",
    "[5:5]={00000000-0000-0000-0000-000000000000}",
];
const NUMBER_LISTS: &[&str] =
    &["{NULL}", "{{1,2},{NULL,9223372036854775807}}", "{9223372036854775808}", "[-1:0]={1,1}"];
const JSON: &[&str] = &[
    "{}",
    "[]",
    "null",
    "5",
    "\"a\"",
    "[null]",
    "[[]]",
    "[{}]",
    "[1, {}]",
    r#"[{"key": "\u0000"}]"#,
    r#"[{"key": 5, "token": 1e999, "reason": []}]"#,
    r#"[{"key": "own0", "token": 1e30, "delay_ms": 1e30, "reason": "r"}]"#,
    r#"[{"key": "own0", "grant_id": "x"}]"#,
    r#"[{"key": "own0", "wait": "perhaps"}]"#,
    r#"[{"key": 5, "grant_id": "00000000-0000-0000-0000-00000000cafe", "uid": 1, "namespace": true, "name": [],
        "reason": {}, "wait": 1, "delay_ms": "7", "nobody": {"knows": "this"}}]"#,
];
const METAS: &[&str] = &[
    "(,,,,,,)",
    "(t,x,9223372036854775807,00000000-0000-0000-0000-000000000000,t,9223372036854775807,infinity)",
    "(f,,-9223372036854775808,ffffffff-ffff-ffff-ffff-ffffffffffff,f,-9223372036854775808,-infinity)",
    "(t,x,0,00000000-0000-0000-0000-000000000000,f,0,\"294276-12-31 23:59:59\")",
];

/// The first ones fit into one of the indexes, and not into another.
fn long() -> impl Strategy<Value = Argument> {
    let bytes = prop_oneof![2_680..2_710_usize, Just(2_000), Just(2_001), Just(10_000)];
    (bytes, any::<bool>()).prop_map(|(bytes, random)| Argument::Long { bytes, random })
}

/// PostgreSQL has no text with a NUL.
fn any_text() -> impl Strategy<Value = Argument> {
    any::<String>().prop_map(|text| Argument::Text(text.replace('\0', "")))
}

fn any_number() -> impl Strategy<Value = Argument> {
    any::<i64>().prop_map(|number| Argument::Text(number.to_string()))
}

fn objects() -> BoxedStrategy<Argument> {
    let altered = (0..MEMBERS.len()).prop_flat_map(|member| {
        let hostile = hostile(MEMBERS[member].1).prop_map(Some);
        (Just(member), prop_oneof![1 => Just(None), 5 => hostile])
    });
    let object = (0..KEYS.len(), any::<bool>(), vec(altered, 0..3))
        .prop_map(|(subject, wait, altered)| Object { subject, wait, altered });
    let one = object.clone().prop_map(|object| vec![object]);
    prop_oneof![2 => one, 1 => vec(object, 2..5)].prop_map(Argument::Objects).boxed()
}

/// The facts from which arguments are made: the caller's session, those of others, and the key that the call is about.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub state: &'a State,
    pub own: Uuid,
    pub others: &'a [Uuid],
    /// An id that nothing has yet.
    pub fresh: Uuid,
    pub subject: usize,
}

impl Facts<'_> {
    /// The arguments as text.
    pub fn all(&self, parameters: &[Parameter], arguments: &[Argument]) -> Vec<Option<String>> {
        let mut told: Vec<Option<String>> = Vec::new();
        for (parameter, argument) in parameters.iter().zip(arguments) {
            // The counters of `mark_dead` are those of the sessions before them.
            let sessions = told.last().cloned().flatten().filter(|_| parameter.of == "bigint[]");
            told.push(self.tell(argument, &parameter.name, &parameter.of, sessions.as_deref()));
        }
        told
    }

    fn tell(&self, argument: &Argument, name: &str, of: &str, sessions: Option<&str>) -> Option<String> {
        match argument {
            Argument::Right if of == "jsonb" => {
                let object = Object { subject: self.subject, wait: true, altered: Vec::new() };
                self.tell(&Argument::Objects(vec![object]), name, of, None)
            }
            Argument::Right if of.ends_with("[]") => {
                self.tell(&Argument::List(vec![Argument::Right]), name, of, sessions)
            }
            Argument::Right => self.right(name, of),
            Argument::Null => None,
            Argument::Others(number) => self.others(of, *number),
            Argument::Beside(by) => {
                let right: i64 = self.right(name, of)?.parse().expect("a number");
                Some(right.wrapping_add(*by).to_string())
            }
            Argument::Text(text) => Some(text.clone()),
            Argument::Long { bytes, random } => Some(long_text(*bytes, *random)),
            Argument::List(elements) => Some(self.list(elements, of.trim_end_matches("[]"), sessions)),
            Argument::Objects(objects) if name == "request" => {
                Some(self.object(objects.first().expect("there is one")).to_string())
            }
            Argument::Objects(objects) => {
                Some(objects.iter().map(|object| self.object(object)).collect::<Value>().to_string())
            }
        }
    }

    fn list(&self, elements: &[Argument], of: &str, sessions: Option<&str>) -> String {
        let sessions =
            sessions.unwrap_or_default().trim_matches(['{', '}']).split(',').map(|id| id.parse().ok());
        let sessions = sessions.chain(std::iter::repeat(None));
        let told = elements.iter().zip(sessions).map(|(element, session)| {
            let of_session =
                session.and_then(|id: Uuid| self.state.sessions.get(&id)).map(|session| session.beat);
            let told = match (element, of_session) {
                (Argument::Right, Some(beat)) => Some(beat.to_string()),
                (Argument::Beside(by), Some(beat)) => Some((beat + by).to_string()),
                _ => self.tell(element, "", of, None),
            };
            told.unwrap_or_else(|| "NULL".to_owned())
        });
        format!("{{{}}}", told.collect::<Vec<_>>().join(","))
    }

    fn object(&self, object: &Object) -> Value {
        let here = Facts { subject: object.subject, ..*self };
        let mut members = Map::new();
        for (member, (name, of)) in MEMBERS.iter().enumerate() {
            let told = match object.altered.iter().find(|(altered, _)| *altered == member) {
                Some((_, None)) => continue,
                Some((_, Some(argument))) => here.tell(argument, name, of, None),
                None if *name == "wait" => Some(object.wait.to_string()),
                None if *name == "sat_out" || *name == "void_after" => continue,
                None => here.right(name, of),
            };
            members.insert((*name).to_owned(), told.map_or(Value::Null, Value::String));
        }
        Value::Object(members)
    }

    /// What a client would say.
    fn right(&self, name: &str, of: &str) -> Option<String> {
        let lock = self.state.locks.get(KEYS[self.subject]);
        Some(match (name, of) {
            ("key", _) => KEYS[self.subject].to_owned(),
            ("id", "uuid") => self.fresh.to_string(),
            ("grant_id", _) => self.grant().to_string(),
            ("era_id", _) => self.state.meta.era_id.to_string(),
            (_, "uuid") => self.own.to_string(),
            ("peers" | "place" | "successor_uid" | "successor_name" | "present", _) => return None,
            ("ttl_ms", _) => "5000".to_owned(),
            ("delay_ms" | "token_floor", _) => "0".to_owned(),
            (_, "bigint") => lock.map_or(0, |lock| lock.token).to_string(),
            (_, "integer") => "3".to_owned(),
            ("quarantine", _) => "false".to_owned(),
            (_, "boolean") => "true".to_owned(),
            _ => "r".to_owned(),
        })
    }

    /// The caller's last request for the key, or a new one.
    fn grant(&self) -> Uuid {
        let key = KEYS[self.subject];
        let held = self.state.locks.get(key).filter(|lock| lock.session == Some(self.own));
        let waits =
            self.state.waiters.values().find(|waiter| waiter.key == key && waiter.session == self.own);
        held.and_then(|lock| lock.grant_id).or(waits.map(|waiter| waiter.grant_id)).unwrap_or(self.fresh)
    }

    fn others(&self, of: &str, number: usize) -> Option<String> {
        let lock = self.state.locks.get(KEYS[self.subject]);
        let waiter = self.state.waiters.values().find(|waiter| waiter.key == KEYS[self.subject]);
        let pool: Vec<String> = match of {
            "text" => {
                KEYS.iter().chain(&[GROUP, PROGRAMS, "", "uid-honest"]).map(|&text| text.to_owned()).collect()
            }
            "uuid" => {
                let holder = lock.into_iter().flat_map(|lock| [lock.session, lock.grant_id]).flatten();
                let waiter = waiter.into_iter().flat_map(|waiter| [waiter.session, waiter.grant_id]);
                holder.chain(waiter).chain(self.others.iter().copied()).map(|id| id.to_string()).collect()
            }
            _ => {
                let tokens = self.state.locks.values().map(|lock| lock.token);
                let beats = self.state.sessions.values().map(|session| session.beat);
                tokens
                    .chain(beats)
                    .chain([self.state.meta.token_floor])
                    .map(|number| number.to_string())
                    .collect()
            }
        };
        pool.get(number % pool.len().max(1)).cloned()
    }
}

/// Of ASCII letters; the random ones are the same each time.
fn long_text(bytes: usize, random: bool) -> String {
    let mut number: u64 = 1;
    let mut letter = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + u8::try_from((number >> 33) % 90).expect("below 90"))
    };
    (0..bytes).map(|_| if random { letter() } else { 'k' }).collect()
}
