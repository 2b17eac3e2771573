//! A PostgreSQL server and a database in memory, with the same sessions, the same eras and the same history.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use leadergroup_lock::memory::{MemoryClient, MemoryDatabase};
use leadergroup_lock::{
    GrantId, Holder, Key, LockError, SessionId, Store,
    admin::LONGEST_LIST,
    controller::{Grant, Hint, LockRow, Vacate},
    protocol::{AcquireRequest, EraId},
};
use sqlx::AssertSqlSafe;
use sqlx::Executor as _;

use crate::bare::Bare;
use crate::postgres::{DEADLINE, Database, migrated};
use crate::step::{KEYS, SLOTS};
use crate::tables;

pub const PEERS: &str = "operators";
pub const TTL: Duration = Duration::from_secs(5);

const EMPTY: &str = "delete from leadergroup.waiter; delete from leadergroup.published;
    delete from leadergroup.lock;
    delete from leadergroup.term;
    delete from leadergroup.session;
    alter sequence leadergroup.waiter_id_seq restart;
    update leadergroup.meta set history = leadergroup.read_history(), era = 0, quarantine = false, token_floor = 0,
                                pruned_at = '-infinity', era_id = ";

const BACK_UP: &str = "drop schema if exists backup cascade;
    create schema backup;
    create table backup.meta as table leadergroup.meta;
    create table backup.session as table leadergroup.session;
    create table backup.lock as table leadergroup.lock;
    create table backup.term as table leadergroup.term;
    create table backup.waiter as table leadergroup.waiter;
    create table backup.published as table leadergroup.published;
    create table backup.next as select last_value, is_called from leadergroup.waiter_id_seq";

/// The triggers change nothing while there is no history and no floor.
const RESTORE: &str = "delete from leadergroup.waiter; delete from leadergroup.published;
    delete from leadergroup.lock;
    delete from leadergroup.term;
    delete from leadergroup.session;
    update leadergroup.meta set token_floor = 0;
    insert into leadergroup.session select * from backup.session;
    insert into leadergroup.lock select * from backup.lock;
    insert into leadergroup.term select * from backup.term;
    insert into leadergroup.waiter overriding system value select * from backup.waiter;
    insert into leadergroup.published select * from backup.published;
    update leadergroup.meta as m
    set era = b.era, era_id = b.era_id, quarantine = b.quarantine, token_floor = b.token_floor, pruned_at = b.pruned_at
    from backup.meta as b;
    select setval('leadergroup.waiter_id_seq', n.last_value, n.is_called) from backup.next as n";

/// The two places where the schema uses random numbers.
const RANDOM: [(&str, &str); 2] = [
    ("1 + floor(random() * 1000)::bigint", "(select c.step from public.chance as c)"),
    ("gen_random_uuid()", "(select c.era_id from public.chance as c)"),
];

type Hints = Pin<Box<dyn Stream<Item = Hint> + Send>>;

/// One of the two databases, as a program uses it.
pub struct Side {
    pub store: Store,
    hints: Hints,
}

impl Side {
    fn new(store: Store) -> Self {
        let hints = Box::pin(store.listen_among(PEERS));
        Self { store, hints }
    }

    async fn next(&mut self) -> Hint {
        tokio::time::timeout(DEADLINE, self.hints.next()).await.unwrap().unwrap()
    }

    /// Waits until notifications arrive.
    pub async fn listen(&mut self) {
        while self.next().await != Hint::Missed {}
    }

    /// The notifications so far, without reports that some may be missing.
    async fn heard(&mut self) -> Vec<Hint> {
        let end = "that is all";
        self.store.tell(PEERS, &[end.to_owned()]).await.unwrap();
        let mut heard = Vec::new();
        loop {
            match self.next().await {
                Hint::Told(word) if word == end => return heard,
                Hint::Missed => {}
                hint => heard.push(hint),
            }
        }
    }
}

pub struct Stage {
    pub database: Database,
    pub real: Side,
    pub memory: MemoryDatabase,
    pub double: Side,
    pub keys: Vec<Key>,
    pub slots: Vec<SessionId>,
    pub grants: BTreeMap<usize, Grant>,
    pub vacates: BTreeMap<usize, Vacate>,
    /// Each slot's last request for each key.
    pub asked: BTreeMap<(usize, usize), AcquireRequest>,
    /// How many commits the database in memory had when the state was remembered.
    pub backup: Option<usize>,
    chance: Option<(i64, EraId)>,
    ids: u128,
}

impl Stage {
    pub async fn new() -> Self {
        let (database, store) = migrated().await;
        let chance = "create table public.chance (step bigint, era_id uuid);
                      insert into public.chance default values;
                      grant select on public.chance to public";
        database.sql(chance).await;
        for function in ["present_era()", "begin_era(bigint)"] {
            let read = format!("select pg_get_functiondef('leadergroup.{function}'::regprocedure)");
            let mut admin = database.admin().await;
            let mut text: String =
                sqlx::query_scalar(AssertSqlSafe(read)).fetch_one(&mut admin).await.unwrap();
            for (random, chosen) in RANDOM {
                assert!(text.contains(random), "{random} in {text}");
                text = text.replace(random, chosen);
            }
            admin.execute(AssertSqlSafe(text)).await.unwrap();
        }
        let memory = MemoryDatabase::new();
        let double = Side::new(MemoryClient::new(&memory, "double").store().unwrap());
        let mut real = Side::new(store);
        real.listen().await;
        Self {
            database,
            real,
            memory,
            double,
            keys: (0..KEYS).map(|number| Key::new(format!("key-{number}")).unwrap()).collect(),
            slots: Vec::new(),
            grants: BTreeMap::new(),
            vacates: BTreeMap::new(),
            asked: BTreeMap::new(),
            backup: None,
            chance: None,
            ids: 0,
        }
    }

    /// Resets both databases to the initial state.
    pub async fn clear(&mut self) {
        self.memory = MemoryDatabase::new();
        self.double = Side::new(MemoryClient::new(&self.memory, "double").store().unwrap());
        self.double.listen().await;
        let era = self.memory.dump()["meta"]["era_id"].as_str().unwrap().to_owned();
        self.database.sql(&format!("{EMPTY}'{era}'")).await;
        (self.backup, self.chance) = (None, None);
        self.grants.clear();
        self.vacates.clear();
        self.asked.clear();
        self.slots = vec![SessionId::new(); SLOTS];
        self.prepare().await;
        for slot in 0..SLOTS {
            self.register(slot, slot > 0).await;
        }
    }

    /// Lets both databases draw the same random numbers next.
    pub async fn prepare(&mut self) {
        let next = self.memory.next_era();
        if self.chance.replace(next) != Some(next) {
            let (step, id) = next;
            self.database.sql(&format!("update public.chance set step = {step}, era_id = '{id}'")).await;
        }
    }

    /// A session with the same id in both.
    pub async fn register(&mut self, slot: usize, peers: bool) {
        let peers = peers.then_some(PEERS);
        let (id, era) = self.double.store.register("model", TTL, peers, Some("node-1")).await.unwrap();
        let peers = peers.map_or("null".to_owned(), |peers| format!("'{peers}'"));
        let register = format!(
            "select r.era_id::text from leadergroup.register('{id}', 'model', {}, {peers}, 'node-1') as r",
            TTL.as_millis()
        );
        let mut admin = self.database.admin().await;
        let found: String = sqlx::query_scalar(AssertSqlSafe(register)).fetch_one(&mut admin).await.unwrap();
        assert_eq!(found, era.to_string());
        self.slots[slot] = id;
        self.asked.retain(|(of, _), _| *of != slot);
    }

    /// An id that is the same in every run.
    pub fn grant_id(&mut self) -> GrantId {
        self.ids += 1;
        uuid::Uuid::from_u128(self.ids).into()
    }

    pub async fn back_up(&mut self) {
        self.database.sql(BACK_UP).await;
        self.backup = Some(self.memory.commits().len());
    }

    /// A failover on both sides, to the state that was remembered if it `loses` commits.
    pub async fn fail_over(&mut self, loses: bool) {
        let kept = self.backup.filter(|_| loses);
        if kept.is_some() {
            self.database.sql(RESTORE).await;
        }
        self.database.sql("update leadergroup.meta set history = 'lost'").await;
        let commits = self.memory.commits().len();
        let lost = kept.map_or(0, |kept| commits - kept.min(commits));
        assert_eq!(self.memory.fail_over_losing(lost), lost);
        self.double.listen().await;
    }

    pub async fn begin_era(&mut self, floor: i64) {
        let begun = self.database.number(&format!("select leadergroup.begin_era({floor})")).await;
        assert_eq!(begun, self.memory.begin_era(floor));
    }

    /// The row of a key, the same in both.
    pub async fn row(&self, key: usize) -> Option<LockRow> {
        self.double.store.read(&self.keys[key..=key]).await.unwrap().pop()
    }

    pub async fn token(&self, key: usize, behind: i64) -> i64 {
        (self.row(key).await.map_or(0, |row| row.token.get()) - behind).max(0)
    }

    /// Compares the tables, all that can be read, and the notifications.
    pub async fn compare(&mut self) {
        let (real, double) = (tables::of_server(&self.database).await, tables::of_memory(&self.memory));
        for (name, rows) in &real {
            assert_eq!(rows, &double[name], "the table {name}: PostgreSQL first");
        }
        let (real, double) = (self.answers(&self.real.store).await, self.answers(&self.double.store).await);
        assert_eq!(real, double, "what is read: PostgreSQL first");
        let (real, double) = (self.real.heard().await, self.double.heard().await);
        assert_eq!(real, double, "notifications: PostgreSQL first");
    }

    async fn answers(&self, store: &Store) -> Vec<String> {
        fn text<T: Bare + std::fmt::Debug>(answer: Result<T, LockError>) -> String {
            let mut answer = answer.unwrap();
            answer.bare();
            format!("{answer:?}")
        }
        let mut all = vec![
            text(store.read(&self.keys).await),
            text(store.list("key-", self.keys.first(), LONGEST_LIST).await),
            text(store.list("", None, 2).await),
            format!("{:?}", store.unclaimed(None, 2).await.unwrap()),
            format!("{:?}", store.unclaimed(self.keys.first(), 100).await.unwrap()),
            format!("{:?}", store.summary().await.unwrap()),
        ];
        for key in &self.keys {
            all.push(text(store.info(key).await));
            all.push(text(store.history(key, 100).await));
            all.push(text(store.waiters(key, 100).await));
        }
        for slot in &self.slots {
            all.push(format!("{:?}", store.rows_of(*slot).await.unwrap()));
        }
        all
    }
}

pub fn holder(name: &str) -> Holder {
    Holder { uid: format!("uid-{name}"), namespace: "default".into(), name: name.into() }
}
