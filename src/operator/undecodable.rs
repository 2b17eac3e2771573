//! What becomes of a group that this version of the program cannot read: it stays as it is until it is deleted.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::sleep;

use super::{
    controller::Driver,
    group::{Charge, version},
    index::name_of,
    message::GroupName,
    status,
};
use crate::{
    api::{Sighting, Unreadable},
    election::Event,
    health::Monotonic,
    routing::{GroupRef, Router},
};

/// Between attempts to report on a group that cannot be read.
const REPORT_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16), Duration::from_secs(64)];

impl Driver {
    /// A group as a watch or a quorum read shows it.
    pub(super) fn sighted(&mut self, object: Sighting) {
        let Some(name) = name_of(&object) else {
            tracing::error!("a LeaderGroup without a name cannot be read");
            return;
        };
        let version = version(&object);
        match object.0 {
            Ok(object) => self.group_seen(object),
            Err(unreadable) if unreadable.metadata.deletion_timestamp.is_some() => {
                self.unreadable_leaves(&name, &unreadable);
            }
            Err(unreadable) => self.group_unreadable(&name, version, *unreadable),
        }
    }

    /// A group that cannot be read stays as it was last read, if it ever was; all that changes for it is what is said.
    fn group_unreadable(&mut self, name: &GroupName, seen: u64, unreadable: Unreadable) {
        let uid = unreadable.metadata.uid.clone().unwrap_or_default();
        if self.entries.get(name).is_some_and(|entry| *entry.uid != *uid) {
            self.group_gone(name);
        }
        if let Some(entry) = self.entries.get_mut(name) {
            if version(&*entry.object) > seen {
                return;
            }
            entry.unreadable = Some(unreadable.problem.clone());
            // Whatever was read before this must not pass for news.
            let known = &mut Arc::make_mut(&mut entry.object).metadata;
            known.resource_version.clone_from(&unreadable.metadata.resource_version);
            self.touched.insert(name.clone());
            if entry.charge == Charge::Ours {
                self.pass_on(name);
            }
        }
        let generation = (uid, unreadable.metadata.generation);
        if self.unreadable.insert(name.clone(), generation.clone()) == Some(generation) {
            // Once: a replica that can read it may have another word on it, and they would quarrel.
            return;
        }
        tracing::error!(group = %name, problem = unreadable.problem, "a LeaderGroup cannot be read");
        let Some(status) = status::of_unreadable(&unreadable) else { return };
        let router = self.parts.router.clone();
        self.tasks.spawn(async move { tell_unreadable(&router, &unreadable, &status).await });
    }

    /// Gives the charge of a group up: another replica may be able to read it.
    fn pass_on(&mut self, name: &GroupName) {
        let (Some(own), Some(entry)) = (self.lock.own, self.entries.get_mut(name)) else { return };
        entry.charge = Charge::Open;
        let (store, key) = (self.parts.store.clone(), entry.key.clone());
        self.tasks.spawn(async move {
            if let Err(error) = store.unclaim(own, std::slice::from_ref(&key)).await {
                tracing::warn!(%key, %error, "could not pass on a group that cannot be read");
            }
        });
        self.step(name, Event::Disowned, Monotonic::now());
    }

    /// A group that cannot be read, and is to go: with what is left of it, it does. It keeps its mark, so that nothing
    /// else is done on a spec that is understood by half.
    fn unreadable_leaves(&mut self, name: &GroupName, unreadable: &Unreadable) {
        let known = self.entries.get(name);
        let known = known.filter(|entry| Some(&*entry.uid) == unreadable.metadata.uid.as_deref());
        let first = known.is_none_or(|entry| entry.unreadable.is_none());
        let remains = unreadable.remains(known.map(|entry| &entry.object.spec));
        self.group_seen(remains);
        let Some(entry) = self.entries.get_mut(name) else { return };
        if entry.object.metadata.resource_version != unreadable.metadata.resource_version {
            // What is known is newer.
            return;
        }
        entry.unreadable = Some(unreadable.problem.clone());
        if first {
            tracing::warn!(
                group = %name,
                problem = unreadable.problem,
                "a LeaderGroup that is being deleted cannot be read; it is let go with what can be"
            );
        }
    }
}

/// Says in the status of a group that it cannot be read.
async fn tell_unreadable(router: &Router, unreadable: &Unreadable, status: &Value) {
    let Some(group) = GroupRef::of(&unreadable.remains(None)) else { return };
    for pause in REPORT_PAUSES {
        match router.report(&group, status).await {
            Ok(_) => return,
            Err(error) => {
                let name = format!("{}/{}", group.namespace, group.name);
                tracing::warn!(group = name, %error, "could not write the status");
            }
        }
        sleep(pause).await;
    }
}
