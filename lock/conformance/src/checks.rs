//! What holds in every scenario, whatever happens in it: the record in the database and the lines of the processes
//! together show whether a client keeps these rules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use uuid::Uuid;

use crate::audit::{Event, GRAIN};
use crate::process::{Answer, Line};
use crate::rules::{Rule, Violation};

/// What the checks read.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// The record in the database.
    pub(crate) events: &'a [Event],
    /// The lines of all processes.
    pub(crate) lines: &'a [Line],
    /// The ttl of all sessions.
    pub(crate) ttl: Duration,
    /// How much later than necessary something may happen.
    pub(crate) slack: Duration,
    /// The rule that a client breaks if it holds a key for longer than its lease.
    pub(crate) lease: u8,
    /// The same, if the database has lost the grant.
    pub(crate) lost_grant: u8,
}

/// Calls that must each run in a transaction of their own.
const CALLS: &[&str] = &[
    "register",
    "beat",
    "mark_dead",
    "acquire",
    "release",
    "give_up",
    "wake",
    "close",
    "end_quarantine",
    "commits_were_lost",
];

impl Record<'_> {
    /// All rules that were broken.
    pub(crate) fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.sessions_and_connections(&mut found);
        self.death_marks(&mut found);
        self.quarantines(&mut found);
        self.requests(&mut found);
        for line in self.lines {
            found.extend(self.answer(line));
        }
        found
    }

    fn clients(&self) -> BTreeSet<&str> {
        self.lines.iter().map(|line| line.who.as_str()).collect()
    }

    fn of_clients(&self) -> impl Iterator<Item = &Event> {
        let clients = self.clients();
        self.events.iter().filter(move |event| clients.contains(event.who.as_str()))
    }

    fn sessions_and_connections(&self, found: &mut Vec<Violation>) {
        let mut owners: BTreeMap<Uuid, &str> = BTreeMap::new();
        let mut calls: BTreeMap<(&str, i64), BTreeSet<&str>> = BTreeMap::new();
        for event in self.of_clients() {
            if event.what == "hand" {
                let table = event.verdict.as_deref().unwrap_or_default();
                found.push(Violation::wrong(Rule(32), format!("it changed a row of leadergroup.{table}")));
            }
            if !CALLS.contains(&event.what.as_str()) {
                continue;
            }
            if let ("register" | "beat", Some(session)) = (event.what.as_str(), event.session) {
                let owner = *owners.entry(session).or_insert(&event.who);
                if owner != event.who {
                    found.push(Violation::wrong(Rule(7), format!("two processes use the session {session}")));
                }
            }
            let in_transaction = calls.entry((&event.who, event.tx)).or_default();
            if in_transaction.insert(&event.what) && in_transaction.len() == 2 {
                let names = in_transaction.iter().copied().collect::<Vec<_>>().join(" and ");
                found.push(Violation::wrong(Rule(27), format!("{names} in one transaction")));
            }
            if event.time_limit == "0" {
                found
                    .push(Violation::wrong(Rule(28), format!("{} ran with statement_timeout 0", event.what)));
            }
            if event.sync == "off" && event.what != "wake" {
                found.push(Violation::wrong(
                    Rule(29),
                    format!("{} ran with synchronous_commit off", event.what),
                ));
            }
        }
    }

    fn death_marks(&self, found: &mut Vec<Violation>) {
        for mark in self.of_clients().filter(|event| event.what == "mark_dead") {
            let earlier =
                || self.events.iter().filter(|event| event.at() <= mark.at() && event.id != mark.id);
            let of_victim = |event: &&Event| event.session == mark.session;
            let last = earlier().filter(of_victim).filter(|event| event.is_heartbeat()).map(Event::at).max();
            let ttl = earlier().filter(of_victim).find(|event| event.what == "register").map(Event::millis);
            let (Some(last), Some(ttl)) = (last, ttl) else { continue };
            let begin = mark.at().saturating_sub(ttl);
            if last > begin + GRAIN {
                let after = (mark.at().saturating_sub(last)).as_millis();
                let seen =
                    format!("a session with a ttl of {ttl:?} was marked dead {after} ms after its heartbeat");
                found.push(Violation::wrong(Rule(10), seen));
                continue;
            }
            if let Some(era) = earlier().find(|event| event.what == "era" && event.at() > begin + GRAIN) {
                let after = (mark.at().saturating_sub(era.at())).as_millis();
                let seen =
                    format!("a session with a ttl of {ttl:?} was marked dead {after} ms after an era began");
                found.push(Violation::wrong(Rule(12), seen));
                continue;
            }
            let answers = earlier().filter(|event| event.who == mark.who && event.is_heartbeat());
            let mut times: Vec<Duration> = answers.map(Event::at).filter(|at| *at >= begin).collect();
            let outside = earlier().filter(|event| event.who == mark.who && event.is_heartbeat());
            times.extend(outside.map(Event::at).filter(|at| *at < begin).max());
            times.sort();
            // Two and a half of the longest interval. A call may take long before it is answered.
            let longest = self.ttl.mul_f64(2.5 / 3.0) + self.slack;
            let gap = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
            if gap > longest {
                let seen =
                    format!("a session was marked dead after {} ms without an answer", gap.as_millis());
                found.push(Violation::wrong(Rule(11), seen));
            }
        }
    }

    fn quarantines(&self, found: &mut Vec<Violation>) {
        for end in self.of_clients().filter(|event| event.what == "end_quarantine") {
            let begin =
                self.events.iter().find(|event| event.what == "era" && event.grant_id == end.grant_id);
            let Some(begin) = begin else { continue };
            let lasted = end.at().saturating_sub(begin.at());
            if lasted + GRAIN < end.millis() {
                let seen =
                    format!("a quarantine ended after {lasted:?}; the longest ttl is {:?}", end.millis());
                found.push(Violation::wrong(Rule(17), seen));
            }
        }
    }

    /// The identifiers of requests: one for each request, for as long as it lasts.
    fn requests(&self, found: &mut Vec<Violation>) {
        let mut used: BTreeMap<Uuid, (Duration, &[String])> = BTreeMap::new();
        for line in self
            .lines
            .iter()
            .filter(|line| matches!(line.command.first().map(String::as_str), Some("try" | "lock")))
            .filter(|line| line.answer != Answer::Unanswered)
        {
            let mut own: BTreeMap<Option<Uuid>, Uuid> = BTreeMap::new();
            let key = line.command.get(1).map(String::as_str);
            let asked = self.events.iter().filter(|event| {
                event.what == "acquire"
                    && event.who == line.who
                    && event.key.as_deref() == key
                    && event.at() + GRAIN >= line.asked
                    && event.at() <= line.at
            });
            for event in asked {
                let Some(grant) = event.grant_id else { continue };
                if let Some(former) = own.insert(event.session, grant).filter(|former| *former != grant)
                    && line.command[0] == "lock"
                    && !self.is_over(former, event)
                {
                    found.push(Violation::wrong(Rule(19), "one request was repeated with another grant_id"));
                }
                let first = used.entry(grant).or_insert((line.asked, &line.command));
                if first.0 != line.asked && first.1 == line.command {
                    found.push(Violation::wrong(Rule(19), "two requests had the same grant_id"));
                }
            }
        }
    }

    /// Whether a request had been given up, or its term had ended, before this event.
    fn is_over(&self, request: Uuid, before: &Event) -> bool {
        let term = self.events.iter().find(|event| event.what == "grant" && event.grant_id == Some(request));
        // A client may end it while it asks with the next one.
        let at_the_latest = before.at() + self.slack;
        self.events.iter().filter(|event| event.at() <= at_the_latest).any(|event| {
            event.what == "give_up" && event.grant_id == Some(request)
                || event.what == "end"
                    && term.is_some_and(|term| (&term.key, term.token) == (&event.key, event.token))
        })
    }

    fn answer(&self, line: &Line) -> Option<Violation> {
        let key = line.command.get(1).map(String::as_str).unwrap_or_default();
        match &line.answer {
            Answer::Granted(token) => self.granted(line, key, *token),
            Answer::Yes(token) => self.held(line, key, *token),
            Answer::Released => self.released(line, key),
            _ => None,
        }
    }

    /// The grant of this token to this client.
    fn grant(&self, who: &str, key: &str, token: i64) -> Option<&Event> {
        self.events.iter().find(|event| {
            event.what == "grant"
                && event.key.as_deref() == Some(key)
                && event.token == Some(token)
                && self.events.iter().any(|other| {
                    other.what == "register" && other.session == event.session && other.who == who
                })
        })
    }

    /// The last heartbeat of this session that had reached the server by this time.
    fn last_heartbeat(&self, session: Option<Uuid>, until: Duration) -> Option<Duration> {
        let counts = |event: &&Event| event.is_heartbeat() || event.what == "register";
        let beats = self.events.iter().filter(counts).filter(|event| event.session == session);
        beats.map(Event::at).filter(|at| *at <= until).max()
    }

    /// When a lease ends that this heartbeat has begun, at the latest.
    fn end_of_lease(&self, heartbeat: Duration) -> Duration {
        heartbeat + self.ttl.mul_f64(0.8) + GRAIN
    }

    fn granted(&self, line: &Line, key: &str, token: i64) -> Option<Violation> {
        let Some(grant) = self.grant(&line.who, key, token) else {
            let seen = format!("it answered `granted {token}` for {key}, a token that it was not granted");
            return Some(Violation::wrong(Rule(24), seen));
        };
        let end = self.end_of_lease(self.last_heartbeat(grant.session, line.at)?);
        (line.at > end + self.slack).then(|| {
            let late = line.at.saturating_sub(end).as_millis();
            Violation::wrong(
                Rule(5),
                format!("it answered `granted {token}` {late} ms after the end of its lease"),
            )
        })
    }

    fn held(&self, line: &Line, key: &str, token: i64) -> Option<Violation> {
        let Some(grant) = self.grant(&line.who, key, token) else {
            let seen = format!("it answered `yes {token}` for {key}, a token that it was not granted");
            return Some(Violation::wrong(Rule(24), seen));
        };
        let of_this_session = |event: &&Event| event.session == grant.session;
        let dead = self
            .events
            .iter()
            .filter(of_this_session)
            .find(|event| event.what == "beat" && !event.is_heartbeat() && event.at() < line.asked);
        if let Some(dead) = dead {
            if dead.at() + self.slack > line.asked {
                return None;
            }
            let after = line.asked.saturating_sub(dead.at()).as_millis();
            let seen = format!("it answered `yes {token}` {after} ms after a heartbeat was answered `dead`");
            return Some(Violation::late(Rule(8), seen));
        }
        let told = |earlier: &&Line| {
            let gone = Answer::Lost(key.to_owned(), token);
            let same_key = earlier.command.get(1).map(String::as_str) == Some(key);
            earlier.who == line.who
                && earlier.at < line.asked
                && (earlier.answer == gone
                    || earlier.answer == Answer::No && same_key && earlier.asked > grant.at())
        };
        if self.lines.iter().any(|earlier| told(&earlier)) {
            let seen = format!("it answered `yes {token}` for {key} after it had lost this token");
            return Some(Violation::wrong(Rule(3), seen));
        }
        // A term that was lost with commits is not renewed by heartbeats that follow.
        let lost = self.events.iter().find(|event| {
            event.what == "end"
                && event.key.as_deref() == Some(key)
                && event.token == Some(token)
                && !self.clients().contains(event.who.as_str())
        });
        let until = lost.map_or(line.at, |lost| lost.at().min(line.at));
        let end = self.end_of_lease(self.last_heartbeat(grant.session, until)?);
        let rule = if lost.is_some() { self.lost_grant } else { self.lease };
        (line.asked > end).then(|| {
            let late = line.asked.saturating_sub(end).as_millis();
            let seen =
                format!("asked {late} ms after the end of its lease, it answered `yes {token}` for {key}");
            Violation::wrong(Rule(rule), seen)
        })
    }

    fn released(&self, line: &Line, key: &str) -> Option<Violation> {
        let held = self.lines.iter().rev().find_map(|earlier| match earlier.answer {
            Answer::Granted(token)
                if earlier.who == line.who
                    && earlier.at <= line.asked
                    && earlier.command.get(1).map(String::as_str) == Some(key) =>
            {
                Some(token)
            }
            _ => None,
        })?;
        self.grant(&line.who, key, held)?;
        let ended = self.events.iter().any(|event| {
            event.what == "end"
                && event.key.as_deref() == Some(key)
                && event.token == Some(held)
                && event.at() <= line.at + GRAIN
        });
        (!ended).then(|| {
            let seen = format!("it answered `released` for {key}, and its term {held} had not ended");
            Violation::wrong(Rule(25), seen)
        })
    }
}
