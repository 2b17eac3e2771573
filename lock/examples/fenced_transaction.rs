//! An application's transaction that only the present holder can commit, however late it comes.
//!
//! Needs `LEADERGROUP_DATABASE_URL`, for a database that has the lock and the application's data, and ends by itself.

use std::error::Error;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Key, Store};
use sqlx::{Connection as _, PgConnection};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let balance = run(&std::env::var("LEADERGROUP_DATABASE_URL")?).await?;
    println!("the balance is {balance}");
    Ok(())
}

/// Returns the balance at the end: 100, and the 10 of the transaction that was committed.
pub async fn run(url: &str) -> Result<i64, Box<dyn Error>> {
    let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() })?;
    store.migrate().await?;
    let client =
        Client::connect(store.clone(), ClientConfig { name: "teller".into(), ..Default::default() }).await?;
    let key = Key::new("teller")?;
    let mut bank = PgConnection::connect(url).await?;
    sqlx::query("create temporary table account (balance bigint not null)").execute(&mut bank).await?;
    sqlx::query("insert into account values (100)").execute(&mut bank).await?;

    let guard = client.lock(&key, Duration::from_secs(30)).await?;
    book(&mut bank, &key, guard.token().get(), 10).await?;

    // The lock is released by force. This process has not noticed it yet, as if it had been paused, and books once
    // more.
    store.force_release(&key, guard.token(), "to show what happens").await?;
    // LG001 is the code of the fence; nothing of this transaction was written, and trying again does not help.
    match book(&mut bank, &key, guard.token().get(), 1_000).await {
        Err(error) if code_of(&error) == "LG001" => println!("refused: {error}"),
        Err(error) => return Err(error.into()),
        Ok(()) => return Err("an old holder could book".into()),
    }
    client.shutdown().await?;
    Ok(sqlx::query_scalar("select balance from account").fetch_one(&mut bank).await?)
}

/// The fence comes first. No other holder can be granted the key before this transaction ends.
async fn book(bank: &mut PgConnection, key: &Key, token: i64, amount: i64) -> Result<(), sqlx::Error> {
    let mut transaction = bank.begin().await?;
    sqlx::query("select leadergroup.fence($1, $2)")
        .bind(key.as_str())
        .bind(token)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("update account set balance = balance + $1").bind(amount).execute(&mut *transaction).await?;
    transaction.commit().await
}

fn code_of(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.map_or_else(String::new, std::borrow::Cow::into_owned)
}
