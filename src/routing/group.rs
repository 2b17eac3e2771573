//! Reads and writes of the `LeaderGroup` itself: declaration, status, finalizer.

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{GroupRef, Router, RoutingError};
use crate::api::{Declaration, FINALIZER, LeaderGroup};

/// How a compare-and-set of the declaration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It says what was asked for, by this call or an earlier one whose answer was lost.
    Done,
    /// It says something else: nothing was written.
    Outdated,
    /// The group is gone, or is another one of the same name.
    GroupGone,
}

impl Router {
    /// A quorum read of the group: none when it is gone or another one of the same name.
    pub async fn group(&self, group: &GroupRef) -> Result<Option<LeaderGroup>, RoutingError> {
        let found = self.get("read the LeaderGroup", &self.groups(group), &group.name).await?;
        Ok(found.filter(|found| found.uid().as_deref() == Some(&group.uid)))
    }

    /// Step 2: the declaration becomes `next` if it still is `previous`, whole, in the same group.
    ///
    /// A JSON Patch that tests the value, not the object's resourceVersion: other writes to the status do not collide
    /// with it, and a request that arrives late finds another value and is refused.
    pub async fn declare(
        &self,
        group: &GroupRef,
        previous: &Declaration,
        next: &Declaration,
    ) -> Result<Declared, RoutingError> {
        if next.token <= previous.token {
            return Ok(Declared::Outdated);
        }
        let steps = json!([
            { "op": "test", "path": "/metadata/uid", "value": group.uid },
            { "op": "test", "path": "/status/declaration", "value": previous },
            { "op": "replace", "path": "/status/declaration", "value": next },
            { "op": "add", "path": "/status/token", "value": next.token },
        ]);
        match self.patch_group(group, "declare the new term in the status", steps, true).await {
            Ok(()) => return Ok(Declared::Done),
            Err(refused) if matches!(refused.code(), Some(404 | 422)) => {}
            Err(other) => return Err(other),
        }
        Ok(match self.group(group).await? {
            None => Declared::GroupGone,
            Some(found) if found.status.as_ref().is_some_and(|status| status.declaration == *next) => {
                Declared::Done
            }
            Some(_) => Declared::Outdated,
        })
    }

    /// Writes the part of the status that is for people; declaration and token are left to [`Router::declare`].
    pub async fn report(&self, group: &GroupRef, status: &Value) -> Result<LeaderGroup, RoutingError> {
        let patch = json!({ "metadata": { "uid": group.uid }, "status": status });
        let (api, params) = (self.groups(group), PatchParams::default());
        let patch = Patch::Merge(&patch);
        self.send("status", "write the LeaderGroup's status", api.patch_status(&group.name, &params, &patch))
            .await
    }

    /// Writes conditions into a group that cannot be read, whose status is thus known only by its name.
    pub async fn report_unreadable(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        status: &Value,
    ) -> Result<(), RoutingError> {
        let patch = json!({ "metadata": { "uid": uid }, "status": status });
        let kind = ApiResource::erase::<LeaderGroup>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &kind);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = api.patch_status(name, &params, &patch);
        self.send("status", "write the LeaderGroup's status", written).await.map(drop)
    }

    /// Puts the finalizer on, or takes it off, if that is still needed.
    pub async fn set_finalizer(&self, group: &GroupRef, wanted: bool) -> Result<(), RoutingError> {
        let what = "change the LeaderGroup's finalizers";
        for _ in 0..5 {
            let Some(found) = self.group(group).await? else { return Ok(()) };
            let mut finalizers = found.finalizers().to_vec();
            if finalizers.iter().any(|name| name == FINALIZER) == wanted {
                return Ok(());
            }
            finalizers.retain(|name| name != FINALIZER);
            finalizers.extend(wanted.then(|| FINALIZER.to_owned()));
            let steps = json!([
                { "op": "test", "path": "/metadata/uid", "value": group.uid },
                { "op": "test", "path": "/metadata/resourceVersion", "value": found.resource_version() },
                { "op": "add", "path": "/metadata/finalizers", "value": finalizers },
            ]);
            match self.patch_group(group, what, steps, false).await {
                Err(refused) if matches!(refused.code(), Some(404 | 409 | 422)) => {}
                answer => return answer,
            }
        }
        Err(RoutingError::Contended { what })
    }

    async fn patch_group(
        &self,
        group: &GroupRef,
        what: &'static str,
        steps: Value,
        status: bool,
    ) -> Result<(), RoutingError> {
        let (api, params) = (self.groups(group), PatchParams::default());
        let steps = serde_json::from_value(steps).map_err(|source| RoutingError::Unreachable {
            what,
            source: Box::new(kube::Error::SerdeError(source)),
        })?;
        let patch = Patch::Json::<()>(steps);
        let answer = if status {
            self.send("declaration", what, api.patch_status(&group.name, &params, &patch)).await
        } else {
            self.send("finalizer", what, api.patch(&group.name, &params, &patch)).await
        };
        answer.map(drop)
    }
}
