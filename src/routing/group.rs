//! Reads and writes of the `LeaderGroup` object: declaration, status, finalizer.

use kube::{ResourceExt, api::Patch, core::Request};
use serde_json::{Value, json};

use super::{GroupRef, Router, RoutingError, as_manager};
use crate::api::{Declaration, FINALIZER, LeaderGroup, Sighting};

const READ: &str = "read the LeaderGroup";
/// What Go's JSON encoder escapes, and others do not.
const ESCAPED: [char; 5] = ['&', '<', '>', '\u{2028}', '\u{2029}'];

/// The result of a compare-and-set of the declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The declaration is in place, by this call or by an earlier one whose answer was lost.
    Done,
    /// There is another declaration: nothing was written.
    Outdated,
    /// The group is gone, or was replaced by another one of the same name.
    GroupGone,
}

/// What became of a report.
#[derive(Debug)]
pub enum Reported {
    /// It was written; the group as it is now.
    Done(Sighting),
    /// The group has changed since; the group as it is now, if it exists.
    Outdated(Option<Sighting>),
}

impl Router {
    /// A quorum read of the group. None if it is gone or was replaced by another one of the same name. A group that
    /// cannot be decoded is an error, because no decision may be based on it.
    pub async fn group(&self, group: &GroupRef) -> Result<Option<LeaderGroup>, RoutingError> {
        self.sight(group).await?.map(|found| understood(READ, found)).transpose()
    }

    /// The same, but a group that cannot be decoded is not an error.
    pub async fn sight(&self, group: &GroupRef) -> Result<Option<Sighting>, RoutingError> {
        let found = self.get(READ, &self.groups(group), &group.name).await?;
        Ok(found.filter(|found| found.uid().as_deref() == Some(&group.uid)))
    }

    /// Step 2: replaces the declaration by `next` if all of it is still `previous`, in the same group.
    ///
    /// This is a JSON Patch that tests the value and not the object's resourceVersion. So other writes to the status
    /// do not conflict with it, and a request that arrives late finds another value and is refused.
    pub async fn declare(
        &self,
        group: &GroupRef,
        previous: &Declaration,
        next: &Declaration,
    ) -> Result<Declared, RoutingError> {
        if !next.may_replace(previous) {
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
            // Do not continue with a group that can no longer be decoded.
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

    /// Writes the status except the declaration and the token, which [`Router::declare`] writes. A field that is null
    /// is removed.
    ///
    /// With `expected`, it writes only if that is still the group's resourceVersion.
    ///
    /// This is a JSON Patch, too: in a merge patch of the status the API server ignores the UID, so a late patch
    /// would be written to another group of the same name.
    pub async fn report(
        &self,
        group: &GroupRef,
        status: &Value,
        expected: Option<&str>,
    ) -> Result<Reported, RoutingError> {
        let what = "write the LeaderGroup's status";
        let this = self.in_background();
        let write = async |steps| this.patch_group(group, "status", what, steps).await.map(Reported::Done);
        let refused = match write(status_steps(&group.uid, status, expected, false)).await {
            Err(refused) if refused.code() == Some(422) => refused,
            answer => return answer,
        };
        let found = this.sight(group).await?;
        let version = found.as_ref().and_then(ResourceExt::resource_version);
        match (found, version) {
            (found, version) if expected.is_some() && version.as_deref() != expected => {
                Ok(Reported::Outdated(found))
            }
            // A JSON Patch cannot add fields to a status that does not exist.
            (Some(found), Some(version)) if found.is_without_status() => {
                write(status_steps(&group.uid, status, Some(&version), true)).await
            }
            _ => Err(refused),
        }
    }

    /// Adds or removes the finalizer, if that is still needed. Also works on a group that cannot be decoded.
    pub async fn set_finalizer(&self, group: &GroupRef, wanted: bool) -> Result<(), RoutingError> {
        match self.sight(group).await? {
            Some(found) => self.set_finalizer_of(group, found, wanted).await.map(drop),
            None => Ok(()),
        }
    }

    /// The same for a group that was just seen, which is read again only if it has changed since. Returns the group as
    /// it is now; `None` if it is gone.
    pub async fn set_finalizer_of(
        &self,
        group: &GroupRef,
        seen: Sighting,
        wanted: bool,
    ) -> Result<Option<Sighting>, RoutingError> {
        let what = "change the LeaderGroup's finalizers";
        let (mut found, mut refusal, mut replaced) = (seen, None, false);
        for _ in 0..5 {
            let mut finalizers = found.finalizers().to_vec();
            if finalizers.iter().any(|name| name == FINALIZER) == wanted {
                return Ok(Some(found));
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
                // The object did not change in between, so the API server no longer accepts the stored spec. No
                // change is possible without correcting the spec, too. The group is being deleted, so its spec is no
                // longer needed.
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
                answer => return answer.map(Some),
            }
            match self.sight(group).await? {
                Some(now) => found = now,
                None => return Ok(None),
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
        let (api, params) = (self.groups(group), as_manager());
        let patch = json_patch(what, steps)?;
        let requests = Request::new(api.resource_url());
        let request = if kind == "finalizer" {
            requests.patch(&group.name, &params, &patch)
        } else {
            requests.patch_subresource("status", &group.name, &params, &patch)
        };
        let unsendable = |source| RoutingError::from_api(what, kube::Error::BuildRequest(source));
        let request = request.map_err(unsendable)?.map(as_the_server_writes);
        self.send(kind, what, self.client.request(request)).await
    }
}

/// The same JSON with those characters escaped that Go's encoder escapes. The API server's `test` of a JSON Patch
/// compares strings byte by byte with what that encoder has written: without this, a value with one of them never
/// equals itself. They occur in strings only.
fn as_the_server_writes(body: Vec<u8>) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(&body) else { return body };
    if !text.contains(ESCAPED) {
        return body;
    }
    let mut written = String::with_capacity(body.len() + 32);
    for char in text.chars() {
        if ESCAPED.contains(&char) {
            written.push_str(&format!("\\u{:04x}", u32::from(char)));
        } else {
            written.push(char);
        }
    }
    written.into_bytes()
}

/// The group, or an error if it cannot be decoded.
fn understood(what: &'static str, found: Sighting) -> Result<LeaderGroup, RoutingError> {
    found.0.map_err(|unreadable| RoutingError::Unreadable { what, problem: unreadable.problem })
}

/// The JSON Patch that sets fields of the status of the group with this UID. A field that is null is removed. With
/// `version`, the group must have this resourceVersion. `bare` means that it has no status yet.
fn status_steps(uid: &str, status: &Value, version: Option<&str>, bare: bool) -> Value {
    let mut steps = vec![json!({ "op": "test", "path": "/metadata/uid", "value": uid })];
    steps.extend(version.map(|at| json!({ "op": "test", "path": "/metadata/resourceVersion", "value": at })));
    if bare {
        steps.push(json!({ "op": "add", "path": "/status", "value": {} }));
    }
    for (field, value) in status.as_object().into_iter().flatten() {
        let path = format!("/status/{field}");
        steps.push(json!({ "op": "add", "path": path, "value": value }));
        // Only an existing field can be removed. The step before has made sure that it exists.
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
