//! Four processes with eight clients each want the same key, and a fifth process is killed while it holds it. One
//! client of each process does not queue, but tries until it has the key. Their reports are combined: one holder at a
//! time, tokens that only grow, and no request served before one that queued up earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use leadergroup_lock::{Client, ClientConfig, DatabaseConfig, Guard, Store, monotonic};

use crate::cast::key;
use crate::postgres::{DEADLINE, Database, eventually, migrated};
use crate::program::{self, Program};

const URL: &str = "LEADERGROUP_TEST_PROCESS_URL";
/// Holds the key for ever once it has it.
const STUCK: &str = "LEADERGROUP_TEST_PROCESS_STUCK";
const PROCESSES: usize = 4;
const CLIENTS: usize = 8;
const TURNS: usize = 3;

/// The meaning of a line that a process prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    what: What,
    token: i64,
    at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Began,
    Ended,
    /// Lost before its work was done, on a machine that was busy for longer than the ttl: the term ended some time ago.
    Lost,
}

fn say(what: &str, token: i64) {
    program::say(&format!("{what} {token} {}", monotonic().as_micros()));
}

fn understand(line: &str) -> Word {
    let [what, token, at] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let what = match what {
        "began" => What::Began,
        "ended" => What::Ended,
        "lost" => What::Lost,
        _ => panic!("{line}"),
    };
    Word { what, token: token.parse().unwrap(), at: Duration::from_micros(at.parse().unwrap()) }
}

/// When the terms of a process began and ended, by their tokens. A term whose end it did not report lasted until the
/// process was killed.
fn terms(words: impl Iterator<Item = Word>, killed_at: Option<Duration>) -> BTreeMap<i64, Term> {
    let mut terms = BTreeMap::new();
    for word in words {
        match word.what {
            What::Began => {
                let before = terms.insert(word.token, (word.at, killed_at));
                assert_eq!(before, None, "token {} was used twice", word.token);
            }
            What::Ended => terms.get_mut(&word.token).unwrap().1 = Some(word.at),
            What::Lost => {
                let (began, ended) = terms.get_mut(&word.token).unwrap();
                *ended = Some(*began);
            }
        }
    }
    let whole = |(token, (began, ended)): (i64, (_, Option<_>))| (token, (began, ended.unwrap()));
    terms.into_iter().map(whole).collect()
}

type Term = (Duration, Duration);

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
        // It has to keep the key until it is killed, even on a machine that is too busy for its heartbeats.
        let ttl = Duration::from_secs(if stuck { 10 } else { 3 });
        let retry_interval = Duration::from_millis(300);
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
            guard.lost().await;
            say("ended", guard.token().get());
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        say(if guard.is_lost() { "lost" } else { "ended" }, guard.token().get());
        let _ = guard.release().await.unwrap();
    }
}

/// Takes no place in the queue, and gets the key only when there are no waiters.
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
            "create table queued (id bigint, grant_id uuid);
             create function note() returns trigger language plpgsql security definer as
             'begin insert into public.queued values (new.id, new.grant_id); return new; end';
             create trigger note after insert on leadergroup.waiter for each row execute function note();
             create table jumped (token bigint);
             -- The row is locked where a term begins: no request can queue up at this moment.
             create function watch() returns trigger language plpgsql security definer as
             'begin
                  if exists (
                      select from leadergroup.waiter as w join leadergroup.session as s on s.id = w.session
                      where w.key = new.key and not s.dead and w.id < coalesce(
                          (select q.id from public.queued as q where q.grant_id = new.grant_id), w.id + 1
                      )
                  ) then
                      insert into public.jumped values (new.token);
                  end if;
                  return new;
              end';
             create trigger watch before update of token on leadergroup.lock for each row execute function watch()",
        )
        .await;
    let mut stuck = start(&database, true);
    let first = understand(&stuck.says());
    let others: Vec<_> = (0..PROCESSES).map(|_| start(&database, false)).collect();
    let everybody = i64::try_from(PROCESSES * (CLIENTS - 1)).unwrap();
    let waiting = "select count(*) from leadergroup.waiter";
    eventually("all others wait", async || database.number(waiting).await >= everybody).await;
    stuck.kill();
    let its_words = [first].into_iter().chain(stuck.last_words().map(|line| understand(&line)));
    let mut all = terms(its_words, Some(monotonic()));
    for mut process in others {
        let status = tokio::task::block_in_place(|| process.wait());
        assert!(status.success(), "{status}");
        let its_own = terms(process.last_words().map(|line| understand(&line)), None);
        assert!(its_own.len() <= CLIENTS * TURNS);
        for (token, term) in its_own {
            assert_eq!(all.insert(token, term), None, "token {token} was used twice");
        }
    }
    assert!(all.len() > PROCESSES * CLIENTS, "most had their turns: {}", all.len());
    let all: Vec<_> = all.into_iter().collect();
    for pair in all.windows(2) {
        let [(token, (_, ended)), (next, (began, _))] = pair else { unreachable!() };
        assert!(ended <= began, "terms {token} and {next} overlap: {ended:?}, {began:?}");
    }
    assert_eq!(
        database.number("select count(*) from jumped").await,
        0,
        "a request was served before one that queued up earlier"
    );
    let from_the_queue =
        "select count(*) from leadergroup.terms as t join queued as q on q.grant_id = t.grant_id";
    assert!(database.number(from_the_queue).await > everybody);
}
