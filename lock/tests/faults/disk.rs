//! A full disk: changes are refused with the server's error, nothing is half done, and everything continues once there
//! is room.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, LockError, Token, controller::Granted};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use crate::cast::{grant, key, session, take};
use crate::postgres::{DEADLINE, ROLE, Server, eventually, unprivileged};

/// If this variable is set, tests that need root pass without it, and prove nothing.
const WITHOUT_ROOT: &str = "LEADERGROUP_TEST_WITHOUT_ROOT";

/// The user that servers run as, if small disks can be mounted. `make test` requires root.
fn if_root() -> Option<u32> {
    let uid = unprivileged();
    let allowed = std::env::var_os(WITHOUT_ROOT).is_some();
    assert!(uid.is_some() || allowed, "only root can mount a small disk; {WITHOUT_ROOT}=1 skips such tests");
    uid
}

/// The database's disk is a small one in memory, in a mount namespace that ends with the server.
#[tokio::test]
async fn a_full_disk_refuses_changes_and_loses_none() {
    let Some(uid) = if_root() else { return };
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

    // The table's pages may have some room left.
    let mut token = 0;
    let refused = loop {
        match store.grant(own, grant(&key("a"), token, "p0")).await {
            Ok(granted) => {
                assert_eq!(granted, Granted::Granted { token: Token::new(token + 1) });
                token += 1;
                assert!(token < 2_000, "the disk is not full");
            }
            Err(error) => break error,
        }
    };
    let LockError::Database { statement: "grant", code, message } = &refused else { panic!("{refused}") };
    assert!(code == "53100" && message.contains("No space left on device"), "{refused}");
    assert!(store.beat(own, &[]).await.unwrap().alive, "heartbeats need no room");

    admin.execute("drop table public.filler").await.unwrap();
    admin.execute("checkpoint").await.unwrap();
    let granted = store.grant(own, grant(&key("a"), token, "p1")).await.unwrap();
    assert_eq!(granted, Granted::Granted { token: Token::new(token + 1) });
    let terms = database.number("select count(distinct token) from leadergroup.terms").await;
    assert_eq!(terms, token + 1, "each term is there, and no refused one");
}

/// A disk of its own for the write-ahead log, in memory: in a mount namespace that outlives the server's crashes, and
/// ends with this process.
struct LogDisk {
    namespace: Child,
    filler: PathBuf,
}

impl LogDisk {
    /// Moves the log of the server, which starts again on it.
    fn under(server: &Server, uid: u32) -> Self {
        const SCRIPT: &str = r#"
            mount -t tmpfs -o size=64m,mode=700,uid="$3" none "$2"
            cp -a "$1/." "$2"
            mount --bind "$2" "$1"
            echo ready
            exec cat
        "#;
        let (log, disk) = (server.data().join("pg_wal"), server.socket().join("log-disk"));
        server.stop();
        std::fs::create_dir(&disk).unwrap();
        let mut namespace = Command::new("unshare")
            .args(["--mount", "sh", "-ec", SCRIPT, "sh"])
            .args([&log, &disk])
            .arg(uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(namespace.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "a disk in memory needs the right to mount one");
        let mounts = format!("--mount=/proc/{}/ns/mnt", namespace.id());
        server.wrap(&["nsenter", &mounts, "--wd=/", "--"]);
        server.launch();
        // The path as the server's processes see it.
        let filler = PathBuf::from(format!("/proc/{}/root", namespace.id()))
            .join(disk.strip_prefix("/").unwrap())
            .join("filler");
        Self { namespace, filler }
    }

    fn fill(&self) {
        let full =
            std::io::copy(&mut std::io::repeat(0), &mut File::create(&self.filler).unwrap()).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    }

    fn make_room(&self) {
        std::fs::remove_file(&self.filler).unwrap();
    }
}

impl Drop for LogDisk {
    fn drop(&mut self) {
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}

/// PostgreSQL gives up when it cannot write its log, and starts again once there is room. Everything that it had
/// answered is kept.
#[tokio::test(flavor = "multi_thread")]
async fn with_no_room_for_its_log_the_server_ends_and_loses_nothing() {
    const HOUR: Duration = Duration::from_hours(1);
    const TTL: Duration = Duration::from_secs(4);
    let Some(uid) = if_root() else { return };
    let server = Server::start(&[]);
    let disk = LogDisk::under(&server, uid);
    let (database, store) = server.migrated().await;
    let config = ClientConfig { ttl: TTL, retry_interval: TTL / 20, ..ClientConfig::default() };
    let holder = Client::connect(database.store(), config.clone()).await.unwrap();
    let next = Client::connect(database.store(), config).await.unwrap();
    let held = holder.lock(&key("held"), DEADLINE).await.unwrap();
    let waiting = tokio::spawn(async move { next.lock(&key("held"), DEADLINE).await.unwrap() });
    let waiters = "select count(*) from leadergroup.waiter";
    eventually("the next one waits", async || database.number(waiters).await == 1).await;
    let own = store.register("operator", HOUR, None, None).await.unwrap().0;
    take(&store, own, &key("a")).await;

    disk.fill();
    let mut admin = database.admin().await;
    admin.execute("create table public.filler (stuff text); alter table public.filler alter stuff set storage plain").await.unwrap();
    // The rest of the log's last file is used up almost completely by others, and then by the lock.
    let left = "select (16777216 - (pg_current_wal_insert_lsn() - '0/0') % 16777216)::bigint";
    let fill = "insert into public.filler select repeat('x', 7000) from generate_series(1, 5)";
    let mut token = 0;
    let mut wanted = grant(&key("a"), token, "p0");
    let refused = loop {
        let used_up = async |admin: &mut PgConnection| {
            while sqlx::query_scalar::<_, i64>(left).fetch_one(&mut *admin).await? > 200_000 {
                admin.execute(fill).await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        // The server may end at this moment; the lock then notices it as well.
        let _ = used_up(&mut admin).await;
        match store.grant(own, wanted.clone()).await {
            Ok(granted) => {
                token += 1;
                assert_eq!(granted, Granted::Granted { token: Token::new(token) });
                assert!(token < 5_000, "the disk is not full");
                wanted = grant(&key("a"), token, "p0");
            }
            Err(error) => break error,
        }
    };
    assert!(refused.is_temporary(), "{refused}");
    assert!(token > 0);
    timeout(DEADLINE, held.lost()).await.expect("without any notification");
    assert!(!waiting.is_finished(), "no request is granted while there is no room");
    let log = server.log();
    assert!(log.contains("PANIC") && log.contains("No space left on device"), "{log}");

    disk.make_room();
    // It has usually ended by itself.
    server.kill();
    server.launch();
    // Whether it took effect or not: this is the same request.
    token += 1;
    let granted = store.grant(own, wanted).await.unwrap();
    assert_eq!(granted, Granted::Granted { token: Token::new(token) });
    let next = waiting.await.unwrap();
    // Its own session may have ended as well, with a term that was granted as soon as the server was back.
    assert!(next.token() > held.token());
    assert!(held.is_lost() && !next.is_lost());
    let history = "select count(*) from leadergroup.terms where key = 'a' and token between 1 and";
    let kept = database.number(&format!("{history} {token}")).await;
    assert_eq!(kept, token, "each term is there");
    assert_eq!(database.number(&format!("{history} 1000000")).await, token, "and no other, and none twice");
}
