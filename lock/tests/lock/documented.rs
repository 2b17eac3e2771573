//! The SQL in the documents does what they say.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Released, Store, Token, Transferred};

use tokio::time::timeout;

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, PASSWORD, ROLE, eventually, migrated};

const PROTOCOL: &str = include_str!("../../docs/sql-protocol.md");

/// The SQL blocks under this heading.
fn blocks(heading: &str) -> Vec<&'static str> {
    let (_, rest) = PROTOCOL.split_once(&format!("\n{heading}\n")).expect("such a heading");
    let section = rest.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    section.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// What psql prints when it runs this.
fn psql(url: &str, sql: &str) -> String {
    let mut command = Command::new("psql");
    command.args([
        "--no-psqlrc",
        "--quiet",
        "--tuples-only",
        "--no-align",
        "--set=ON_ERROR_STOP=1",
        "--file=-",
    ]);
    command.arg(url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{sql}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A role that owns nothing and has the documented privileges; returns its URL.
async fn application(database: &Database) -> String {
    let role = format!("my_app_{}", database.name);
    database.sql(&format!("create role {role} login password '{PASSWORD}'")).await;
    let [privileges] = blocks("### Privileges")[..] else { panic!("one block") };
    // As the owner of the schema.
    psql(&database.url(), &privileges.replace("my_app", &role));
    database.url().replacen(ROLE, &role, 1)
}

async fn client(store: Store, name: &str) -> Client {
    let (ttl, retry_interval) = (DEADLINE * 10, Duration::from_millis(200));
    let config = ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(store, config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_privileges_of_an_application_are_enough_and_none_is_superfluous() {
    let (database, _store) = migrated().await;
    let url = application(&database).await;
    let store = Store::new(&DatabaseConfig { url: url.as_str().into(), ..database.config() }).unwrap();
    assert_eq!(store.check().await.unwrap().verdict(), Ok(()));
    store.migrate().await.unwrap();
    let (one, two) = (client(store.clone(), "one").await, client(store.clone(), "two").await);
    let held = one.try_lock(&key("a")).await.unwrap().unwrap();
    held.publish("http://one").await.unwrap();
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.lock(&key("a"), DEADLINE).await.unwrap() }
    });
    eventually("it waits", async || store.waiters(&key("a"), 2).await.unwrap().len() == 1).await;
    let handed = held.transfer_to(leadergroup_lock::Successor::Name("two")).await.unwrap();
    assert!(matches!(handed, Transferred::Done));
    assert_eq!(waiting.await.unwrap().release().await.unwrap(), Released::Done);
    store.prune(leadergroup_lock::admin::Retention::default()).await.unwrap();
    psql(&url, "call leadergroup.prune()");
    one.shutdown().await.unwrap();
    two.shutdown().await.unwrap();

    // Without any one of them, the check names it.
    let role = format!("my_app_{}", database.name);
    for (privileges, table) in [
        ("select", "schema_version"),
        ("select", "terms"),
        ("select, update", "meta"),
        ("select, insert, delete", "term"),
        ("select, insert, update, delete", "session"),
        ("select, insert, update, delete", "lock"),
        ("select, insert, update, delete", "waiter"),
        ("select, insert, update, delete", "published"),
    ] {
        for privilege in privileges.split(", ") {
            database.sql(&format!("revoke {privilege} on leadergroup.{table} from {role}")).await;
            let missing = store.check().await.unwrap().missing_privileges;
            assert_eq!(missing, [format!("{} on {table}", privilege.to_uppercase())]);
            database.sql(&format!("grant {privilege} on leadergroup.{table} to {role}")).await;
        }
    }
    // These are all that it has.
    let all = format!(
        "select count(*) from information_schema.role_table_grants
         where grantee = '{role}' and table_schema = 'leadergroup'"
    );
    assert_eq!(database.number(&all).await, 23);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_takes_a_key_and_releases_it() {
    let (database, _store) = migrated().await;
    let url = application(&database).await;
    let [example] = blocks("## An example")[..] else { panic!("one block") };
    for token in 1..=2 {
        let said = psql(&url, example);
        assert!(said.contains(&format!("granted with token {token}\ndone\nt\n")), "{said}");
    }
    let ended = "select count(*) from leadergroup.term where end_reason = 'the report is done'";
    assert_eq!(database.number(ended).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_who_holds_and_waits_and_can_take_a_key_away() {
    let (database, store) = migrated().await;
    let report = key("nightly-report");
    let (one, two) = (client(database.store(), "one").await, client(database.store(), "two").await);
    for _ in 1..17 {
        let held = one.lock(&report, DEADLINE).await.unwrap();
        assert_eq!(held.release().await.unwrap(), Released::Done);
    }
    let held = one.lock(&report, DEADLINE).await.unwrap();
    assert_eq!(held.token(), Token::new(17), "as in the document");
    let waiting = tokio::spawn({
        let report = report.clone();
        async move { two.lock(&report, DEADLINE).await.unwrap() }
    });
    eventually("it waits", async || store.waiters(&report, 2).await.unwrap().len() == 1).await;
    let url = application(&database).await;
    let [who, take_away] = blocks("## Who holds what")[..] else { panic!("two blocks") };
    let said = psql(&url, who);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 1 + 1 + 10, "{said}");
    assert!(lines[0].starts_with("nightly-report|one|17|") && lines[0].contains("|one|f|"), "{said}");
    assert!(lines[1].starts_with("nightly-report|two|") && lines[1].contains("|two|f|"), "{said}");
    assert!(lines[2].starts_with("17|one|") && lines[3].ends_with("|released by its holder"), "{said}");

    assert_eq!(psql(&url, take_away), "17|one\ndone\n");
    assert_eq!(waiting.await.unwrap().token(), Token::new(18));
    timeout(DEADLINE, held.lost()).await.expect("it is noticed");
    let said = psql(&url, who);
    assert!(said.contains("|taken away by ann, because it hangs\n"), "{said}");
}
