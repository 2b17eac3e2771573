//! The server with everybody on it: the hostile callers, and the operator, a program and an application that are honest
//! and must not notice them.

use std::time::Duration;

use leadergroup_lock::{
    Changed, DatabaseConfig, FencePolicy, GrantId, Overrun, SessionId, Store, Token,
    admin::FENCE_SEEN_SQL,
    controller::Granted,
    protocol::{AcquireRequest, Acquired, Wait},
};
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};
use uuid::Uuid;

use super::arguments::{Argument, Facts, KEYS};
use super::contract::{Call, Caller, Case, Failure, Limits, Outcome};
use super::functions::{self, Function, Kind};
use super::state::State;
use crate::cast::{
    GROUP, dead_session, end_quarantine, grant, grant_one, holder, key, session, take, tombstone, vacate,
};
use crate::fence::{application, application_of, run, state as code_of};
use crate::postgres::{DEADLINE, Database, PASSWORD, ROLE, migrated};

/// The time limit of a statement that may wait for the honest application's transaction.
const SHORT: &str = "set local statement_timeout = '100ms'";

const KEPT_LOCKS: &str =
    "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";

#[derive(Debug, Clone)]
pub enum Step {
    Call {
        by: Caller,
        function: usize,
        subject: usize,
        arguments: Vec<Argument>,
        /// What the transaction begins with; none for a call in autocommit mode.
        within: Option<Within>,
    },
    Honest(Honest),
}

#[derive(Debug, Clone, Copy)]
pub struct Within {
    pub begin: &'static str,
    pub limits: Limits,
}

/// What honest ones do meanwhile. Each of it must succeed.
#[derive(Debug, Clone, Copy)]
pub enum Honest {
    Grant {
        group: usize,
    },
    Vacate {
        group: usize,
    },
    Ask {
        key: usize,
    },
    Release {
        key: usize,
    },
    Beat,
    /// An application begins a transaction under the fence, which stays open.
    Fence {
        key: usize,
    },
    EndFence,
    NewEra,
    EndQuarantine,
}

pub struct Stage {
    pub functions: Vec<Function>,
    database: Database,
    store: Store,
    admin: PgConnection,
    application: PgConnection,
    program: PgConnection,
    /// The honest application's.
    bank: PgConnection,
    people: People,
    fenced: Option<&'static str>,
    /// How many ids were made.
    ids: u128,
    state: State,
}

/// The sessions, which are replaced when they are found dead.
struct People {
    operator: SessionId,
    honest: SessionId,
    hostile: SessionId,
    dead: SessionId,
}

/// The role of a program: `leadergroup lock check` says what it needs, and it has no more than that, except that it may
/// look at the marks of `fence_seen`.
async fn program(database: &Database) -> PgConnection {
    let name = format!("program_{}", database.name);
    let create = format!(
        "create role {name} login password '{PASSWORD}'; grant usage on schema leadergroup to {name}"
    );
    database.sql(&create).await;
    let url = database.url().replace(&format!("{ROLE}:"), &format!("{name}:"));
    let config = DatabaseConfig { url: url.clone().into(), ..database.config() };
    let store = Store::new(&config).unwrap();
    for missing in store.check().await.unwrap().missing_privileges {
        let grant = missing.replace(" on ", " on leadergroup.");
        database.sql(&format!("grant {grant} to {name}")).await;
    }
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    database.sql(&format!("grant select on leadergroup.fence_mark to {name}")).await;
    PgConnection::connect(&url).await.unwrap()
}

impl Stage {
    pub async fn new() -> Self {
        let (database, store) = migrated().await;
        database.sql(FENCE_SEEN_SQL).await;
        let hostile = application_of(&database, "hostile").await;
        let mut admin = database.admin().await;
        let state = State::read(&mut admin).await;
        let people = People {
            operator: SessionId::new(),
            honest: SessionId::new(),
            hostile: SessionId::new(),
            dead: SessionId::new(),
        };
        Self {
            functions: functions::all(&database).await,
            application: hostile.connect().await,
            program: program(&database).await,
            bank: application(&database).await.connect().await,
            // No transaction of the honest application is ended by the honest operator.
            store: store.with_fence_policy(FencePolicy {
                patience: Duration::from_millis(2),
                overrun: Overrun::Wait,
            }),
            database,
            admin,
            people,
            fenced: None,
            ids: 0,
            state,
        }
    }

    /// Resets everything to the initial state.
    pub async fn clear(&mut self) {
        run(&mut self.bank, "rollback").await.unwrap();
        self.fenced = None;
        let reset = format!(
            "delete from leadergroup.waiter;
             delete from leadergroup.lock;
             delete from leadergroup.term;
             delete from leadergroup.session;
             delete from leadergroup.fence_mark;
             update leadergroup.meta set era = 0, quarantine = false, token_floor = 0;
             insert into leadergroup.fence_mark (key, token, role) values ('g0', 5, '{ROLE}'), ('p0', 5, null)"
        );
        self.admin.execute(AssertSqlSafe(reset)).await.unwrap();
        self.people.dead = dead_session(&self.store).await;
        self.people.operator = session(&self.store).await;
        self.state = State::read(&mut self.admin).await;
        self.replace_the_dead().await;
        let gone = key(KEYS[2]);
        take(&self.store, self.people.operator, &gone).await;
        let left = self.store.tombstone(self.people.operator, &[tombstone(&gone, GROUP)]).await.unwrap();
        assert_eq!(left, [Changed::Done]);
        self.refresh().await;
    }

    pub async fn refresh(&mut self) {
        self.state = State::read(&mut self.admin).await;
        self.replace_the_dead().await;
    }

    /// A call in the name of a session may end it. Its owner then continues with another session.
    async fn replace_the_dead(&mut self) {
        let People { operator, honest, hostile, .. } = self.people;
        let lives = |session: SessionId| self.state.lives(Some(session.as_uuid()));
        let (operates, works, annoys) = (lives(operator), lives(honest), lives(hostile));
        if operates && works && annoys {
            return;
        }
        if !operates {
            self.people.operator = session(&self.store).await;
        }
        if !works {
            self.people.honest = session(&self.store).await;
        }
        if !annoys {
            self.people.hostile = session(&self.store).await;
        }
        for group in &KEYS[..2] {
            take(&self.store, self.people.operator, &key(group)).await;
        }
        self.state = State::read(&mut self.admin).await;
    }

    pub async fn carry_out(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Call { by, function, subject, arguments, within } => {
                let function = self.functions[*function].clone();
                let outcome = self.call(*by, &function, *subject, arguments, *within).await;
                self.refresh().await;
                outcome.map(drop)
            }
            Step::Honest(honest) => {
                let before = self.state.clone();
                self.act(*honest).await;
                self.refresh().await;
                for (key, lock) in &before.locks {
                    assert!(self.state.locks[key].token >= lock.token, "{honest:?}: the token of {key} fell");
                }
                Ok(())
            }
        }
    }

    /// Makes a call, and compares what comes of it with the contract.
    pub async fn call(
        &mut self,
        by: Caller,
        function: &Function,
        subject: usize,
        arguments: &[Argument],
        within: Option<Within>,
    ) -> Result<Outcome, String> {
        self.ids += 1;
        let People { operator, honest, hostile, dead } = &self.people;
        let others = [operator, honest, dead, hostile].map(|session| session.as_uuid());
        let facts = Facts {
            state: &self.state,
            own: hostile.as_uuid(),
            others: &[&others[..], &[self.state.meta.era_id]].concat(),
            fresh: Uuid::from_u128(self.ids),
            subject,
        };
        let arguments = facts.all(&function.parameters, arguments);
        let mut limits = within.map(|within| within.limits).unwrap_or_default();
        limits.impatient |= self.fenced.is_some();
        let call = Call { caller: by, function, arguments, limits, fenced: self.fenced };
        let connection = match by {
            Caller::Application => &mut self.application,
            Caller::Program => &mut self.program,
        };
        // What programs should not call is not committed.
        let trial = by == Caller::Program && function.kind == Kind::Internal;
        let begin = match within {
            Some(within) => Some(within.begin),
            None if trial || limits.impatient => Some("begin"),
            None => None,
        };
        if let Some(begin) = begin {
            let limit = if self.fenced.is_some() { SHORT } else { "" };
            sqlx::raw_sql(AssertSqlSafe(format!("{begin}; {limit}")))
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        let outcome = send(connection, &call).await;
        let mut seen = None;
        if trial && outcome.is_ok() {
            seen = Some(State::read(connection).await);
        }
        if begin.is_some() {
            let end = if trial || outcome.is_err() { "rollback" } else { "commit" };
            run(connection, end).await.map_err(|code| format!("{call:#?}\n{end}: {code}"))?;
        }
        let kept: i64 = sqlx::query_scalar(KEPT_LOCKS).fetch_one(&mut *connection).await.unwrap();
        if kept > 0 {
            return Err(format!("it keeps {kept} advisory locks\n{call:#?}"));
        }
        let after = match seen {
            Some(after) => after,
            None => State::read(&mut self.admin).await,
        };
        let case = Case { call: &call, before: &self.state, after: &after };
        case.check(&outcome).map_err(|why| format!("{why}\n{call:#?}\n{outcome:#?}"))?;
        Ok(outcome)
    }

    async fn act(&mut self, honest: Honest) {
        let (operator, own) = (self.people.operator, self.people.honest);
        let lock = |key: &str| self.state.locks.get(key).cloned();
        let token = |key: &str| lock(key).map_or(0, |lock| lock.token);
        match honest {
            Honest::Grant { group } if self.fenced != Some(KEYS[group]) => {
                let (group, token) = (KEYS[group], token(KEYS[group]));
                let answer = grant_one(&self.store, operator, grant(&key(group), token, "pod")).await;
                assert!(
                    matches!(answer, Granted::Granted { token: next } if next > Token::new(token)),
                    "{answer:?}"
                );
            }
            Honest::Vacate { group } => {
                let (group, token) = (KEYS[group], token(KEYS[group]));
                let answer = self.store.vacate(operator, vacate(&key(group), token)).await.unwrap();
                assert_eq!(answer, Changed::Done);
            }
            Honest::Ask { key: number } => {
                let name = KEYS[number];
                let held = lock(name).filter(|lock| lock.session == Some(own.as_uuid()));
                let mut wish = AcquireRequest::new(key(name), holder("honest"), "work");
                wish.grant = held.as_ref().and_then(|lock| lock.grant_id).map_or(wish.grant, GrantId::from);
                let answer = self.store.acquire(own, &wish, Wait::InQueue).await.unwrap().outcome;
                if held.is_some() {
                    assert_eq!(answer, Acquired::Granted { token: Token::new(token(name)) });
                }
                let free =
                    lock(name).is_none_or(|lock| lock.session.is_none()) && !self.state.meta.quarantine;
                if free && self.state.queue(name).next().is_none() && self.fenced != Some(name) {
                    assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");
                }
            }
            Honest::Release { key: number } => {
                let name = KEYS[number];
                if lock(name).is_some_and(|lock| lock.session == Some(own.as_uuid())) {
                    let answer =
                        self.store.release(own, &key(name), Token::new(token(name)), "done").await.unwrap();
                    assert_eq!(answer, Changed::Done);
                }
            }
            Honest::Beat => assert!(self.store.beat(operator, &[]).await.unwrap().alive),
            Honest::Fence { key: number } if self.fenced.is_none() => {
                let name = KEYS[number];
                if lock(name).is_some_and(|lock| lock.holder_uid.is_some()) {
                    let fence = format!("begin; select leadergroup.fence('{name}', {})", token(name));
                    sqlx::raw_sql(AssertSqlSafe(fence)).execute(&mut self.bank).await.unwrap();
                    self.fenced = Some(name);
                }
            }
            Honest::EndFence => {
                assert_eq!(run(&mut self.bank, "commit").await, Ok(()), "the honest transaction was ended");
                self.fenced = None;
            }
            Honest::NewEra => drop(self.admin.execute("select leadergroup.begin_era()").await.unwrap()),
            Honest::EndQuarantine => end_quarantine(&self.database).await,
            Honest::Grant { .. } | Honest::Fence { .. } => {}
        }
    }
}

/// Sends the call. It ends in time.
async fn send(connection: &mut PgConnection, call: &Call<'_>) -> Outcome {
    let mut query = sqlx::query(AssertSqlSafe(call.function.query.clone()));
    for argument in &call.arguments {
        query = query.bind(argument.clone());
    }
    let answer = tokio::time::timeout(DEADLINE, query.fetch_all(&mut *connection)).await;
    let rows = answer.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {call:#?}"));
    let rows = rows.map_err(|error| Failure { code: code_of(&error), text: error.to_string() })?;
    let value = |row: &sqlx::postgres::PgRow| {
        let text: Option<String> = sqlx::Row::get(row, "answer");
        text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("it is JSON"))
    };
    Ok(rows.iter().map(value).collect())
}
