//! A URL in a file: errors do not contain its content, and a change applies at once.

use futures::StreamExt as _;
use leadergroup_lock::{DatabaseConfig, LockError, Store, controller::Hint};

use crate::cast::{Log, session};
use crate::connections::connections;
use crate::postgres::{Database, PASSWORD, database, eventually, migrated, shared};

#[tokio::test]
async fn a_url_in_a_file_counts_as_soon_as_it_is_right() {
    let database = database().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    let path = file.display().to_string();
    let config = DatabaseConfig { url: "".into(), url_file: Some(file.clone()), ..database.config() };
    let store = Store::new(&config).unwrap();
    let error = async || {
        let error = store.check().await.unwrap_err();
        let text = error.to_string();
        assert!(!format!("{text} {error:?} {store:?}").contains(PASSWORD), "{text} {error:?} {store:?}");
        (error, text)
    };
    let url = database.url();
    let wrong: [(Option<Vec<u8>>, &str, &str); 9] = [
        (None, "No such file", "make it a file that this program may read"),
        (Some(b"\r\n".to_vec()), "it is empty", "write the URL into it"),
        (Some([url.as_bytes(), b"\xff"].concat()), "it is not UTF-8", "write the URL into it as plain text"),
        (Some(url.replacen("//", "/", 1).into()), "it does not start with postgres://", "write postgres://"),
        (Some(format!("url: {url}").into()), "it does not start with postgres://", "write postgres://"),
        (
            Some(format!("{url}?sslmod={PASSWORD}").into()),
            "unknown parameter \"sslmod\"",
            "write postgres://",
        ),
        (Some(format!("{url}\n{url}\n").into()), "it contains a line break", "write postgres://"),
        (Some(url.replacen("//app:", "//app:1?", 1).into()), "a / or ? before an @", "? as %3F"),
        (
            Some(format!("postgres://app:{PASSWORD}@127.0.0.1:x/a").into()),
            "invalid port",
            "write postgres://",
        ),
    ];
    for (content, problem, remedy) in wrong {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let (error, text) = error().await;
        assert!(matches!(error, LockError::File { key: "url_file", .. }), "{error:?}");
        assert!(text.starts_with(&format!("`url_file`: cannot use {path}: ")), "{text}");
        assert!(text.contains(problem) && text.contains(remedy), "{text}");
    }
    // The error is about the place to which the URL leads now.
    let port = shared().port().to_string();
    std::fs::write(&file, url.replace(&port, "1")).unwrap();
    let (_, text) = error().await;
    assert!(text.contains(&format!("cannot reach PostgreSQL at 127.0.0.1:1/{}", database.name)), "{text}");
    std::fs::write(&file, url.replace(&database.name, "nowhere")).unwrap();
    let (_, text) = error().await;
    assert!(text.contains(&format!("127.0.0.1:{port}/nowhere refused the login")), "{text}");

    std::fs::write(&file, format!("{url}\n")).unwrap();
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    let own = session(&store).await;
    assert!(store.beat(own, &[]).await.unwrap().alive);
}

#[tokio::test]
async fn connections_follow_the_url_in_its_file_but_outlive_one_that_is_wrong() {
    let (from, first) = migrated().await;
    let (to, second) = migrated().await;
    drop((first, second));
    let gone = async |database: &Database| {
        eventually("there are no connections", async || connections(database).await == 0).await;
    };
    gone(&from).await;
    gone(&to).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    std::fs::write(&file, from.url()).unwrap();
    let config = DatabaseConfig { url: "".into(), url_file: Some(file.clone()), ..from.config() };
    let store = Store::new(&config).unwrap();
    let hints = store.listen();
    let mut hints = std::pin::pin!(hints);
    assert_eq!(hints.next().await, Some(Hint::Missed));
    let own = session(&store).await;
    store.check().await.unwrap();
    assert!(store.beat(own, &[]).await.unwrap().alive);
    assert_eq!(connections(&from).await, 3, "one each for work, heartbeats and hints");

    let born = "select (extract(epoch from max(backend_start)) * 1000000)::bigint from pg_stat_activity \
                where datname = current_database() and application_name = 'leadergroup'";
    let before = from.number(born).await;
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let logging = tracing::subscriber::set_default(subscriber);
    std::fs::write(&file, from.url().replacen("//", "/", 1)).unwrap();
    eventually("the wrong URL was noticed", async || {
        assert!(store.beat(own, &[]).await.unwrap().alive);
        store.check().await.unwrap();
        log.text().contains("present connections are kept")
    })
    .await;
    drop(logging);
    assert!(!log.text().contains(PASSWORD), "{}", log.text());
    assert!(store.beat(own, &[]).await.unwrap().alive);
    store.check().await.unwrap();
    assert_eq!(from.number(born).await, before, "no connection was made again");

    std::fs::write(&file, to.url()).unwrap();
    eventually("the old connections are given up, that for work without any", async || {
        // The other database does not have this session.
        let _ = store.beat(own, &[]).await;
        connections(&from).await == 1
    })
    .await;
    // The connection for hints follows with the next hint, or when there was none for a while.
    from.sql("select pg_notify('leadergroup', '')").await;
    assert_eq!(hints.next().await, Some(Hint::Missed));
    gone(&from).await;
    let own = session(&store).await;
    store.check().await.unwrap();
    assert!(store.beat(own, &[]).await.unwrap().alive);
    assert_eq!(connections(&to).await, 3, "one each for work, heartbeats and hints");
}
