//! Reads and writes of the `LeaderGroup` itself: declaration, status, finalizer.

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{GroupRef, Router, RoutingError};
use crate::api::{Declaration, FINALIZER, LeaderGroup, Sighting};

const READ: &str = "read the LeaderGroup";

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
    /// A quorum read of the group: none when it is gone or another one of the same name. One that cannot be read is an
    /// error: nothing is decided on it.
    pub async fn group(&self, group: &GroupRef) -> Result<Option<LeaderGroup>, RoutingError> {
        self.sight(group).await?.map(|found| understood(READ, found)).transpose()
    }

    /// The same, of a group that perhaps cannot be read.
    pub async fn sight(&self, group: &GroupRef) -> Result<Option<Sighting>, RoutingError> {
        let found = self.get(READ, &self.groups(group), &group.name).await?;
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
        let what = "declare the new term in the status";
        match self.patch_group(group, "declaration", what, steps).await {
            // What became unreadable meanwhile is no reason to go on.
            Ok(found) => return understood(what, found).map(|_| Declared::Done),
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

    /// Writes the part of the status that is for people; declaration and token are left to [`Router::declare`]. A field
    /// that is null goes.
    ///
    /// A JSON Patch, too: of a merge patch of the status the API server drops the UID without a look at it, and a late
    /// one would be written to another group of the same name.
    pub async fn report(&self, group: &GroupRef, status: &Value) -> Result<Sighting, RoutingError> {
        let what = "write the LeaderGroup's status";
        let this = self.in_background();
        match this.patch_group(group, "status", what, status_steps(&group.uid, status, None)).await {
            Err(refused) if refused.code() == Some(422) => {
                // A group that has no status at all: there is nothing yet that a JSON Patch could add fields to.
                let bare = this.sight(group).await?.filter(Sighting::is_without_status);
                match bare.and_then(|found| found.resource_version()) {
                    Some(version) => {
                        let steps = status_steps(&group.uid, status, Some(&version));
                        this.patch_group(group, "status", what, steps).await
                    }
                    None => Err(refused),
                }
            }
            answer => answer,
        }
    }

    /// Puts the finalizer on, or takes it off, if that is still needed. The rest of the group need not be readable.
    pub async fn set_finalizer(&self, group: &GroupRef, wanted: bool) -> Result<(), RoutingError> {
        let what = "change the LeaderGroup's finalizers";
        let (mut refusal, mut replaced) = (None, false);
        for _ in 0..5 {
            let Some(found) = self.sight(group).await? else { return Ok(()) };
            let mut finalizers = found.finalizers().to_vec();
            if finalizers.iter().any(|name| name == FINALIZER) == wanted {
                return Ok(());
            }
            finalizers.retain(|name| name != FINALIZER);
            finalizers.extend(wanted.then(|| FINALIZER.to_owned()));
            let version = found.resource_version();
            let mut steps = vec![
                json!({ "op": "test", "path": "/metadata/uid", "value": group.uid }),
                json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }),
                json!({ "op": "add", "path": "/metadata/finalizers", "value": finalizers }),
            ];
            let is_of_this = |(at, refused): &mut (Option<String>, RoutingError)| {
                *at == version && refused.code() == Some(422)
            };
            if let Some((_, refused)) = refusal.take_if(is_of_this) {
                // Nobody changed it in between: what is stored is no longer accepted, so that nothing of it can be
                // changed unless what is wrong is, too. Who has ordered its end does not miss it.
                match found.acceptable_spec().filter(|_| !wanted && !replaced) {
                    Some(spec) => steps.push(json!({ "op": "add", "path": "/spec", "value": spec })),
                    None => return Err(refused),
                }
                replaced = true;
            }
            match self.patch_group(group, "finalizer", what, Value::Array(steps)).await {
                Err(refused) if matches!(refused.code(), Some(404 | 409 | 422)) => {
                    refusal = Some((version, refused));
                }
                answer => return answer.map(drop),
            }
        }
        Err(RoutingError::Contended { what })
    }

    async fn patch_group(
        &self,
        group: &GroupRef,
        kind: &'static str,
        what: &'static str,
        steps: Value,
    ) -> Result<Sighting, RoutingError> {
        let (api, params) = (self.groups(group), PatchParams::default());
        let patch = json_patch(what, steps)?;
        if kind == "finalizer" {
            self.send(kind, what, api.patch(&group.name, &params, &patch)).await
        } else {
            self.send(kind, what, api.patch_status(&group.name, &params, &patch)).await
        }
    }
}

/// A group to decide on.
fn understood(what: &'static str, found: Sighting) -> Result<LeaderGroup, RoutingError> {
    found.0.map_err(|unreadable| RoutingError::Unreadable { what, problem: unreadable.problem })
}

/// What sets fields of the status of the group of this UID. A field that is null goes. `bare` is the version of a group
/// that has no status yet.
fn status_steps(uid: &str, status: &Value, bare: Option<&str>) -> Value {
    let mut steps = vec![json!({ "op": "test", "path": "/metadata/uid", "value": uid })];
    if let Some(version) = bare {
        steps.push(json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
        steps.push(json!({ "op": "add", "path": "/status", "value": {} }));
    }
    for (field, value) in status.as_object().into_iter().flatten() {
        let path = format!("/status/{field}");
        steps.push(json!({ "op": "add", "path": path, "value": value }));
        // Only what is there can be removed, and it is there after the step before.
        steps.extend(value.is_null().then(|| json!({ "op": "remove", "path": path })));
    }
    Value::Array(steps)
}

fn json_patch(what: &'static str, steps: Value) -> Result<Patch<()>, RoutingError> {
    serde_json::from_value(steps).map(Patch::Json).map_err(|source| RoutingError::Unreachable {
        what,
        source: Box::new(kube::Error::SerdeError(source)),
    })
}
