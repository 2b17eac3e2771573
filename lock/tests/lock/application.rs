//! What the role of an application can do, which may only connect and use the schema, for `leadergroup.fence`.

use leadergroup_lock::{SessionId, Token, protocol::AcquireRequest};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor, Row};

use crate::cast::{grant, grant_one, granted, holder, key, session, take};
use crate::fence::{STALE, application, run, state};
use crate::holders::queue;
use crate::postgres::{Database, migrated};

/// No privilege; not a table, but a sequence; a view that cannot be written to.
const REFUSED: [&str; 3] = ["42501", "42809", "55000"];

/// The content of all tables, as text.
async fn content(admin: &mut PgConnection) -> Vec<String> {
    let mut rows = Vec::new();
    for table in ["meta", "session", "lock", "term", "waiter", "schema_version"] {
        let all = format!("select '{table} ' || t::text as row from leadergroup.{table} as t order by 1");
        rows.extend(
            admin.fetch_all(AssertSqlSafe(all)).await.unwrap().iter().map(|row| row.get::<String, _>("row")),
        );
    }
    rows
}

/// Calls of every function of the schema that can be called, with arguments that would do harm: those of the session
/// `own`, which holds the key `a` under token 1 and waits for others.
async fn calls(admin: &mut PgConnection, own: SessionId) -> Vec<String> {
    let functions = "select p.proname as name, p.prokind = 'p' as is_procedure, array(
            select format_type(t.oid, null) from unnest(p.proargtypes) with ordinality as a (type, place)
            join pg_type as t on t.oid = a.type order by a.place
        ) as types
        from pg_proc as p
        where p.pronamespace = 'leadergroup'::regnamespace and p.prorettype <> 'trigger'::regtype
        order by p.proname";
    let key_of_a = format!(
        r#"{{"key": "a", "token": 1, "reason": "x", "grant_id": "{own}", "uid": "u", "namespace": "n",
        "name": "n", "wait": true}}"#
    );
    let argument = |kind: &str| match kind {
        "text" => "'a'".to_owned(),
        "uuid" => format!("'{own}'::uuid"),
        "uuid[]" => format!("array['{own}'::uuid]"),
        "bigint" => "1::bigint".to_owned(),
        "bigint[]" => "array[1::bigint]".to_owned(),
        "integer" => "1".to_owned(),
        "boolean" => "true".to_owned(),
        "interval" => "'1 h'::interval".to_owned(),
        "jsonb" => format!("'[{key_of_a}]'::jsonb"),
        "leadergroup.meta" => "null::leadergroup.meta".to_owned(),
        other => panic!("an argument of the type {other}"),
    };
    let found = admin.fetch_all(functions).await.unwrap();
    let call = |row: &sqlx::postgres::PgRow| {
        let (name, types): (String, Vec<String>) = (row.get("name"), row.get("types"));
        let arguments: Vec<String> = types.iter().map(|kind| argument(kind)).collect();
        let verb = if row.get("is_procedure") { "call" } else { "select" };
        let call = format!("{verb} leadergroup.{name}({})", arguments.join(", "));
        // This one takes a single request.
        if name == "acquire_one" { call.replace(['[', ']'], "") } else { call }
    };
    found.iter().map(call).collect()
}

async fn held_and_awaited() -> (Database, SessionId) {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    assert_eq!(grant_one(&store, own, grant(&key("a"), 0, "p0")).await, granted(1));
    for _ in 0..2 {
        let request = AcquireRequest::new(key("of-programs"), holder("p"), "test");
        queue(&store, own, &request).await;
    }
    (database, own)
}

#[tokio::test]
async fn it_can_call_every_function_and_change_nothing() {
    let (database, own) = held_and_awaited().await;
    let mut admin = database.admin().await;
    let before = content(&mut admin).await;
    let calls = calls(&mut admin, own).await;
    assert!(calls.len() > 25, "{calls:#?}");
    let mut bank = application(&database).await.connect().await;
    let mut allowed = Vec::new();
    for call in &calls {
        match bank.execute(AssertSqlSafe(call.as_str())).await {
            Ok(_) => allowed.push(call.split(['.', '(']).nth(1).unwrap()),
            Err(error) => assert_eq!(state(&error), "42501", "{call}: {error}"),
        }
    }
    assert_eq!(content(&mut admin).await, before);
    // They compute something, take the advisory lock of a fence or look at its holders, or send a notification: what
    // every user of a database can do.
    let harmless = [
        "fence",
        "fence_blockers",
        "fence_id",
        "fence_pass",
        "history",
        "next_token",
        "programs",
        "read_history",
        "wake",
        "wake_all",
    ];
    assert_eq!(allowed, harmless);
}

#[tokio::test]
async fn it_can_neither_read_nor_write_a_table() {
    let (database, _own) = held_and_awaited().await;
    let mut admin = database.admin().await;
    let before = content(&mut admin).await;
    let relations = "select relname::text from pg_class
        where relnamespace = 'leadergroup'::regnamespace and relkind in ('r', 'v', 'S') order by 1";
    let relations: Vec<String> = sqlx::query_scalar(relations).fetch_all(&mut admin).await.unwrap();
    assert!(relations.len() >= 7, "{relations:?}");
    let mut bank = application(&database).await.connect().await;
    for relation in &relations {
        for statement in ["select from", "delete from", "truncate", "insert into"] {
            let values = if statement == "insert into" { "default values" } else { "" };
            let tried = run(&mut bank, &format!("{statement} leadergroup.{relation} {values}")).await;
            let refused = tried.as_ref().is_err_and(|state| REFUSED.contains(&state.as_str()));
            assert!(refused, "{statement} {relation}: {tried:?}");
        }
    }
    assert_eq!(run(&mut bank, "create table leadergroup.mine (a int)").await, Err("42501".to_owned()));
    assert_eq!(content(&mut admin).await, before);
}

/// The fence tells the role which token is the current one, and the role can then hold the fence of any key. It is
/// ended like any fenced transaction that takes too long.
#[tokio::test]
async fn it_cannot_hold_the_fence_of_another_application_for_longer_than_the_bound() {
    let (database, own) = held_and_awaited().await;
    let mut bank = application(&database).await.connect().await;
    assert_eq!(run(&mut bank, "select leadergroup.fence('a', 7)").await, Err(STALE.to_owned()));
    assert_eq!(run(&mut bank, "begin; select leadergroup.fence('a', 1)").await, Ok(()));
    let store = database.store();
    assert_eq!(grant_one(&store, own, grant(&key("a"), 1, "p1")).await, granted(2));
    assert!(run(&mut bank, "select 1").await.is_err(), "its connection was ended");
    assert_eq!(store.read(&[key("a")]).await.unwrap()[0].token, Token::new(2));
}

/// Otherwise an application could put its own objects in the place of those that the function means.
#[tokio::test]
async fn functions_with_the_owners_rights_ignore_the_callers_search_path() {
    let (database, _own) = held_and_awaited().await;
    let mut admin = database.admin().await;
    let functions = "select p.oid::regprocedure::text, coalesce(array_to_string(p.proconfig, '; '), '')
        from pg_proc as p where p.pronamespace = 'leadergroup'::regnamespace and p.prosecdef";
    let functions: Vec<(String, String)> = sqlx::query_as(functions).fetch_all(&mut admin).await.unwrap();
    assert!(!functions.is_empty());
    for (function, settings) in functions {
        let path = settings.split("; ").find_map(|setting| setting.strip_prefix("search_path="));
        assert_eq!(path, Some("pg_catalog, pg_temp"), "{function} has {settings:?}");
    }
    let mut bank = application(&database).await.connect().await;
    for table in ["lock", "term", "meta"] {
        let forged = format!(
            "create temp table {table} (key text, token bigint); insert into {table} values ('a', 7);"
        );
        assert_eq!(run(&mut bank, &forged).await, Ok(()));
    }
    assert_eq!(run(&mut bank, "set search_path = pg_temp, leadergroup, pg_catalog").await, Ok(()));
    assert_eq!(run(&mut bank, "select leadergroup.fence('a', 7)").await, Err(STALE.to_owned()));
    assert_eq!(run(&mut bank, "select leadergroup.fence('a', 1)").await, Ok(()));
}
