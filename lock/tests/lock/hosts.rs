//! Several hosts in the URL: the one that accepts writes is found, and found again after a failover.

use std::net::TcpListener;
use std::time::Duration;

use leadergroup_lock::{DatabaseConfig, LockError, Store};

use crate::cast::{TTL, session};
use crate::connections::connections;
use crate::postgres::{Database, PASSWORD, ROLE, Server, database, eventually, migrated};

fn store(like: &Database, url: &str) -> Store {
    Store::new(&DatabaseConfig { url: url.into(), ..like.config() }).unwrap()
}

/// A port without a listener.
const NOBODY: &str = "127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn the_host_that_takes_writes_is_found_in_any_order() {
    let server = Server::start(&[]);
    let (primary, own) = server.migrated().await;
    drop(own);
    let copy = server.standby();
    copy.launch();
    let standby = copy.database_called(&primary.name);
    let (name, first, second) = (&primary.name, server.port(), copy.port());
    for url in [
        primary.url_with(&standby),
        standby.url_with(&primary),
        standby.url_with(&primary) + "?target_session_attrs=read-write",
        standby.url_with(&primary) + "?target_session_attrs=primary",
        format!(
            "postgres:///{name}?user={ROLE}&password={PASSWORD}&host=127.0.0.1,127.0.0.1&port={second},{first}"
        ),
        format!("postgres://{ROLE}:{PASSWORD}@localhost,127.0.0.1/{name}?port={first}"),
        format!("postgres://{ROLE}:{PASSWORD}@{NOBODY},127.0.0.1:{second},127.0.0.1:{first}/{name}"),
    ] {
        let store = store(&primary, &url);
        let own = session(&store).await;
        assert!(store.beat(own, &[]).await.unwrap().alive, "{url}");
        assert_eq!(connections(&primary).await, 2, "{url}");
        eventually("nothing is left on the standby", async || connections(&standby).await == 0).await;
        drop(store);
        eventually("all connections are closed", async || connections(&primary).await == 0).await;
    }

    // For `any`, the first host that answers is used; the same applies to a single host.
    for url in [standby.url_with(&primary) + "?target_session_attrs=any", standby.url()] {
        let store = store(&primary, &url);
        assert!(!store.check().await.unwrap().writable);
        assert_eq!(store.register("replica", TTL, None, None).await, Err(LockError::ReadOnly));
    }
    let only = store(&primary, &(standby.url() + "?target_session_attrs=read-write"));
    assert_eq!(only.check().await.unwrap_err(), LockError::ReadOnly);

    // No host is suitable: the error says why, for each of them.
    server.stop();
    let none = store(&primary, &primary.url_with(&standby));
    for error in [none.check().await.unwrap_err(), none.migrate().await.unwrap_err()] {
        assert!(matches!(&error, LockError::NoHost { hosts } if hosts.len() == 2), "{error:?}");
        assert!(error.is_temporary() && error.is_an_answer());
        let text = error.to_string();
        let (away, read_only) = text.split_once("; ").unwrap();
        assert!(away.contains(&format!("127.0.0.1:{first}/{name}: ")) && away.contains("refused"), "{text}");
        assert!(
            read_only.contains(&format!("127.0.0.1:{second}/{name}: it accepts no writes (a standby, ")),
            "{text}"
        );
        assert!(!format!("{text} {error:?} {none:?}").contains(PASSWORD), "{text} {error:?} {none:?}");
    }
}

#[tokio::test]
async fn a_login_that_no_host_takes_is_told_without_the_password() {
    let database = database().await;
    let url = database.url_with(&database).replace(PASSWORD, "wrong-secret");
    let error = store(&database, &url).check().await.unwrap_err();
    assert!(!error.is_temporary() && error.is_an_answer());
    assert_eq!(error.to_string().matches("refused the login").count(), 2, "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong-secret"), "{error:?}");
}

/// The silent host takes its share of the time once; from then on, the host that worked comes first.
#[tokio::test]
async fn a_host_that_hangs_delays_the_first_connection_only() {
    let (database, _) = migrated().await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = database.url().replace('@', &format!("@{},", silent.local_addr().unwrap()));
    let config =
        DatabaseConfig { url: url.into(), statement_timeout: Duration::from_secs(4), ..database.config() };
    let store = Store::new(&config).unwrap();
    let own = session(&store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "it was tried first");
    assert!(silent.accept().is_err(), "and not again");
}

/// A server that is made read-only keeps its connections. After a write was refused on one of them, none is used again.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_server_that_takes_no_writes_any_more_are_given_up() {
    let server = Server::start(&[]);
    let (old, _) = server.migrated().await;
    let store = store(&old, &old.url_with(&old));
    let own = session(&store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
    let copy = server.standby();
    copy.launch();
    let new = copy.database_called(&old.name);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), old.url_with(&new)).unwrap();
    let config = DatabaseConfig { url: "".into(), url_file: Some(file.path().to_owned()), ..old.config() };
    let moving = Store::new(&config).unwrap();
    let before = moving.beat(own, &[]).await.unwrap();
    assert!(before.alive);
    moving.check().await.unwrap();

    copy.psql("select pg_promote()");
    server.psql("alter system set default_transaction_read_only = on");
    server.psql("select pg_reload_conf()");
    eventually("a heartbeat finds the new primary", async || {
        moving.beat(own, &[]).await.is_ok_and(|beat| beat.alive && beat.era != before.era)
    })
    .await;
    assert!(
        moving.check().await.unwrap().writable,
        "the connection for work follows, though it met no error"
    );
    assert_eq!(new.number("select right(history, 8)::bigint from leadergroup.meta").await, 2, "its timeline");
    assert_eq!(connections(&new).await, 2);
    // If there is no other server, the error says so.
    eventually("a heartbeat is refused", async || store.beat(own, &[]).await == Err(LockError::ReadOnly))
        .await;
    assert!(matches!(store.beat(own, &[]).await, Err(LockError::NoHost { .. })));
}
