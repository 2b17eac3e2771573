//! The tables of the books, in the database of the lock.

use anyhow::{Context, Result};

use super::ledger::Entry;
use crate::{database::Database, network::DATABASE_ADDRESS};

/// The database of the lock.
const LOCK: &str = "leadergroup";
/// The pods' role, and its password. Only this test's own machines can reach the database.
const ROLE: &str = "clients_view";

/// The URL for the pods.
pub(super) fn url() -> String {
    format!("postgres://{ROLE}:{ROLE}@{DATABASE_ADDRESS}:5432/{LOCK}?sslmode=disable")
}

/// Creates the tables if they do not exist, and two empty books.
pub(super) async fn open(database: &Database, name: &str) -> Result<()> {
    let sql = format!(
        "do $$ begin
            if not exists (select from pg_roles where rolname = '{ROLE}') then
                create role {ROLE} login password '{ROLE}';
            end if;
        end $$;
        set client_min_messages = warning;
        create schema if not exists {ROLE} authorization {ROLE};
        create table if not exists {ROLE}.book (
            name text, fenced boolean, version bigint not null default 0, primary key (name, fenced));
        create table if not exists {ROLE}.entry (
            name text, fenced boolean, version bigint, token bigint, pod text, writer text, number bigint);
        alter table {ROLE}.book owner to {ROLE};
        alter table {ROLE}.entry owner to {ROLE};
        grant usage on schema leadergroup to {ROLE};
        -- The operator may end transactions that would delay a change of holder.
        grant {ROLE} to leadergroup;
        delete from {ROLE}.entry where name = '{name}';
        delete from {ROLE}.book where name = '{name}';
        insert into {ROLE}.book (name, fenced) values ('{name}', true), ('{name}', false);"
    );
    database.sql(LOCK, &sql).await.context("making the books").map(drop)
}

/// The entries of a book.
pub(super) async fn entries(database: &Database, name: &str, fenced: bool) -> Result<Vec<Entry>> {
    let query = format!(
        "select version, token, pod, writer, number from {ROLE}.entry where name = '{name}' and fenced = {fenced}
         order by version"
    );
    let rows = database.sql(LOCK, &query).await.context("reading the books")?;
    rows.lines().map(|row| entry(row).with_context(|| format!("the row {row}"))).collect()
}

fn entry(row: &str) -> Result<Entry> {
    let mut columns = row.split('|');
    let mut next = || columns.next().context("too few columns");
    Ok(Entry {
        version: next()?.parse()?,
        token: next()?.parse()?,
        pod: next()?.to_owned(),
        writer: next()?.to_owned(),
        number: next()?.parse()?,
    })
}
