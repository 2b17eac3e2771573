//! The functions of the schema as the catalog lists them, and who may call each.

use std::collections::BTreeSet;

use sqlx::{Executor, Row};

use crate::postgres::Database;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every role may call it: it computes, looks, locks or notifies, and changes no row.
    Harmless,
    /// Every role may call it: it raises a mark of `leadergroup.fence_seen`.
    Marks,
    /// A call of the protocol: only programs may, and it changes what their session has.
    Protocol,
    /// A part of the others, which no client calls. It trusts its caller, who could write to the tables as well.
    Internal,
}

/// All functions that can be called, except for those that prune: they are statements with arguments, and what they may
/// remove is tested with them.
const LISTED: [(&str, Kind); 33] = [
    ("acquire", Kind::Protocol),
    ("acquire_one", Kind::Internal),
    ("beat", Kind::Protocol),
    ("begin_era", Kind::Internal),
    ("begin_term", Kind::Internal),
    ("close", Kind::Protocol),
    ("commits_were_lost", Kind::Protocol),
    ("end_hold", Kind::Internal),
    ("end_quarantine", Kind::Protocol),
    ("fence", Kind::Harmless),
    ("fence_blockers", Kind::Harmless),
    ("fence_id", Kind::Harmless),
    ("fence_mark_id", Kind::Harmless),
    ("fence_mark_raise", Kind::Marks),
    ("fence_mark_read", Kind::Harmless),
    ("fence_pass", Kind::Harmless),
    ("fence_seen", Kind::Marks),
    ("give_up", Kind::Protocol),
    ("hand_on", Kind::Internal),
    ("history", Kind::Harmless),
    ("look", Kind::Internal),
    ("mark_dead", Kind::Protocol),
    ("next_token", Kind::Harmless),
    ("note_whether_awaited", Kind::Internal),
    ("present_era", Kind::Internal),
    ("programs", Kind::Harmless),
    ("publish", Kind::Protocol),
    ("queue_is_full", Kind::Internal),
    ("read_history", Kind::Harmless),
    ("register", Kind::Protocol),
    ("release", Kind::Protocol),
    ("wake", Kind::Harmless),
    ("wake_all", Kind::Harmless),
];

#[derive(Debug, Clone)]
pub struct Parameter {
    pub name: String,
    /// Its type, as PostgreSQL writes it.
    pub of: String,
}

#[derive(Debug, Clone)]
pub struct Function {
    pub name: &'static str,
    pub kind: Kind,
    pub parameters: Vec<Parameter>,
    /// A query with a text for each argument, and a row of JSON for each row of the answer.
    pub query: String,
}

/// Finds all functions; fails if one is not listed here, or if one that is listed is gone.
pub async fn all(database: &Database) -> Vec<Function> {
    let catalog = "select p.proname::text as name, p.proargnames[1:p.pronargs]::text[] as parameters, array(
            select format_type(a.type, null) from unnest(p.proargtypes) with ordinality as a (type, place)
            order by a.place
        ) as types, p.prorettype = 'void'::regtype as void
        from pg_proc as p
        where p.pronamespace = 'leadergroup'::regnamespace and p.proname !~ 'prun(e|ing)' and p.prorettype <> 'trigger'::regtype
        order by p.proname";
    let rows = database.admin().await.fetch_all(catalog).await.unwrap();
    let names: Vec<String> = rows.iter().map(|row| row.get("name")).collect();
    let (found, listed) =
        (BTreeSet::from_iter(&names), LISTED.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    let listed = BTreeSet::from_iter(&listed);
    let (new, gone): (Vec<_>, Vec<_>) =
        (found.difference(&listed).collect(), listed.difference(&found).collect());
    assert!(new.is_empty(), "say in `LISTED` who may call these functions: {new:?}");
    assert!(gone.is_empty(), "there are no such functions: {gone:?}");
    assert_eq!(names.len(), found.len(), "two functions have one name: {names:?}");
    let function = |(row, (name, kind)): (&sqlx::postgres::PgRow, &(&'static str, Kind))| {
        let names: Option<Vec<String>> = row.get("parameters");
        let types: Vec<String> = row.get("types");
        let parameters: Vec<Parameter> = names
            .unwrap_or_default()
            .into_iter()
            .zip(types)
            .map(|(name, of)| Parameter { name, of })
            .collect();
        let arguments: Vec<String> = (1..)
            .zip(&parameters)
            .map(|(place, parameter)| format!("${place}::text::{}", parameter.of))
            .collect();
        let answer = if row.get("void") { "null" } else { "to_jsonb(t)::text" };
        let query =
            format!("select {answer} as answer from leadergroup.{name}({}) as t", arguments.join(", "));
        Function { name, kind: *kind, parameters, query }
    };
    rows.iter().zip(&LISTED).map(function).collect()
}
