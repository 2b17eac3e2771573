//! The tables of both databases in one form. Times are left out: they are for people.

use leadergroup_lock::memory::MemoryDatabase;
use serde_json::{Map, Value};

use crate::postgres::Database;

const READ: &str = "select jsonb_build_object(
        'meta', (select to_jsonb(m) || jsonb_build_object('in_its_era', m.history = leadergroup.history())
                 from leadergroup.meta as m),
        'sessions', (select coalesce(jsonb_agg(to_jsonb(s)), '[]') from leadergroup.session as s),
        'locks', (select coalesce(jsonb_agg(to_jsonb(l)), '[]') from leadergroup.lock as l),
        'terms', (select coalesce(jsonb_agg(to_jsonb(t)), '[]') from leadergroup.term as t),
        'waiters', (select coalesce(jsonb_agg(to_jsonb(w)), '[]') from leadergroup.waiter as w),
        'published', (select coalesce(jsonb_agg(to_jsonb(p)), '[]') from leadergroup.published as p)
    )::text";

/// Columns that may differ: times, and what only one of the databases has.
const LEFT_OUT: [&str; 10] = [
    "registered_at",
    "seen",
    "dead_at",
    "lock_timestamp",
    "granted_at",
    "ended_at",
    "asked_at",
    "pruned_at",
    "history",
    "only_row",
];

/// The tables, by their names.
pub async fn of_server(database: &Database) -> Map<String, Value> {
    let mut admin = database.admin().await;
    let text: String = sqlx::query_scalar(READ).fetch_one(&mut admin).await.unwrap();
    in_one_form(serde_json::from_str(&text).unwrap())
}

/// The same of a database in memory.
pub fn of_memory(database: &MemoryDatabase) -> Map<String, Value> {
    let mut tables = database.dump();
    tables["meta"]["in_its_era"] = (tables["meta"]["history"] == tables["history"]).into();
    let Value::Object(mut tables) = tables else { panic!("no tables: {tables}") };
    tables.remove("history");
    in_one_form(tables)
}

fn in_one_form(tables: Map<String, Value>) -> Map<String, Value> {
    let form = |(name, table)| {
        let rows: Vec<Value> = match table {
            Value::Array(rows) => rows,
            row @ Value::Object(_) => vec![row],
            other => panic!("no table: {other}"),
        };
        let mut rows: Vec<Value> = rows.into_iter().map(row).collect();
        // By their primary keys.
        rows.sort_by_key(|row| {
            let id = row["id"].as_i64().map_or_else(|| row["id"].to_string(), |id| format!("{id:020}"));
            (row["key"].to_string(), row["token"].as_i64(), id)
        });
        if name == "waiters" {
            number(&mut rows);
        }
        (name, Value::Array(rows))
    };
    tables.into_iter().map(form).collect()
}

/// Numbers waiters by their places in the queues of their keys. In which order one statement adds waiters for several
/// keys depends on the planner.
fn number(waiters: &mut [Value]) {
    let mut before: Option<(Value, u64)> = None;
    for waiter in waiters {
        let place = before.take().filter(|(key, _)| *key == waiter["key"]).map_or(0, |(_, place)| place + 1);
        waiter["id"] = place.into();
        before = Some((waiter["key"].clone(), place));
    }
}

/// The row without what is left out, and with its holder in three columns.
fn row(row: Value) -> Value {
    let Value::Object(mut row) = row else { panic!("no row: {row}") };
    row.retain(|column, _| !LEFT_OUT.contains(&column.as_str()));
    if let Some(holder) = row.remove("holder") {
        for part in ["uid", "namespace", "name"] {
            row.insert(format!("holder_{part}"), holder.get(part).cloned().unwrap_or_default());
        }
    }
    Value::Object(row)
}
