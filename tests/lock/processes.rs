//! Four processes with eight clients each want the same key, and a fifth that is killed while it holds it. One client of
//! each does not queue, but tries until it has it. What they tell is put together: one holder at a time, tokens that only
//! grow, and nobody served before one that queued up earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use leadergroup::lock::{Client, ClientConfig, DatabaseConfig, Guard, Store, monotonic};

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, eventually, migrated};
use crate::program::{self, Program};

const URL: &str = "LEADERGROUP_TEST_PROCESS_URL";
/// Holds the key for ever once it has it.
const STUCK: &str = "LEADERGROUP_TEST_PROCESS_STUCK";
const PROCESSES: usize = 4;
const CLIENTS: usize = 8;
const TURNS: usize = 3;

/// What a line of a process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    began: bool,
    token: i64,
    at: Duration,
}

fn say(what: &str, token: i64) {
    program::say(&format!("{what} {token} {}", monotonic().as_micros()));
}

fn understand(line: &str) -> Word {
    let [what, token, at] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    Word {
        began: what == "began",
        token: token.parse().unwrap(),
        at: Duration::from_micros(at.parse().unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one of the processes of the other test"]
async fn process() {
    let Ok(url) = std::env::var(URL) else { return };
    let stuck = std::env::var(STUCK).is_ok();
    let store = Store::new(&DatabaseConfig {
        url: url.into(),
        statement_timeout: Duration::from_secs(20),
        ..DatabaseConfig::default()
    })
    .unwrap();
    let mut turns = Vec::new();
    for number in 0..CLIENTS {
        let (ttl, retry_interval) = (Duration::from_secs(3), Duration::from_millis(300));
        let config = ClientConfig { ttl, retry_interval, ..ClientConfig::default() };
        let client = Client::connect(store.clone(), config).await.unwrap();
        turns.push(tokio::spawn(take_turns(client, number > 0, stuck)));
    }
    for turn in turns {
        turn.await.unwrap();
    }
}

async fn take_turns(client: Client, queues: bool, stuck: bool) {
    for _ in 0..if queues { TURNS } else { 1 } {
        let guard =
            if queues { client.lock(&key("a"), DEADLINE * 3).await.unwrap() } else { insist(&client).await };
        if guard.is_lost() {
            continue;
        }
        say("began", guard.token().get());
        if stuck {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        say("ended", guard.token().get());
        guard.release().await.unwrap();
    }
}

/// Has no place in the queue, and gets the key only when nobody waits for it.
async fn insist(client: &Client) -> Guard {
    loop {
        if let Some(guard) = client.try_lock(&key("a")).await.unwrap() {
            return guard;
        }
    }
}

fn start(database: &Database, stuck: bool) -> Program {
    let stuck = stuck.then(|| (STUCK, "yes".to_owned()));
    Program::start("processes::process", stuck.into_iter().chain([(URL, database.url())]))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_processes_one_client_holds_the_key_at_a_time_in_the_order_of_the_queue() {
    let (database, _store) = migrated().await;
    database
        .sql(
            "create table queued (id bigint, request uuid);
             create function note() returns trigger language plpgsql security definer as
             'begin insert into public.queued values (new.id, new.request); return new; end';
             create trigger note after insert on leadergroup.waiter for each row execute function note();
             create table jumped (token bigint);
             -- Whoever begins a term has the row locked: nobody can queue up at this moment.
             create function watch() returns trigger language plpgsql security definer as
             'begin
                  if exists (
                      select from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
                      where w.key = new.key and not s.dead and w.id < coalesce(
                          (select q.id from public.queued as q where q.request = new.grant_id), w.id + 1
                      )
                  ) then
                      insert into public.jumped values (new.token);
                  end if;
                  return new;
              end';
             create trigger watch before insert on leadergroup.term for each row execute function watch()",
        )
        .await;
    let stuck = start(&database, true);
    let first = understand(&stuck.says());
    let others: Vec<_> = (0..PROCESSES).map(|_| start(&database, false)).collect();
    let everybody = i64::try_from(PROCESSES * (CLIENTS - 1)).unwrap();
    let waiting = "select count(*) from leadergroup.waiter";
    eventually("all others wait", async || database.number(waiting).await >= everybody).await;
    drop(stuck);
    let killed_at = monotonic();

    let mut terms = BTreeMap::from([(first.token, (first.at, killed_at))]);
    for mut process in others {
        let status = tokio::task::block_in_place(|| process.wait());
        assert!(status.success(), "{status}");
        let mut began = BTreeMap::new();
        for word in process.last_words().map(|line| understand(&line)) {
            if word.began {
                assert_eq!(began.insert(word.token, word.at), None, "token {} was used twice", word.token);
            } else {
                let term = (began[&word.token], word.at);
                assert_eq!(terms.insert(word.token, term), None, "token {} was used twice", word.token);
            }
        }
        assert!(began.len() <= CLIENTS * TURNS);
    }
    assert!(terms.len() > PROCESSES * CLIENTS, "most had their turns: {}", terms.len());
    let all: Vec<_> = terms.into_iter().collect();
    for pair in all.windows(2) {
        let [(token, (_, ended)), (next, (began, _))] = pair else { unreachable!() };
        assert!(ended <= began, "terms {token} and {next} overlap: {ended:?}, {began:?}");
    }
    assert_eq!(
        database.number("select count(*) from jumped").await,
        0,
        "somebody was served before one that queued up earlier"
    );
    let from_the_queue =
        "select count(*) from leadergroup.term as t join queued as q on q.request = t.grant_id";
    assert!(database.number(from_the_queue).await > everybody);
}
