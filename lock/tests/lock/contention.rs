//! Many programs at once on the same keys, and checks of the history afterwards.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use leadergroup_lock::{
    LockError, Refusal, SessionId, Store, Token,
    controller::{Claimed, Granted},
};
use sqlx::AssertSqlSafe;

use crate::cast::{claim, grant, grant_one, key, row, session, take};
use crate::postgres::{Database, migrated};

const CLIENTS: usize = 16;

/// The least number of sessions that are marked dead in a fight.
const DEATHS: usize = 3;

/// Compares all grants that clients were answered with all grants in the history, in the order of the tokens.
async fn check_history(store: &Store, told: Vec<(Token, String)>, database: &Database) {
    let mut told: Vec<_> = told.into_iter().map(|(token, holder)| (token.get(), holder)).collect();
    told.sort();
    let recorded: Vec<(i64, String)> =
        sqlx::query_as("select token, holder_name from leadergroup.terms where key = 'a' order by token")
            .fetch_all(&mut database.admin().await)
            .await
            .unwrap();
    assert_eq!(told, recorded, "each grant that was answered is in the history, and no other");
    assert!(recorded.windows(2).all(|pair| pair[0].0 < pair[1].0), "a token was used twice");
    // Each grant began after the previous one was committed, since it expected that one's token.
    let out_of_order = database
        .number(
            "select count(*) from (select token, lag(token) over (order by granted_at, token) as before \
             from leadergroup.terms where key = 'a') t where token < before",
        )
        .await;
    assert_eq!(out_of_order, 0);
    let last = recorded.last().unwrap();
    let row = row(store, &key("a")).await;
    assert_eq!((row.token.get(), row.holder.unwrap().name), *last);
}

/// One program, many tasks: each expects the token that it read last.
#[tokio::test(flavor = "multi_thread")]
async fn one_session_s_tasks_never_grant_the_same_token_twice() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let store = database.store();
            tokio::spawn(async move {
                let mut told = Vec::new();
                let mut expected = 0;
                while told.len() < 10 {
                    let name = format!("{client}-{}", told.len());
                    match grant_one(&store, own, grant(&key("a"), expected, &name)).await {
                        Granted::Granted { token } => {
                            assert!(token.get() > expected);
                            expected = token.get();
                            told.push((token, name));
                        }
                        Granted::Refused(Refusal::TokenChanged) => {
                            let token = row(&store, &key("a")).await.token.get();
                            assert!(token > expected, "refused, yet nothing changed");
                            expected = token;
                        }
                        Granted::Refused(Refusal::Busy) => {}
                        other @ Granted::Refused(_) => panic!("{other:?}"),
                    }
                }
                told
            })
        })
        .collect();
    let mut told = Vec::new();
    for task in tasks {
        told.extend(task.await.unwrap());
    }
    assert_eq!(told.len(), CLIENTS * 10);
    check_history(&store, told, &database).await;
}

/// Many programs that pass the claim of one key around and grant it each time; now and then one marks another dead.
#[tokio::test(flavor = "multi_thread")]
async fn programs_that_fight_over_a_key_and_kill_each_other_leave_one_order() {
    let (database, store) = migrated().await;
    let database = Arc::new(database);
    let first = session(&store).await;
    take(&store, first, &key("a")).await;
    store.close(first).await.unwrap();
    let left = Arc::new(Left { grants: AtomicUsize::new(CLIENTS * 4), dead: Mutex::default() });
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (database, left) = (Arc::clone(&database), Arc::clone(&left));
            tokio::spawn(async move { fight(&database, client, &left).await })
        })
        .collect();
    let (mut told, mut killed) = (Vec::new(), HashMap::new());
    for task in tasks {
        let (mine, dead) = task.await.unwrap();
        told.extend(mine);
        killed.extend(dead);
    }
    assert!(killed.len() >= DEATHS, "too few sessions were killed: the test shows nothing");
    for (victim, terms) in killed {
        let now = database.number(&terms_of(victim)).await;
        assert_eq!(now, terms, "a change of a session took effect after its death mark was answered");
    }
    check_history(&store, told, &database).await;
}

/// The state of a fight: what still has to happen before it may end.
struct Left {
    grants: AtomicUsize,
    /// Each session once: two programs may be answered that the same session is dead.
    dead: Mutex<HashSet<SessionId>>,
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.grants.load(Ordering::Relaxed) == 0 && self.dead.lock().unwrap().len() >= DEATHS
    }

    fn granted(&self) {
        let _ = self.grants.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }
}

fn terms_of(session: SessionId) -> String {
    format!("select count(*) from leadergroup.terms where starts_with(holder_name, '{session}')")
}

/// Grants and kills until all clients together have done enough of both. Returns the answers, and for each killed
/// session how many terms it had granted by then.
async fn fight(
    database: &Database,
    client: usize,
    left: &Left,
) -> (Vec<(Token, String)>, Vec<(SessionId, i64)>) {
    let store = &database.store();
    let mut admin = database.admin().await;
    let (mut told, mut killed) = (Vec::new(), Vec::new());
    let mut own = session(store).await;
    let mut round = 0;
    while !left.is_nothing() {
        round += 1;
        let row = match store.claim(own, &[claim(&key("a"))]).await.map(|mut answers| answers.remove(0)) {
            Ok(Claimed::Ours(row)) => row,
            Ok(Claimed::By { session: claimant }) if (round + client).is_multiple_of(3) => {
                let beat = store.beat(own, &[claimant]).await.unwrap();
                let Some(seen) = beat.sessions.iter().find(|seen| seen.id == claimant) else { continue };
                if store.mark_dead(&[(claimant, seen.beat)], None).await.unwrap() == [claimant] {
                    let terms = sqlx::query_scalar(AssertSqlSafe(terms_of(claimant)));
                    killed.push((claimant, terms.fetch_one(&mut admin).await.unwrap()));
                    left.dead.lock().unwrap().insert(claimant);
                }
                continue;
            }
            Ok(Claimed::Busy | Claimed::By { .. }) => continue,
            Err(LockError::SessionDead) => {
                own = session(store).await;
                continue;
            }
            other => panic!("{other:?}"),
        };
        let name = format!("{own}-{round}");
        match grant_one(store, own, grant(&key("a"), row.token.get(), &name)).await {
            Granted::Granted { token } => {
                assert!(token > row.token);
                told.push((token, name));
                left.granted();
            }
            Granted::Refused(Refusal::SessionDead) => own = session(store).await,
            Granted::Refused(Refusal::Unclaimed { .. } | Refusal::Busy | Refusal::TokenChanged) => {}
            other @ Granted::Refused(_) => panic!("{other:?}"),
        }
        if round % 2 == 0 {
            store.unclaim(own, &[key("a")]).await.unwrap();
        }
    }
    (told, killed)
}
