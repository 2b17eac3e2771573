//! Tests of `leadergroup migrate` with a real PostgreSQL.

#[path = "../lock/tests/postgres/mod.rs"]
mod postgres;

use std::process::{Command, Output};

fn migrate(url: &str) -> Output {
    // The program would refuse the tests' own variables as misspelt settings.
    let mut command = Command::new(env!("CARGO_BIN_EXE_leadergroup"));
    command.env_clear().args(["migrate", "--replica", "test"]).env("LEADERGROUP_DATABASE_URL", url);
    command.output().expect("the program runs")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn the_tables_are_made_and_a_second_time_changes_nothing() {
    let database = postgres::database().await;
    for _ in 0..2 {
        let output = migrate(&database.url());
        assert!(output.status.success(), "{}", errors(&output));
        let tables = "select count(*) from information_schema.tables where table_schema = 'leadergroup'";
        assert!(database.number(tables).await >= 5);
    }
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_without_its_password() {
    let database = postgres::database().await;
    let url = database.url();
    for wrong in [
        url.replace(postgres::PASSWORD, "wr0ng-passw0rd"),
        url.replace(&format!("/{}", database.name), "/no_such_database"),
        // Port 1 of loopback, without a listener.
        format!("postgres://{}:wr0ng-passw0rd@127.0.0.1:1/x", postgres::ROLE),
    ] {
        let output = migrate(&wrong);
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with("leadergroup: ") && errors.lines().count() == 1, "{errors}");
        assert!(errors.contains("127.0.0.1:"), "it says which database: {errors}");
        assert!(!errors.contains("wr0ng") && !errors.contains(postgres::PASSWORD), "{errors}");
        println!("{errors}");
    }
}
