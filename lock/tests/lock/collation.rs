//! Text is compared byte by byte, whatever the database's own collation is: an index in that collation can miss rows
//! after an upgrade of the collation library, and a second row for a key is a second holder.

use leadergroup_lock::{
    Changed, Key, Store, Token,
    admin::{FENCE_SEEN_SQL, Retention, WaiterInfo},
    protocol::{AcquireRequest, Acquired, Wait},
};
use sqlx::Executor as _;

use crate::cast::{claim, grant, grant_all, granted, holder, key, session};
use crate::postgres::{Database, ROLE, database, migrated, shared};

#[tokio::test]
async fn every_column_of_text_that_is_stored_is_compared_byte_by_byte() {
    let (database, _store) = migrated().await;
    database.admin().await.execute(FENCE_SEEN_SQL).await.unwrap();
    let columns = "select c.relname || '.' || a.attname || ': ' || coalesce(l.collname, 'none')
                   from pg_attribute as a
                   join pg_class as c on c.oid = a.attrelid
                   join pg_type as t on t.oid = a.atttypid
                   left join pg_collation as l on l.oid = a.attcollation
                   where c.relnamespace = 'leadergroup'::regnamespace and a.attnum > 0 and not a.attisdropped
                   and t.typcategory = 'S'
                   order by 1";
    let columns: Vec<String> =
        sqlx::query_scalar(columns).fetch_all(&mut database.admin().await).await.unwrap();
    let others: Vec<_> = columns.iter().filter(|column| !column.ends_with(": C")).collect();
    assert!(others.is_empty(), "{others:?}");
    for known in ["lock.key: C", "term.key: C", "waiter.key: C", "terms.key: C", "fence_mark.key: C"] {
        assert!(columns.iter().any(|column| column == known), "{known} is not in {columns:?}");
    }
}

/// The fence was installed by an earlier version.
#[tokio::test]
async fn marks_of_a_fence_that_were_made_in_another_collation_are_changed() {
    let database = database().await;
    let mut admin = database.admin().await;
    admin
        .execute(
            "create schema leadergroup;
             create table leadergroup.fence_mark (key text primary key, token bigint not null);
             insert into leadergroup.fence_mark values ('a', 7)",
        )
        .await
        .unwrap();
    for _ in 0..2 {
        admin.execute(FENCE_SEEN_SQL).await.unwrap();
        let collation =
            "select count(*) from pg_attribute where attrelid = 'leadergroup.fence_mark'::regclass
                         and attname = 'key' and attcollation = '\"C\"'::regcollation";
        assert_eq!(database.number(collation).await, 1);
        assert_eq!(database.number("select token from leadergroup.fence_mark where key = 'a'").await, 7);
    }
}

/// A database with this collation and the schema.
async fn sorted(name: &str, options: &str) -> (Database, Store) {
    shared()
        .psql(&format!("create database {name} owner {ROLE} template template0 encoding 'UTF8' {options}"));
    let database = shared().database_called(name);
    let store = database.store();
    store.migrate().await.unwrap();
    (database, store)
}

/// Names that differ by case, by accents, by the encoding of an accent, by characters that are often ignored, and by
/// width. In the order of their bytes.
const NAMES: [&str; 14] = [
    "A-1",
    "B",
    "STRASSE",
    "Strasse",
    "Straße",
    "a",
    "a-1",
    "a1",
    "b",
    "cafe",
    "cafe\u{301}",
    "caf\u{e9}",
    "\u{e1}",
    "\u{ff21}",
];

/// Whether the collation sorts by bytes. It must not, or the test shows nothing.
async fn sorts_by_bytes(database: &Database) -> bool {
    let sorted = "select array(select unnest($1::text[]) as name order by name) = $1";
    sqlx::query_scalar(sorted).bind(&NAMES[..]).fetch_one(&mut database.admin().await).await.unwrap()
}

async fn all(store: &Store) -> Vec<String> {
    let mut all = Vec::new();
    let mut after: Option<Key> = None;
    loop {
        let page = store.list("", after.as_ref(), 3).await.unwrap();
        let Some(last) = page.last() else { return all };
        after = Some(last.key.clone());
        all.extend(page.into_iter().map(|lock| lock.key.to_string()));
    }
}

async fn keys_are_told_apart(store: &Store) {
    let (own, other) = (session(store).await, session(store).await);
    // Not in the order of their bytes.
    let shuffled = || NAMES.iter().rev().step_by(2).chain(NAMES.iter().rev().skip(1).step_by(2));
    let waits = |name: &str| AcquireRequest::new(key(name), holder(&format!("waits for {name}")), "test");
    for name in shuffled() {
        let request = AcquireRequest::new(key(name), holder(name), "test");
        let answer = store.acquire(own, &request, Wait::No).await.unwrap().outcome;
        assert_eq!(answer, Acquired::Granted { token: Token::new(1) }, "{name}");
        let answer = store.acquire(other, &waits(name), Wait::InQueue).await.unwrap().outcome;
        assert_eq!(answer, Acquired::Waiting, "{name}");
    }
    assert_eq!(all(store).await, NAMES);
    let prefixed: Vec<_> = store.list("Stra", None, 10).await.unwrap();
    let prefixed: Vec<_> = prefixed.iter().map(|lock| lock.key.as_str()).collect();
    assert_eq!(prefixed, ["Strasse", "Straße"]);
    for name in NAMES {
        let waiting: Vec<WaiterInfo> = store.waiters(&key(name), 10).await.unwrap();
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].holder, waits(name).holder);
        assert_eq!(store.info(&key(name)).await.unwrap().unwrap().holder, Some(holder(name)));
        let released = store.release(own, &key(name), Token::new(1), "done").await.unwrap();
        assert_eq!(released, Changed::Done);
        let history = store.history(&key(name), 10).await.unwrap();
        let holders: Vec<_> = history.iter().map(|term| term.term.holder.clone()).collect();
        assert_eq!(holders, [waits(name).holder, holder(name)]);
    }
    // This also reads all of them page by page.
    let pruned = store.prune(Retention { terms: 1, ..Retention::default() }).await.unwrap();
    assert_eq!((pruned.terms, pruned.keys), (0, 0));
    let claims: Vec<_> = NAMES.iter().map(|name| claim(&key(&format!("group's {name}")))).collect();
    assert_eq!(store.claim(own, &claims).await.unwrap().len(), NAMES.len());
    let grants: Vec<_> = NAMES.iter().map(|name| grant(&key(&format!("group's {name}")), 0, name)).collect();
    assert_eq!(grant_all(store, own, &grants).await, vec![granted(1); NAMES.len()]);
    let rows = store.rows_of(own).await.unwrap();
    let holders: Vec<_> = rows.iter().filter_map(|row| row.holder.clone()).collect();
    assert_eq!(holders, NAMES.map(|name| format!("uid-{name}")));
}

/// If the server has no such collation, there is nothing to test.
#[tokio::test]
async fn keys_are_told_apart_in_databases_of_any_collation() {
    const CANDIDATES: [(&str, &str, &str); 4] = [
        (
            "icu_root",
            "select 1 from pg_collation where collprovider = 'i' limit 1",
            "locale_provider icu icu_locale 'und' locale 'C'",
        ),
        (
            "icu_lax",
            "select 1 from pg_collation where collprovider = 'i' limit 1",
            "locale_provider icu icu_locale 'und-u-ka-shifted-ks-level1' locale 'C'",
        ),
        ("libc_utf8", "select 1 from pg_collation where collname = 'C.utf8'", "locale 'C.utf8'"),
        ("libc_us", "select 1 from pg_collation where collname = 'en_US.utf8'", "locale 'en_US.utf8'"),
    ];
    let plain = database().await;
    let mut tested = 0;
    for (name, available, options) in CANDIDATES {
        let available: Option<i32> =
            sqlx::query_scalar(available).fetch_optional(&mut plain.admin().await).await.unwrap();
        if available.is_none() {
            continue;
        }
        let (database, store) = sorted(name, options).await;
        assert_eq!(sorts_by_bytes(&database).await, name == "libc_utf8", "{name}");
        keys_are_told_apart(&store).await;
        tested += 1;
    }
    assert!(tested > 0, "a server without any collation but C");
}
