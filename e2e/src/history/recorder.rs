//! Records everything, with the collectors that are possible on this cluster.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;

use super::{ApiCollector, EtcdCollector, History, Term, TermCollector};

const CATCH_UP: Duration = Duration::from_mins(1);
/// A grant is declared and its holder promoted within this time, or by another grant.
const DECLARED: Duration = Duration::from_secs(30);

/// Records until it is dropped.
pub struct Recorder {
    objects: Objects,
    terms: Option<TermCollector>,
    /// Terms that were read from other databases.
    more_terms: Mutex<Vec<Term>>,
    clock_set: Mutex<Vec<(Timestamp, Option<Timestamp>)>>,
}

enum Objects {
    Etcd(EtcdCollector),
    Api(Box<ApiCollector>),
}

impl Recorder {
    /// Records a cluster of our own, from the first revision of its store on.
    pub fn of_etcd(etcd: &str, database_url: &str) -> Self {
        Self {
            objects: Objects::Etcd(EtcdCollector::start(etcd)),
            terms: Some(TermCollector::start(database_url)),
            more_terms: Mutex::default(),
            clock_set: Mutex::default(),
        }
    }

    /// Records one namespace of an existing cluster from now on. Without a database that can be reached from here,
    /// promotions are checked only against the declarations.
    pub async fn of_api(client: Client, namespace: &str, database_url: Option<&str>) -> Result<Self> {
        let objects = Objects::Api(Box::new(ApiCollector::start(client, namespace).await?));
        let terms = database_url.map(TermCollector::start);
        Ok(Self { objects, terms, more_terms: Mutex::default(), clock_set: Mutex::default() })
    }

    /// Adds terms that another database recorded, for groups whose lock was there.
    pub fn add_terms(&self, terms: Vec<Term>) {
        self.more_terms.lock().extend(terms);
    }

    /// Notes that the database's clock will be set: from now on its times cannot be compared with others.
    pub fn clock_is_set(&self) {
        self.clock_set.lock().push((Timestamp::now(), None));
    }

    /// Notes that the database's clock is right again.
    pub fn clock_is_right(&self) {
        let until = Timestamp::now() + DECLARED;
        for set in self.clock_set.lock().iter_mut().filter(|set| set.1.is_none()) {
            set.1 = Some(until);
        }
    }

    /// Waits until everything up to now has been recorded, and returns the revision.
    pub async fn revision(&self) -> Result<i64> {
        match &self.objects {
            Objects::Etcd(collector) => collector.catch_up(CATCH_UP).await,
            Objects::Api(collector) => collector.catch_up(CATCH_UP).await,
        }
    }

    /// The complete history up to now, or an error.
    pub async fn history(&self) -> Result<History> {
        self.revision().await?;
        let mut history = match &self.objects {
            Objects::Etcd(collector) => collector.history(),
            Objects::Api(collector) => collector.history(),
        };
        if let Some(terms) = &self.terms {
            // After the objects, because every promotion in them was granted before.
            let mut terms = terms.terms().await.context("reading the lock's term history")?;
            terms.extend_from_slice(&self.more_terms.lock());
            history.terms = Some(terms);
        }
        history.clock_set.clone_from(&self.clock_set.lock());
        Ok(history)
    }

    /// The history up to now without the lock's terms, for use while the database may be unavailable.
    pub async fn objects(&self) -> Result<History> {
        self.revision().await?;
        Ok(match &self.objects {
            Objects::Etcd(collector) => collector.history(),
            Objects::Api(collector) => collector.history(),
        })
    }
}
