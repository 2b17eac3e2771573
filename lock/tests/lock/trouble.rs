//! Failures between a program and its database: each has its own error, which says what to do and reveals no secret.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use leadergroup_lock::{DatabaseConfig, LockError, Store};

use tracing::Dispatch;

use crate::cast::{Log, TTL, grant, grant_one, granted, key, session, take};
use crate::postgres::{Database, PASSWORD, ROLE, Server, database, eventually, migrated, shared};

/// A store for the shared server with a changed URL.
fn store(database: &Database, change: impl Fn(String) -> String) -> Store {
    Store::new(&DatabaseConfig { url: change(database.url()).into(), ..DatabaseConfig::default() }).unwrap()
}

/// The error, after a check that neither it nor the store reveals the password.
async fn error(store: &Store) -> LockError {
    let error = store.check().await.unwrap_err();
    for text in [error.to_string(), format!("{error:?}"), format!("{store:?}")] {
        assert!(!text.contains(PASSWORD) && !text.contains("wrong-secret"), "{text}");
    }
    error
}

#[tokio::test]
async fn a_refused_login_is_told_apart_from_an_unreachable_server() {
    let database = database().await;
    let wrong_password = store(&database, |url| url.replace(PASSWORD, "wrong-secret"));
    assert!(matches!(error(&wrong_password).await, LockError::Login { .. }));
    let unknown_user = store(&database, |url| url.replace(ROLE, "nobody"));
    assert!(matches!(error(&unknown_user).await, LockError::Login { .. }));
    let unknown_database = store(&database, |url| url.replace(&database.name, "nowhere"));
    let text = error(&unknown_database).await;
    assert!(matches!(text, LockError::Login { .. }) && text.to_string().contains("nowhere"), "{text}");
    let port = shared().port().to_string();
    let nobody_listens = store(&database, |url| url.replace(&port, "1"));
    let text = error(&nobody_listens).await;
    assert!(
        matches!(text, LockError::Unreachable { .. }) && text.to_string().contains("127.0.0.1:1/"),
        "{text}"
    );
    let no_such_host = store(&database, |url| url.replace("127.0.0.1", "no-such-host.invalid"));
    assert!(matches!(error(&no_such_host).await, LockError::Unreachable { .. }));
}

#[tokio::test]
async fn the_password_file_wins_and_is_read_again() {
    let database = database().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let config = DatabaseConfig {
        url: database.url().replace(PASSWORD, "wrong-secret").into(),
        password_file: Some(file.clone()),
        ..DatabaseConfig::default()
    };
    let store = Store::new(&config).unwrap();
    let missing = error(&store).await;
    assert!(matches!(missing, LockError::File { key: "password_file", .. }), "{missing}");
    std::fs::write(&file, "\n").unwrap();
    let empty = error(&store).await.to_string();
    assert!(
        empty.starts_with("`password_file`: ") && empty.contains("it is empty; write the password"),
        "{empty}"
    );
    std::fs::write(&file, "wrong-secret\n").unwrap();
    assert!(matches!(error(&store).await, LockError::Login { .. }));
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    store.check().await.unwrap();
}

#[tokio::test]
async fn a_full_server_says_so() {
    let database = database().await;
    database.sql("create role limited login password 'limited' connection limit 1").await;
    let config = DatabaseConfig {
        url: database.url().replace(PASSWORD, "limited").replace(ROLE, "limited").into(),
        ..DatabaseConfig::default()
    };
    let first = Store::new(&config).unwrap();
    first.check().await.unwrap();
    let second = Store::new(&config).unwrap();
    let refused = second.check().await.unwrap_err();
    assert!(matches!(refused, LockError::NoConnection { .. }), "{refused}");
    drop(first);
    eventually("there is room again", async || second.check().await.is_ok()).await;
}

#[tokio::test]
async fn a_read_only_database_is_recognised_everywhere() {
    let (database, writing) = migrated().await;
    let own = session(&writing).await;
    let key = key("a");
    take(&writing, own, &key).await;
    database.sql(&format!("alter database {} set default_transaction_read_only = on", database.name)).await;
    let store = database.store();
    let health = store.check().await.unwrap();
    assert!(!health.writable);
    assert_eq!(health.verdict(), Err(LockError::ReadOnly));
    assert_eq!(store.migrate().await, Err(LockError::ReadOnly));
    assert_eq!(store.register("replica", TTL, None, None).await, Err(LockError::ReadOnly));
    assert_eq!(store.beat(own, &[]).await, Err(LockError::ReadOnly));
    assert_eq!(store.grant(own, grant(&key, 0, "p0")).await, Err(LockError::ReadOnly));
    assert_eq!(store.close(own).await, Err(LockError::ReadOnly));
    assert_eq!(store.read(&[key]).await.unwrap().len(), 1, "reading goes on");
}

#[tokio::test]
async fn a_standby_is_read_only_too() {
    let server = Server::start(&[]);
    let (_database, store) = server.migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    server.stop();
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.launch();
    assert_eq!(store.check().await.unwrap().verdict(), Err(LockError::ReadOnly));
    assert_eq!(store.beat(own, &[]).await, Err(LockError::ReadOnly));
    assert_eq!(store.grant(own, grant(&key, 0, "p0")).await, Err(LockError::ReadOnly));
}

#[tokio::test]
async fn a_healthy_database_is_called_healthy() {
    let (_database, store) = migrated().await;
    let health = store.check().await.unwrap();
    assert_eq!(health.verdict(), Ok(()));
    assert_eq!(health.schema_version, Some(health.program_version));
    assert!(
        health.server_version.starts_with(|first: char| first.is_ascii_digit()),
        "{}",
        health.server_version
    );
    assert_eq!(health.missing_privileges, [""; 0]);
}

#[tokio::test]
async fn missing_privileges_are_named() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    database.sql(&format!("create role guest_{} login password 'guest'", database.name)).await;
    let url = database.url().replace(PASSWORD, "guest").replace(ROLE, &format!("guest_{}", database.name));
    let guest = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() }).unwrap();
    let verdict = guest.check().await.unwrap().verdict().unwrap_err();
    assert!(verdict.to_string().contains("USAGE on schema leadergroup"), "{verdict}");
    assert!(matches!(guest.migrate().await, Err(LockError::Privileges { .. })));
    assert!(matches!(guest.register("replica", TTL, None, None).await, Err(LockError::Privileges { .. })));

    database
        .sql(&format!(
            "grant usage on schema leadergroup to guest_{0};
             grant select, insert, update, delete on all tables in schema leadergroup to guest_{0};
             revoke insert on leadergroup.term from guest_{0}",
            database.name
        ))
        .await;
    let health = guest.check().await.unwrap();
    assert_eq!(health.missing_privileges, ["INSERT on term"]);
    // A term enters the history when it ends.
    assert_eq!(grant_one(&guest, own, grant(&key, 0, "p0")).await, granted(1));
    let refused = guest.grant(own, grant(&key, 1, "p1")).await.unwrap_err();
    assert!(matches!(refused, LockError::Privileges { .. }), "{refused}");
    database.sql(&format!("grant insert on leadergroup.term to guest_{}", database.name)).await;
    assert_eq!(guest.check().await.unwrap().verdict(), Ok(()));
    guest.migrate().await.unwrap();
    assert_eq!(grant_one(&guest, own, grant(&key, 1, "p1")).await, granted(2), "needs no more than these");
    database
        .sql(&format!(
            "revoke update on leadergroup.lock from guest_{0};
             revoke execute on function leadergroup.give_up(uuid, text, uuid) from public, app",
            database.name
        ))
        .await;
    let mut missing = guest.check().await.unwrap().missing_privileges;
    missing.sort();
    let function = "EXECUTE on function leadergroup.give_up(uuid,text,uuid)";
    assert_eq!(missing, [function, "UPDATE on lock"], "functions, too");
    let refused = guest.grant(own, grant(&key, 2, "p2")).await.unwrap_err();
    assert!(matches!(refused, LockError::Privileges { .. }), "{refused}");
}

#[tokio::test]
async fn a_role_that_may_not_make_the_schema_is_told_so() {
    let database = database().await;
    database.sql(&format!("alter database {} owner to postgres", database.name)).await;
    let store = database.store();
    let verdict = store.migrate().await.unwrap_err();
    assert!(matches!(verdict, LockError::Privileges { .. }), "{verdict}");
    assert!(verdict.to_string().contains("CREATE on database"), "{verdict}");
    // The administrator creates the schema for the role: that is enough.
    database.sql(&format!("create schema leadergroup authorization {ROLE}")).await;
    store.migrate().await.unwrap();
    store.register("replica", TTL, None, None).await.unwrap();
}

#[tokio::test]
async fn without_the_schema_everything_says_migrate() {
    let database = database().await;
    let store = database.store();
    assert!(matches!(store.check().await.unwrap().verdict(), Err(LockError::SchemaOld { found: 0, .. })));
    for refused in [
        store.register("replica", TTL, None, None).await.unwrap_err(),
        store.beat(leadergroup_lock::SessionId::new(), &[]).await.unwrap_err(),
        store.read(&[key("a")]).await.unwrap_err(),
    ] {
        assert!(matches!(refused, LockError::SchemaOld { .. }), "{refused}");
        assert!(refused.to_string().contains("`Store::migrate`"), "{refused}");
    }
}

#[tokio::test]
async fn a_newer_schema_is_fine_unless_it_says_otherwise() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    database.sql("insert into leadergroup.schema_version values (98, 1)").await;
    store.migrate().await.unwrap();
    assert!(store.beat(own, &[]).await.unwrap().alive);
    assert_eq!(store.check().await.unwrap().schema_version, Some(98));

    database.sql("insert into leadergroup.schema_version values (99, 42)").await;
    let too_new = Err(LockError::SchemaNew { needed: 42, known: 8 });
    assert_eq!(store.check().await.unwrap().verdict(), too_new);
    assert_eq!(store.migrate().await, too_new);
    assert_eq!(store.register("replica", TTL, None, None).await.map(|_| ()), too_new);
    // A program that was already running when the newer one changed the schema.
    assert_eq!(store.beat(own, &[]).await.map(|_| ()), too_new);
}

/// One that takes in all tables is named before the schema is there.
#[tokio::test]
async fn publications_that_replicate_the_lock_are_named() {
    let database = database().await;
    let store = database.store();
    let named = async || store.check().await.unwrap().publications;
    database.sql("create table public.mine (); create publication mine for table public.mine").await;
    assert_eq!(named().await, [""; 0]);
    database.sql("create publication everything for all tables").await;
    assert_eq!(named().await, ["everything"]);

    let log = Log::default();
    let seeing = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    // With two subscribers, a thread without one does not decide for all which events are of interest.
    let (_other, seeing) = (Dispatch::new(tracing_subscriber::registry()), Dispatch::new(seeing));
    let logging = tracing::dispatcher::set_default(&seeing);
    store.migrate().await.unwrap();
    drop(logging);
    let warning = "logical replication must not include the schema `leadergroup`";
    assert!(log.text().contains(warning) && log.text().contains("everything"), "{}", log.text());

    database.sql("create publication two for table leadergroup.lock, leadergroup.term").await;
    let health = store.check().await.unwrap();
    assert_eq!(
        (&health.publications[..], health.verdict()),
        (&["everything".into(), "two".into()][..], Ok(()))
    );
    database.sql("drop publication everything; drop publication two").await;
    assert_eq!(named().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_programs_migrate_at_once() {
    let database = database().await;
    let migrations: Vec<_> = (0..8)
        .map(|_| {
            let store = database.store();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
    assert_eq!(database.number("select count(*) from leadergroup.schema_version").await, 8);
    assert_eq!(database.number("select count(*) from leadergroup.meta").await, 1);
}

#[tokio::test]
async fn a_migration_that_fails_changes_nothing() {
    let database = database().await;
    // In the way of the migration's last steps.
    database.sql(&format!("create schema leadergroup authorization {ROLE}")).await;
    database.sql("create table leadergroup.term (nonsense int)").await;
    let store = database.store();
    assert!(matches!(store.migrate().await, Err(LockError::Privileges { .. } | LockError::Database { .. })));
    let tables =
        "select count(*) from pg_class where relnamespace = 'leadergroup'::regnamespace and relkind = 'r'";
    assert_eq!(database.number(tables).await, 1);
    database.sql("drop table leadergroup.term").await;
    store.migrate().await.unwrap();
}

/// Turns TLS on: a CA, and a certificate of it for the name `localhost` only. Returns the CA's file.
fn turn_tls_on(server: &Server, directory: &Path) -> PathBuf {
    let openssl = |arguments: &str| {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=test-ca"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=server"));
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
    );
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(server.data()).unwrap());
    for name in ["server.crt", "server.key"] {
        let target = server.data().join(name);
        std::fs::copy(directory.join(name), &target).unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&target, Some(owner), None).unwrap();
    }
    server.stop();
    server.set("ssl", "on");
    server.launch();
    directory.join("ca.crt")
}

#[tokio::test]
async fn tls_is_verified() {
    let server = Server::start(&[]);
    let database = server.database().await;
    let plain = store(&database, |url| url + "?sslmode=verify-full");
    let refused = error(&plain).await;
    assert!(matches!(refused, LockError::Tls { .. }), "a server without TLS: {refused}");

    let directory = tempfile::tempdir().unwrap();
    let ca = turn_tls_on(&server, directory.path());
    let with = |host: &str, mode: &str, ca: Option<&PathBuf>| {
        let url = database.url().replace("127.0.0.1", host) + mode;
        Store::new(&DatabaseConfig { url: url.into(), ca_file: ca.cloned(), ..DatabaseConfig::default() })
            .unwrap()
    };
    let encrypted = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) \
                     where s.ssl and a.application_name = 'leadergroup'";
    let good = with("localhost", "", Some(&ca));
    good.check().await.unwrap();
    assert_eq!(database.number(encrypted).await, 1);
    // The certificate is not for this name.
    with("127.0.0.1", "?sslmode=verify-ca", Some(&ca)).check().await.unwrap();
    let refused = error(&with("127.0.0.1", "?sslmode=verify-full", Some(&ca))).await;
    assert!(matches!(refused, LockError::Tls { .. }), "{refused}");
    // No known CA has signed it.
    let refused = error(&with("localhost", "?sslmode=verify-full", None)).await;
    assert!(matches!(refused, LockError::Tls { .. }), "{refused}");
    // Another CA.
    let other = tempfile::tempdir().unwrap();
    let status = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            "k",
        ])
        .args(["-out", "other.crt", "-days", "2", "-subj", "/CN=test-ca"])
        .current_dir(other.path())
        .output()
        .unwrap();
    assert!(status.status.success());
    let refused = error(&with("localhost", "", Some(&other.path().join("other.crt")))).await;
    assert!(matches!(refused, LockError::Tls { .. }), "{refused}");
    // `require` with a CA verifies the certificate.
    let refused = error(&with("localhost", "?sslmode=require", Some(&other.path().join("other.crt")))).await;
    assert!(matches!(refused, LockError::Tls { .. }), "{refused}");
    let refused = error(&with("localhost", "", Some(&PathBuf::from("/no/such/file")))).await;
    assert!(refused.to_string().contains("`ca_file`"), "{refused}");
}
