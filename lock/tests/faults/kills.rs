//! Every operation, while the server's process for it is killed in the middle of each of its statements: before each
//! change of a row, and when only the COMMIT remains. Nothing of it takes effect, and repeating it has the effect of
//! one.

use std::cell::Cell;

use futures::future::join_all;
use leadergroup_lock::{DatabaseConfig, Store};
use sqlx::postgres::PgConnection;

use crate::operations::{ALL, Operation, is_under_way, outcome, repeated};
use crate::postgres::{DEADLINE, Database, eventually, migrated};

const TABLES: [&str; 5] = ["session", "lock", "term", "waiter", "meta"];

/// Stops processes of the server at a chosen change, counted for each program by its name, until they are killed.
async fn set_traps(database: &Database) -> PgConnection {
    let mut sql = "create table leadergroup.trap (program text primary key, place bigint not null);
        create function leadergroup.trap() returns trigger language plpgsql security definer as $$
        declare
            victim constant text := current_setting('application_name');
        begin
            if starts_with(victim, 'trap_') and nextval(('leadergroup.' || victim)::regclass)
                = (select t.place from leadergroup.trap as t where t.program = victim)
            then
                perform pg_catalog.pg_advisory_xact_lock(4711);
            end if;
            return case when tg_op = 'DELETE' then old else new end;
        end $$;"
        .to_owned();
    for table in TABLES {
        sql += &format!(
            "create trigger trap before insert or update or delete on leadergroup.{table}
             for each row execute function leadergroup.trap();
             create constraint trigger trap_at_commit after insert or update or delete on leadergroup.{table}
             deferrable initially deferred for each row execute function leadergroup.trap();",
        );
    }
    database.sql(&sql).await;
    let mut admin = database.admin().await;
    sqlx::query("select pg_advisory_lock(4711)").execute(&mut admin).await.unwrap();
    admin
}

/// A program whose processes are killed.
struct Victim<'a> {
    database: &'a Database,
    /// A store that reaches the database without a trap.
    direct: &'a Store,
    admin: PgConnection,
    operation: Operation,
    name: String,
}

impl<'a> Victim<'a> {
    async fn new(database: &'a Database, direct: &'a Store, operation: Operation) -> Self {
        let name = format!("trap_{operation:?}").to_lowercase();
        let sequence =
            format!("create sequence leadergroup.{name}; insert into leadergroup.trap values ('{name}', 0)");
        database.sql(&sequence).await;
        Self { database, direct, admin: database.admin().await, operation, name }
    }

    /// Sets the trap to this one of the next changes.
    async fn arm(&mut self, place: i64) {
        sqlx::query(
            "with counted as (select setval(('leadergroup.' || $1)::regclass, 1, false)) \
             update leadergroup.trap set place = $2 from counted where program = $1",
        )
        .bind(&self.name)
        .bind(place)
        .execute(&mut self.admin)
        .await
        .unwrap();
    }

    /// Kills the process as soon as it is caught. `false` if the operation ended without being caught.
    async fn kill(&mut self, over: &Cell<bool>) -> bool {
        let start = std::time::Instant::now();
        while !over.get() {
            let killed: i64 = sqlx::query_scalar(
                "select count(pg_terminate_backend(a.pid)) from pg_stat_activity as a join pg_locks as l using (pid) \
                 where a.application_name = $1 and a.datname = current_database() \
                 and l.locktype = 'advisory' and l.objid = 4711 and not l.granted",
            )
            .bind(&self.name)
            .fetch_one(&mut self.admin)
            .await
            .unwrap();
            if killed > 0 {
                return true;
            }
            assert!(start.elapsed() < DEADLINE, "{:?} neither ends nor is caught", self.operation);
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        false
    }

    /// Kills it at its first, second, third ... change, until there are no more. `idle`: on a connection that was in
    /// use before; the store itself repeats a statement that breaks together with such a connection.
    async fn kill_everywhere(mut self, idle: bool) {
        let config = DatabaseConfig {
            url: format!("{}?application_name={}", self.database.url(), self.name).into(),
            ..self.database.config()
        };
        let operation = self.operation;
        let expected = operation.answer();
        for place in 1.. {
            let context = format!("{operation:?}, killed at its change {place}, idle: {idle}");
            let scene =
                operation.prepare(self.database, self.direct, &format!("{operation:?}-{place}")).await;
            let store = Store::new(&config).unwrap();
            if idle {
                store.check().await.unwrap();
            }
            let before = outcome(&mut self.admin, &scene.key).await;
            self.arm(place).await;
            let over = Cell::new(false);
            let act = async {
                let answer = operation.act(&store, &scene).await;
                over.set(true);
                answer
            };
            let (answer, killed) = tokio::join!(act, self.kill(&over));
            match &answer {
                // The store may have repeated it.
                Ok(answer) if idle && is_under_way(answer) => assert!(killed, "{context}: {answer}"),
                Ok(answer) => assert_eq!(answer, expected, "{context}"),
                Err(error) => {
                    assert!(killed && error.is_temporary(), "{context}: {error}");
                    if ![Operation::AcquireTogether, Operation::ReleaseTogether].contains(&operation) {
                        let left = outcome(&mut self.admin, &scene.key).await;
                        assert_eq!(left, before, "{context}: something of it is there");
                    }
                }
            }
            if killed {
                let answer = repeated(operation, &store, &scene).await;
                assert_eq!(answer, expected, "{context}, again");
            }
            let left = outcome(&mut self.admin, &scene.key).await;
            assert_eq!(left, operation.outcome(), "{context}: {answer:?}");
            if !killed {
                assert!(place > 2, "{operation:?} changes a row and commits");
                return;
            }
        }
    }
}

async fn killed_everywhere(idle: bool) {
    let (database, direct) = migrated().await;
    let holder = set_traps(&database).await;
    let others = ALL.iter().filter(|operation| **operation != Operation::BeatInANewEra);
    join_all(others.map(async |&operation| {
        Victim::new(&database, &direct, operation).await.kill_everywhere(idle).await;
    }))
    .await;
    // This operation runs by itself, because it changes the tokens of all keys.
    Victim::new(&database, &direct, Operation::BeatInANewEra).await.kill_everywhere(idle).await;
    let twice =
        "select count(*) from (select from leadergroup.terms group by key, token having count(*) > 1) as t";
    assert_eq!(database.number(twice).await, 0, "a token was used twice");
    let left = "select count(*) from pg_stat_activity \
                where datname = current_database() and starts_with(application_name, 'trap_')";
    eventually("no connection is left behind", async || database.number(left).await == 0).await;
    drop(holder);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_is_killed_in_the_middle_has_not_begun_and_can_be_repeated() {
    killed_everywhere(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_on_a_connection_that_was_in_use_before() {
    killed_everywhere(true).await;
}
