//! Work that is done only while a key is held: once, or repeatedly.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leadergroup_lock::{Changed, Client, ClientConfig, ClientError, Guard, LockError, Store, Token};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cast::{key, session, take};
use crate::postgres::{DEADLINE, Database, ROLE, Server, eventually, migrated};

async fn client(database: &Database, name: &str) -> Client {
    client_of(database.store(), name).await
}

async fn client_of(store: Store, name: &str) -> Client {
    let (ttl, retry_interval) = (DEADLINE * 10, Duration::from_millis(200));
    let config = ClientConfig { name: name.into(), ttl, retry_interval, ..ClientConfig::default() };
    Client::connect(store, config).await.unwrap()
}

/// Records that the work's future was dropped before its end.
struct Unfinished(Arc<AtomicBool>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn work_is_done_while_the_key_is_held_and_then_it_is_free() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one").await, client(&database, "two").await);
    for token in 1..=3 {
        let done = one
            .run_while_held(&key("a"), DEADLINE, async |guard| {
                assert!(!guard.is_lost());
                assert!(two.try_lock(&key("a")).await.unwrap().is_none(), "it is held");
                guard.token()
            })
            .await
            .unwrap();
        assert_eq!(done, Token::new(token * 2 - 1));
        // The key is released before the call returns.
        let free = two.try_lock(&key("a")).await.unwrap().expect("it is free");
        let _ = free.release().await.unwrap();
    }
    let held = two.try_lock(&key("a")).await.unwrap().unwrap();
    let late = one.run_while_held(&key("a"), Duration::from_millis(100), async |_| panic!("it works")).await;
    assert!(matches!(late, Err(ClientError::Deadline { .. })), "{late:?}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_broken_off_when_the_key_is_lost() {
    let (database, store) = migrated().await;
    let one = client(&database, "one").await;
    let dropped = Arc::new(AtomicBool::new(false));
    let work = async |_: &Guard| {
        let _unfinished = Unfinished(Arc::clone(&dropped));
        let taken = store.force_release(&key("a"), Token::new(1), "by hand").await.unwrap();
        assert_eq!(taken, Changed::Done);
        assert!(!dropped.load(Ordering::SeqCst));
        std::future::pending::<()>().await;
    };
    let ended = timeout(DEADLINE, one.run_while_held(&key("a"), DEADLINE, work)).await.expect("it is lost");
    let error = ended.unwrap_err();
    let ClientError::Lost { key, token, .. } = &error else { panic!("{error}") };
    assert_eq!((key.as_str(), *token), ("a", Token::new(1)));
    assert!(error.to_string().contains("was lost"), "{error}");
    assert!(dropped.load(Ordering::SeqCst), "it goes on");
}

/// The release is the first to find it out: the heartbeat that would show the loss is due much later.
#[tokio::test(flavor = "multi_thread")]
async fn work_whose_key_was_lost_just_before_its_end_counts_as_lost() {
    let (database, store) = migrated().await;
    let config = ClientConfig { ttl: DEADLINE * 10, retry_interval: DEADLINE * 2, ..ClientConfig::default() };
    let one = Client::connect(database.store(), config).await.unwrap();
    let work = async |guard: &Guard| {
        store.force_release(&key("a"), guard.token(), "by hand").await.unwrap();
        assert!(!guard.is_lost(), "no heartbeat has shown it");
    };
    let error = one.run_while_held(&key("a"), DEADLINE, work).await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }) && !error.is_temporary(), "{error}");
    assert_eq!(one.try_lock(&key("a")).await.unwrap().unwrap().token(), Token::new(2));
}

/// Reports each term, and works until the test ends it.
fn campaign(
    client: &Client,
    terms: mpsc::UnboundedSender<i64>,
    works: Arc<AtomicBool>,
) -> JoinHandle<Result<Infallible, ClientError>> {
    let client = client.clone();
    tokio::spawn(async move {
        let work = async move |guard: &Guard| {
            terms.send(guard.token().get()).unwrap();
            if works.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
        };
        client.campaign(&key("a"), work).await
    })
}

struct Campaign {
    task: JoinHandle<Result<Infallible, ClientError>>,
    terms: mpsc::UnboundedReceiver<i64>,
    /// If set, each later term lasts until it is lost.
    lasts: Arc<AtomicBool>,
}

impl Campaign {
    fn begin(client: &Client, lasts: bool) -> Self {
        let (tell, terms) = mpsc::unbounded_channel();
        let lasts = Arc::new(AtomicBool::new(lasts));
        Self { task: campaign(client, tell, Arc::clone(&lasts)), terms, lasts }
    }

    async fn next_term(&mut self) -> i64 {
        timeout(DEADLINE, self.terms.recv()).await.expect("another term").unwrap()
    }

    async fn end(self) -> ClientError {
        let Err(error) = timeout(DEADLINE, self.task).await.expect("it ends").unwrap();
        error
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_goes_on_after_work_that_is_done_and_after_a_loss() {
    let (database, store) = migrated().await;
    let one = client(&database, "one").await;
    let mut campaign = Campaign::begin(&one, false);
    let mut last = 0;
    for _ in 0..3 {
        let token = campaign.next_term().await;
        assert!(token > last);
        last = token;
    }
    campaign.lasts.store(true, Ordering::SeqCst);
    // The last term may last as well, or be over before it is taken away; the same applies to a term that has begun
    // meanwhile.
    let taken_away = "select count(*) from leadergroup.term where end_reason = 'by hand'";
    loop {
        store.force_release(&key("a"), Token::new(last), "by hand").await.unwrap();
        if database.number(taken_away).await >= 2 {
            break;
        }
        let token = campaign.next_term().await;
        assert!(token > last);
        last = token;
    }
    assert!(campaign.next_term().await > last);
    campaign.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn campaigners_take_turns() {
    let (database, _store) = migrated().await;
    let (one, two) = (client(&database, "one").await, client(&database, "two").await);
    let (mut first, mut second) = (Campaign::begin(&one, false), Campaign::begin(&two, false));
    let mut tokens = std::collections::BTreeSet::new();
    for _ in 0..5 {
        assert!(tokens.insert(first.next_term().await) && tokens.insert(second.next_term().await));
    }
    first.task.abort();
    second.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_outlives_a_restart_of_the_database() {
    let server = Server::start(&[]);
    let (database, _store) = server.migrated().await;
    let one = client(&database, "one").await;
    let mut campaign = Campaign::begin(&one, false);
    for _ in 0..2 {
        campaign.next_term().await;
        server.stop();
        server.launch();
        // A term that was under way may have been counted.
        campaign.next_term().await;
    }
    campaign.next_term().await;
    assert!(!campaign.task.is_finished());
    campaign.task.abort();
}

/// It continues after errors that a person can correct.
#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_outlives_an_error_that_does_not_pass_by_itself() {
    let (database, _store) = migrated().await;
    let store = database.store();
    let one = client_of(store.clone(), "one").await;
    let function = "execute on function leadergroup.acquire(uuid, jsonb, integer, integer)";
    database.sql(&format!("revoke {function} from public, {ROLE}")).await;
    let refused = one.lock(&key("a"), DEADLINE).await.unwrap_err();
    assert!(matches!(refused, ClientError::Lock(LockError::Privileges { .. })), "{refused}");
    let failed = || store.stats().losses;
    let mut campaign = Campaign::begin(&one, true);
    let before = failed();
    eventually("it has tried twice", async || failed() >= before + 2).await;
    assert!(!campaign.task.is_finished());
    database.sql(&format!("grant {function} to {ROLE}")).await;
    assert_eq!(campaign.next_term().await, 1);
    campaign.task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_for_a_key_of_a_group_ends() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    take(&store, own, &key("a")).await;
    let one = client(&database, "one").await;
    let error = Campaign::begin(&one, true).end().await;
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("choose another key"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_ends_with_its_client() {
    let (database, store) = migrated().await;
    let (waiter, leader) = (client(&database, "waiter").await, client(&database, "leader").await);
    let mut leading = Campaign::begin(&leader, true);
    assert_eq!(leading.next_term().await, 1);
    let mut waiting = Campaign::begin(&waiter, true);
    eventually("it waits", async || store.waiters(&key("a"), 2).await.unwrap().len() == 1).await;
    leader.shutdown().await.unwrap();
    let error = leading.end().await;
    assert!(matches!(error, ClientError::Lock(LockError::SessionDead)), "while it leads: {error}");
    assert_eq!(waiting.next_term().await, 2);
    let late = client(&database, "late").await;
    let waits = Campaign::begin(&late, true);
    eventually("it waits", async || store.waiters(&key("a"), 2).await.unwrap().len() == 1).await;
    late.shutdown().await.unwrap();
    let error = waits.end().await;
    assert!(matches!(error, ClientError::Lock(LockError::SessionDead)), "while it waits: {error}");
    waiter.shutdown().await.unwrap();
    waiting.end().await;
    let free = "select count(*) from leadergroup.lock as l join leadergroup.session as s on s.id = l.session
                where l.key = 'a' and s.dead";
    assert_eq!(database.number(free).await, 1);
}
