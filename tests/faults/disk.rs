//! A full disk: changes are refused with the server's words, nothing is half done, and all goes on once there is room.

use leadergroup::lock::{Granted, LockError, Token};
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Executor};

use crate::cast::{grant, key, session, take};
use crate::postgres::{ROLE, Server, unprivileged};

/// The database's disk is a small one in memory, in a mount namespace that ends with the server.
#[tokio::test]
async fn a_full_disk_refuses_changes_and_loses_none() {
    let Some(uid) = unprivileged() else {
        eprintln!("not root: no disk can be made to fill up; left out");
        return;
    };
    let server = Server::start(&[]);
    let small = server.socket().join("small");
    server.stop();
    std::fs::create_dir(&small).unwrap();
    let mount =
        format!("mount -t tmpfs -o size=20m,mode=700,uid={uid} none {} && exec \"$@\"", small.display());
    server.wrap(&["unshare", "--mount", "sh", "-c", &mount, "sh"]);
    server.launch();
    server.psql(&format!("create tablespace small location '{}'", small.display()));
    server.psql(&format!("create database full_disk owner {ROLE} tablespace small"));
    let database = server.database_called("full_disk");
    let store = database.store();
    store.migrate().await.unwrap();
    let own = session(&store).await;
    take(&store, own, &key("a")).await;

    let mut admin = database.admin().await;
    admin.execute("create table public.filler (stuff text); alter table public.filler alter stuff set storage plain").await.unwrap();
    for size in [1000, 1] {
        let fill =
            format!("insert into public.filler select repeat('x', 7000) from generate_series(1, {size})");
        let filled = loop {
            if let Err(error) = admin.execute(AssertSqlSafe(fill.as_str())).await {
                break error;
            }
        };
        let code = filled.as_database_error().and_then(DatabaseError::code).unwrap_or_default().into_owned();
        assert_eq!(code, "53100", "{filled}");
    }

    // There may be some room left in the pages that the table has.
    let mut token = 0;
    let refused = loop {
        match store.grant(own, &[grant(&key("a"), token, "p0")]).await {
            Ok(granted) => {
                assert_eq!(granted, [Granted::Granted { token: Token::new(token + 1) }]);
                token += 1;
                assert!(token < 2_000, "the disk is not full");
            }
            Err(error) => break error,
        }
    };
    let LockError::Database { statement: "grant", code, message } = &refused else { panic!("{refused}") };
    assert!(code == "53100" && message.contains("No space left on device"), "{refused}");
    assert!(store.beat(own).await.unwrap().alive, "heartbeats need no room");

    admin.execute("drop table public.filler").await.unwrap();
    admin.execute("checkpoint").await.unwrap();
    let granted = store.grant(own, &[grant(&key("a"), token, "p1")]).await.unwrap();
    assert_eq!(granted, [Granted::Granted { token: Token::new(token + 1) }]);
    let terms = database.number("select count(distinct token) from leadergroup.term").await;
    assert_eq!(terms, token + 1, "each term is there, and none of what was refused");
}
