//! The model of PostgreSQL: one lock row, its terms and the sessions, with the semantics of `lock/src/sql`.

use std::collections::BTreeMap;

use leadergroup::{
    api::PodRef,
    election::{GrantRequest, Rejection, Row},
};
use uuid::Uuid;

use crate::server::Granted;

/// How far tokens jump in a new era: more than the number of tokens that can have been granted and lost.
const TOKEN_JUMP: i64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LockRow {
    pub group: u32,
    pub session: Option<u32>,
    pub token: i64,
    pub era: i64,
    pub grant: Option<Uuid>,
    pub holder: Option<PodRef>,
    pub confirmed: i64,
    pub tombstone: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Database {
    /// The current history, and the history in which its tokens were granted.
    pub present: i64,
    pub timeline: i64,
    pub era: i64,
    /// Sessions, and whether each is dead.
    pub sessions: BTreeMap<u32, bool>,
    pub row: Option<LockRow>,
    pub terms: Vec<(i64, PodRef)>,
}

/// A statement, sent for a session.
#[derive(Clone, Debug)]
pub enum Statement {
    Row { group: u32 },
    Grant { group: u32, grant: GrantRequest },
    Confirm { token: i64 },
    Vacate { token: i64 },
    Tombstone { group: u32, floor: i64 },
    Claim { group: u32, may_create: bool, supersedes: Option<u32> },
}

#[derive(Clone, Debug)]
pub enum Reply {
    Row(Row),
    Granted(i64),
    Done,
    Rejected(Rejection),
    Claimed(Claimed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Ours(Row),
    Owned,
    Missing,
    Tombstone,
    /// The row of another group.
    Foreign(u32),
    /// The session is dead.
    Dead,
}

impl Database {
    /// A session ends if its row is marked dead or is missing.
    pub fn lives(&self, session: u32) -> bool {
        self.sessions.get(&session) == Some(&false)
    }

    pub fn run(&mut self, session: u32, statement: &Statement, ledger: &mut Vec<Granted>) -> Reply {
        if let Statement::Row { group } = statement {
            // A plain read, which does not check whether the session is alive.
            let row = self
                .row
                .as_ref()
                .filter(|row| row.session == Some(session) && row.group == *group && !row.tombstone);
            return row.map_or(Reply::Rejected(Rejection::NotOwner), |row| Reply::Row(self.read(row)));
        }
        if !self.lives(session) {
            return match statement {
                Statement::Claim { .. } => Reply::Claimed(Claimed::Dead),
                _ => Reply::Rejected(Rejection::NotOwner),
            };
        }
        match statement {
            Statement::Claim { group, may_create, supersedes } => {
                Reply::Claimed(self.claim(session, *group, *may_create, *supersedes))
            }
            Statement::Tombstone { group, floor } => self.tombstone(session, *group, *floor),
            Statement::Grant { group, grant } => self.grant(session, *group, grant, ledger),
            Statement::Confirm { token } => self.change(session, *token, |row| {
                if row.holder.is_none() {
                    return false;
                }
                row.confirmed = row.confirmed.max(*token);
                true
            }),
            Statement::Vacate { token } => self.change(session, *token, |row| {
                row.holder = None;
                row.grant = Some(Uuid::from_u128(u128::MAX));
                true
            }),
            Statement::Row { .. } => Reply::Rejected(Rejection::NotOwner),
        }
    }

    fn read(&self, row: &LockRow) -> Row {
        Row {
            token: row.token,
            grant: row.grant,
            holder: row.holder.clone(),
            confirmed: row.confirmed > 0 && row.confirmed == row.token,
            pending: self
                .terms
                .iter()
                .filter(|(token, _)| *token >= row.confirmed)
                .map(|(_, owner)| owner.clone())
                .collect(),
            reason: None,
        }
    }

    fn change(&mut self, session: u32, token: i64, change: impl FnOnce(&mut LockRow) -> bool) -> Reply {
        match &mut self.row {
            Some(row) if row.session == Some(session) && !row.tombstone => {
                if row.token == token && change(row) {
                    Reply::Done
                } else {
                    Reply::Rejected(Rejection::Outdated)
                }
            }
            _ => Reply::Rejected(Rejection::NotOwner),
        }
    }

    fn grant(&mut self, session: u32, group: u32, grant: &GrantRequest, ledger: &mut Vec<Granted>) -> Reply {
        if self.present != self.timeline {
            self.era = (self.era + 1).max(self.present);
            self.timeline = self.present;
        }
        let claimed =
            |row: &&mut LockRow| row.session == Some(session) && row.group == group && !row.tombstone;
        let Some(row) = self.row.as_mut().filter(claimed) else {
            return Reply::Rejected(Rejection::NotOwner);
        };
        if row.grant == Some(grant.id) && row.holder.as_ref().is_some_and(|pod| pod.uid == grant.holder.uid) {
            return Reply::Granted(row.token);
        }
        if row.token != grant.expected {
            return Reply::Rejected(Rejection::Outdated);
        }
        let jump = if row.era == self.era { 0 } else { TOKEN_JUMP };
        let highest = self.terms.iter().map(|(token, _)| *token).max().unwrap_or(0);
        row.token = 1 + (row.token + jump).max(grant.floor).max(self.era * TOKEN_JUMP).max(highest);
        row.era = self.era;
        row.grant = Some(grant.id);
        row.holder = Some(grant.holder.clone());
        self.terms.push((row.token, grant.holder.clone()));
        let owner = grant.holder.uid.clone();
        ledger.push(Granted { token: row.token, id: grant.id, owner, active: None });
        Reply::Granted(row.token)
    }

    fn claim(&mut self, session: u32, group: u32, may_create: bool, supersedes: Option<u32>) -> Claimed {
        let living = |row: &LockRow| row.session.is_some_and(|other| other != session && self.lives(other));
        let Some(row) = &self.row else {
            if !may_create {
                return Claimed::Missing;
            }
            let row = LockRow { group, session: Some(session), ..LockRow::default() };
            let claimed = Claimed::Ours(self.read(&row));
            self.row = Some(row);
            return claimed;
        };
        let revive = if row.tombstone {
            if row.group == group || !may_create {
                return Claimed::Tombstone;
            }
            true
        } else if row.group != group {
            if supersedes != Some(row.group) || living(row) {
                return Claimed::Foreign(row.group);
            }
            true
        } else if row.session != Some(session) && living(row) {
            return Claimed::Owned;
        } else {
            false
        };
        let row = self.row.as_mut().expect("it was there a moment ago");
        row.session = Some(session);
        if revive {
            (row.group, row.tombstone, row.holder) = (group, false, None);
        }
        let row = row.clone();
        Claimed::Ours(self.read(&row))
    }

    fn tombstone(&mut self, session: u32, group: u32, floor: i64) -> Reply {
        let lives = |other: u32| self.sessions.get(&other) == Some(&false);
        match &mut self.row {
            None => {
                self.row = Some(LockRow { group, token: floor, tombstone: true, ..LockRow::default() });
                Reply::Done
            }
            Some(row) if row.group != group => Reply::Rejected(Rejection::NotOwner),
            Some(row) if row.tombstone && row.token >= floor => Reply::Done,
            Some(row) if row.session.is_some_and(|other| other != session && lives(other)) => {
                Reply::Rejected(Rejection::NotOwner)
            }
            Some(row) => {
                row.tombstone = true;
                (row.session, row.holder, row.grant) = (None, None, None);
                row.token = row.token.max(floor);
                Reply::Done
            }
        }
    }
}
