//! A job of a program without an async runtime: only one copy of the program does the job at a time.
//!
//! Needs `LEADERGROUP_DATABASE_URL`, and ends by itself.

use std::error::Error;
use std::time::Duration;

use leadergroup_lock::{ClientConfig, DatabaseConfig, Key, Store, blocking};

fn main() -> Result<(), Box<dyn Error>> {
    // If the lock is lost in the middle, this ends with an error that says so.
    let pages = run(&std::env::var("LEADERGROUP_DATABASE_URL")?)?;
    println!("{pages} pages are written");
    Ok(())
}

/// Returns how many pages were written.
pub fn run(url: &str) -> Result<usize, Box<dyn Error>> {
    let store = Store::new(&DatabaseConfig { url: url.into(), ..DatabaseConfig::default() })?;
    blocking::migrate(&store)?;
    let config = ClientConfig { name: "reporter".into(), ..ClientConfig::default() };
    let client = blocking::Client::connect(store, config)?;
    // A closure cannot be stopped in the middle, so it checks before each page whether it still has the lock.
    let written = client.run_while_held(&Key::new("report")?, Duration::from_mins(1), |guard| {
        (1..=10).take_while(|_| !guard.is_lost()).inspect(|page| println!("page {page}")).count()
    })?;
    client.shutdown()?;
    Ok(written)
}
