//! Garbage collection in the lock's table: a row whose group was deleted while the database was unavailable gets its
//! tombstone. Without that its key would seem to be in use for ever.

use futures::{StreamExt as _, stream};

use crate::{
    operator::object::record::tagged,
    routing::{GroupRef, Router},
};
use leadergroup_lock::{
    Key, LockError, SessionId, Store, Token,
    controller::{Tombstone, Unclaimed},
};

/// The most rows that are looked into at a time. The others wait for the next time.
const MOST_STRANGERS: usize = 200;
/// Rows in one statement.
const PAGE: u32 = 1_000;
/// Quorum reads at a time.
const PARALLEL_READS: usize = 4;

/// Rows of groups that are gone.
pub(in crate::operator) struct Garbage {
    pub(in crate::operator) session: SessionId,
    pub(in crate::operator) cluster: String,
    /// The namespaces that this operator watches; all if empty.
    pub(in crate::operator) namespaces: Vec<String>,
    /// Keys of rows that this session owns, and that belong to none of its groups.
    pub(in crate::operator) strangers: Vec<Key>,
    /// Whether this replica looks after the rows without an owner too.
    pub(in crate::operator) unowned: bool,
}

impl Garbage {
    /// Turns the rows of groups that are gone into tombstones.
    pub(in crate::operator) async fn collect(&self, store: &Store, router: &Router) -> Result<(), LockError> {
        let strangers = &self.strangers[..self.strangers.len().min(MOST_STRANGERS)];
        let rows = if strangers.is_empty() { Vec::new() } else { store.read(strangers).await? };
        let held = rows.into_iter().filter(|row| !row.tombstone && row.session == Some(self.session));
        let mut strangers: Vec<_> = held.map(|row| Unclaimed { key: row.key, group: row.group }).collect();
        if self.unowned {
            strangers.extend(self.unclaimed(store).await?);
        }
        let reads: Vec<_> = strangers.into_iter().map(|stranger| self.if_gone(router, stranger)).collect();
        let gone: Vec<_> =
            stream::iter(reads).buffered(PARALLEL_READS).filter_map(std::future::ready).collect().await;
        if gone.is_empty() {
            return Ok(());
        }
        tracing::info!(rows = gone.len(), "creating tombstones for groups that were deleted unseen");
        let tombstones: Vec<_> = gone
            .into_iter()
            .map(|stranger| Tombstone { key: stranger.key, group: stranger.group, floor: Token::ZERO })
            .collect();
        store.tombstone(self.session, &tombstones).await.map(drop)
    }

    /// Rows of this cluster without an owner.
    async fn unclaimed(&self, store: &Store) -> Result<Vec<Unclaimed>, LockError> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = store.unclaimed(after.as_ref(), PAGE).await?;
            after = page.last().map(|row| row.key.clone());
            let last = page.len() < PAGE as usize;
            found.extend(page.into_iter().filter(|row| self.group_of(&row.group).is_some()));
            if last || found.len() >= MOST_STRANGERS {
                found.truncate(MOST_STRANGERS);
                return Ok(found);
            }
        }
    }

    /// The group that a row's tag names, if this operator watches its namespace.
    fn group_of(&self, tag: &str) -> Option<GroupRef> {
        tagged(tag, &self.cluster)
            .filter(|group| self.namespaces.is_empty() || self.namespaces.contains(&group.namespace))
    }

    /// The row, if a quorum read says that its group is gone, or that another group has its name.
    async fn if_gone(&self, router: &Router, stranger: Unclaimed) -> Option<Unclaimed> {
        let group = self.group_of(&stranger.group)?;
        match router.group(&group).await {
            Ok(None) => Some(stranger),
            Ok(Some(_)) => None,
            Err(error) => {
                tracing::debug!(%error, key = %stranger.key, "could not look for the group of a row");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::operator::executor::fake_api::FakeApi;

    const GROUP: &str = "/apis/leadergroup.dev/v1alpha1/namespaces/shop/leadergroups/web";

    fn garbage(namespaces: &[&str]) -> Garbage {
        Garbage {
            session: SessionId::new(),
            cluster: "c1".to_owned(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
            strangers: Vec::new(),
            unowned: true,
        }
    }

    fn object(uid: &str) -> Value {
        json!({
            "apiVersion": "leadergroup.dev/v1alpha1",
            "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": "web", "uid": uid, "resourceVersion": "5" },
            "spec": { "selector": { "matchLabels": { "app": "web" } } },
        })
    }

    /// Whether a row of this tag is garbage while the API server answers so.
    async fn is_garbage(garbage: &Garbage, tag: &str, found: Option<Value>) -> bool {
        let api = FakeApi::with(found.map(|object| (GROUP, object)).into_iter().collect());
        let row = Unclaimed { key: Key::new("web").expect("a key"), group: tag.to_owned() };
        garbage.if_gone(&api.context.router, row).await.is_some()
    }

    #[tokio::test]
    async fn a_row_is_garbage_only_if_a_quorum_read_does_not_find_its_group() {
        let (all, tag) = (garbage(&[]), "c1/shop/web/u1");
        for (found, gone) in
            [(None, true), (Some(object("u2")), true), (Some(object("u1")), false), (Some(json!(500)), false)]
        {
            assert_eq!(is_garbage(&all, tag, found.clone()).await, gone, "{found:?}");
        }
    }

    #[tokio::test]
    async fn rows_of_other_clusters_programs_and_namespaces_are_left_alone() {
        for (namespaces, tag, gone) in [
            (&[][..], "c1/shop/web/u1", true),
            (&["shop"], "c1/shop/web/u1", true),
            (&["other"], "c1/shop/web/u1", false),
            (&[], "c2/shop/web/u1", false),
            (&[], "reports", false),
        ] {
            assert_eq!(is_garbage(&garbage(namespaces), tag, None).await, gone, "{tag} in {namespaces:?}");
        }
    }
}
