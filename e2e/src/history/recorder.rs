//! Records everything, with the collectors that are possible on this cluster.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

use super::{ApiCollector, EtcdCollector, History, TermCollector};

const CATCH_UP: Duration = Duration::from_mins(1);

/// Records until it is dropped.
pub struct Recorder {
    objects: Objects,
    terms: Option<TermCollector>,
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
        }
    }

    /// Records one namespace of an existing cluster from now on. Without a database that can be reached from here,
    /// promotions are checked only against the declarations.
    pub async fn of_api(client: Client, namespace: &str, database_url: Option<&str>) -> Result<Self> {
        let objects = Objects::Api(Box::new(ApiCollector::start(client, namespace).await?));
        Ok(Self { objects, terms: database_url.map(TermCollector::start) })
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
            history.terms = Some(terms.terms().await.context("reading the lock's term history")?);
        }
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
