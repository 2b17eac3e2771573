//! Reads and writes of the pods' roles.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::Value;

use super::{
    GroupRef, Router, RoutingError, as_manager,
    marks::{Marking, stamp_of},
};
use crate::api::{FENCING_ANNOTATION, OnDelete, PodRef, Role};

/// The number of attempts to write one pod's role if the pod changes in between.
const ATTEMPTS: usize = 8;
/// How many pods of one group are written concurrently.
const PARALLEL: usize = 8;

/// The result of a strip.
#[derive(Debug)]
pub enum Stripped {
    /// None of the pods is labelled active. Contains the current versions of the pods that still exist, and whether
    /// any was written.
    Done(Vec<Pod>, bool),
    /// A larger token was declared in the meantime: this decision is out of date.
    Outdated,
}

/// The result of a promotion.
#[derive(Debug)]
pub enum Promoted {
    /// The pod is labelled active and carries the term's stamp.
    Done(Box<Pod>),
    /// The pod has changed since it was read, or is gone; nothing was written.
    Conflict,
    /// The API server refuses to label this pod active; nothing was written.
    Refused(RoutingError),
}

/// The result of a dry run of a promotion.
#[derive(Debug)]
pub enum Trial {
    /// The API server would let the pod be labelled active.
    Accepted,
    /// It would not.
    Refused(RoutingError),
    /// The pod is gone.
    Gone,
}

/// What happened to standbys that were to be stamped.
#[derive(Debug, Default)]
pub struct Stamped {
    /// The current versions of those that carry the stamp, or are labelled active.
    pub pods: Vec<Pod>,
    /// Those that the API server refuses to change.
    pub refused: Vec<(PodRef, RoutingError)>,
    /// Another failure.
    pub failed: Option<RoutingError>,
}

/// What to do with a pod that is labelled active.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Active {
    Strip,
    Leave,
}

enum Written {
    Now(Box<Pod>),
    Already(Box<Pod>),
    Gone,
    Outdated,
}

impl Router {
    /// A quorum read of a pod. None if it is gone or was replaced by another one of the same name.
    pub async fn pod(&self, group: &GroupRef, pod: &PodRef) -> Result<Option<Pod>, RoutingError> {
        let found = self.get("read a pod", &self.pods(group), &pod.name).await?;
        Ok(found.filter(|found| found.uid().as_deref() == Some(&pod.uid)))
    }

    /// Step 3: on success, every one of the pods is labelled standby, carries the term's stamp and no fencing token, or
    /// is gone.
    pub async fn strip(
        &self,
        group: &GroupRef,
        token: i64,
        pods: &[PodRef],
    ) -> Result<Stripped, RoutingError> {
        let strips: Vec<_> = pods.iter().map(|pod| self.demote(group, token, pod, Active::Strip)).collect();
        let written: Vec<Written> = stream::iter(strips).buffer_unordered(PARALLEL).try_collect().await?;
        let (mut left, mut changed) = (Vec::new(), false);
        for outcome in written {
            match outcome {
                Written::Outdated => return Ok(Stripped::Outdated),
                Written::Gone => {}
                Written::Already(pod) => left.push(*pod),
                Written::Now(pod) => {
                    changed = true;
                    left.push(*pod);
                }
            }
        }
        Ok(Stripped::Done(left, changed))
    }

    /// Labels and stamps standbys as far as possible; a pod that cannot be written does not delay the others. A pod
    /// that became active in the meantime is left unchanged: the election decides whether it loses the role.
    pub async fn stamp(&self, group: &GroupRef, token: i64, pods: &[PodRef]) -> Stamped {
        let this = &self.in_background();
        let stamp = async |pod| (pod, this.demote(group, token, pod, Active::Leave).await);
        let stamps: Vec<_> = pods.iter().map(stamp).collect();
        let mut written = stream::iter(stamps).buffer_unordered(PARALLEL);
        let mut stamped = Stamped::default();
        while let Some((pod, outcome)) = written.next().await {
            match outcome {
                Ok(Written::Now(pod) | Written::Already(pod)) => stamped.pods.push(*pod),
                Ok(Written::Gone | Written::Outdated) => {}
                Err(error) if error.is_definite() => stamped.refused.push((pod.clone(), error)),
                Err(error) => stamped.failed = Some(error),
            }
        }
        stamped
    }

    async fn demote(
        &self,
        group: &GroupRef,
        token: i64,
        pod: &PodRef,
        active: Active,
    ) -> Result<Written, RoutingError> {
        for _ in 0..ATTEMPTS {
            let Some(found) = self.pod(group, pod).await? else { return Ok(Written::Gone) };
            if active == Active::Leave && group.marks.role(&found) == Role::Active {
                return Ok(Written::Already(Box::new(found)));
            }
            let stamp = stamp_of(&found).filter(|stamp| stamp.group == group.uid);
            match stamp.map(|stamp| stamp.token) {
                Some(stamped)
                    if stamped == token
                        && group.marks.role(&found) == Role::Standby
                        && !found.annotations().contains_key(FENCING_ANNOTATION) =>
                {
                    return Ok(Written::Already(Box::new(found)));
                }
                // The stamp is larger than our token. Either a later term was declared and this decision is out of
                // date, or the operator did not write the stamp, and it is corrected.
                Some(stamped) if stamped > token && self.declared_above(group, token).await? => {
                    return Ok(Written::Outdated);
                }
                _ => {}
            }
            let version = found.resource_version().unwrap_or_default();
            if let Some(now) = self.write(group, pod, &version, Marking::Standby { token }).await? {
                return Ok(Written::Now(Box::new(now)));
            }
        }
        Err(RoutingError::Contended { what: "label a pod standby" })
    }

    async fn declared_above(&self, group: &GroupRef, token: i64) -> Result<bool, RoutingError> {
        let found = self.group(group).await?;
        Ok(found.is_none_or(|found| found.status.is_some_and(|status| status.declaration.token > token)))
    }

    /// Step 4: labels the holder active, stamps it and gives it the fencing token of the lock with this key, if its
    /// version is still `version`.
    ///
    /// The version must have been read before the term's declaration was made or re-checked. A replica that declares
    /// a larger token writes to this pod before it promotes another one, so this write can never arrive late.
    pub async fn promote(
        &self,
        group: &GroupRef,
        key: &str,
        token: i64,
        pod: &PodRef,
        version: &str,
    ) -> Result<Promoted, RoutingError> {
        match self.write(group, pod, version, Marking::Active { token, key }).await {
            Ok(Some(pod)) => Ok(Promoted::Done(Box::new(pod))),
            Ok(None) => Ok(Promoted::Conflict),
            Err(refused) if refused.is_definite() => Ok(Promoted::Refused(refused)),
            Err(error) => Err(error),
        }
    }

    /// A dry run of step 4: whether the API server would let this pod be labelled active. Nothing is written.
    pub async fn try_promotion(
        &self,
        group: &GroupRef,
        key: &str,
        token: i64,
        pod: &PodRef,
    ) -> Result<Trial, RoutingError> {
        let patch = group.patch(pod, None, Marking::Active { token, key });
        let (api, params) = (self.pods(group), PatchParams { dry_run: true, ..as_manager() });
        let patch = Patch::Merge(&patch);
        let what = "find out whether a pod can be labelled active";
        match self.call(what, api.patch(&pod.name, &params, &patch)).await {
            Ok(_) => Ok(Trial::Accepted),
            // A webhook cannot be asked by a dry run. That is no refusal.
            Err(refused) if refused.code() == Some(400) => Ok(Trial::Accepted),
            Err(refused) if refused.code() == Some(404) => Ok(Trial::Gone),
            // 422: another UID, or a refusal.
            Err(refused) if refused.code() == Some(422) => match self.pod(group, pod).await? {
                Some(_) => Ok(Trial::Refused(refused)),
                None => Ok(Trial::Gone),
            },
            Err(refused) if refused.is_definite() => Ok(Trial::Refused(refused)),
            Err(error) => Err(error),
        }
    }

    /// Settles the labels of a deleted group: removes the stamp, and the role label and the fencing token unless they are
    /// kept. Pods that another group has stamped since are left unchanged. All pods are tried, even if some fail. The error is a
    /// refusal only if all errors are refusals.
    pub async fn clear(
        &self,
        group: &GroupRef,
        on_delete: OnDelete,
        pods: &[PodRef],
    ) -> Result<(), RoutingError> {
        let mut pods = pods.to_vec();
        // A pod that left the group may still carry its label.
        let labelled = ListParams::default().labels(&group.marks.label);
        // No change of holder waits for the end of another group.
        let this = &self.in_background();
        let (what, api) = ("list the pods with a role", this.pods(group));
        let list = async { this.call(what, api.list(&labelled)).await.map(|found| found.items) };
        let stamped = this.lists.stamped(&group.namespace, &group.marks.label, list);
        // The list of another caller comes before this one's own.
        let after = this.call_timeout * 2;
        let stamped = tokio::time::timeout(after, stamped).await;
        let mut failed = Vec::new();
        match stamped.unwrap_or(Err(RoutingError::Timeout { what, after })) {
            Ok(stamped) => {
                let known: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
                let ours = stamped.iter().filter(|stamped| stamped.group == group.uid);
                pods.extend(ours.map(|stamped| stamped.pod.clone()).filter(|pod| !known.contains(&pod.uid)));
            }
            // An invalid label cannot be on any pod, so a group with such a spec can still be deleted.
            Err(error) => failed.extend((error.code() != Some(400)).then_some(error)),
        }
        let clears: Vec<_> = pods.iter().map(|pod| this.clear_one(group, on_delete, pod)).collect();
        let outcomes: Vec<_> = stream::iter(clears).buffer_unordered(PARALLEL).collect().await;
        failed.extend(outcomes.into_iter().filter_map(Result::err));
        // Return an error that may not recur at the next attempt, rather than a refusal.
        failed.into_iter().min_by_key(RoutingError::is_refusal).map_or(Ok(()), Err)
    }

    async fn clear_one(
        &self,
        group: &GroupRef,
        on_delete: OnDelete,
        pod: &PodRef,
    ) -> Result<(), RoutingError> {
        for _ in 0..ATTEMPTS {
            let Some(found) = self.pod(group, pod).await? else { return Ok(()) };
            // Anyone may remove a stamp; the label that was written with it is still ours.
            let stamp = stamp_of(&found);
            if stamp.as_ref().is_some_and(|stamp| stamp.group != group.uid)
                || (stamp.is_none() && group.marks.role(&found) == Role::None)
            {
                return Ok(());
            }
            let marking = if on_delete == OnDelete::Keep { Marking::Unstamped } else { Marking::Bare };
            let version = found.resource_version().unwrap_or_default();
            if self.write(group, pod, &version, marking).await?.is_some() {
                return Ok(());
            }
        }
        Err(RoutingError::Contended { what: "clear a pod's role" })
    }

    /// One write on condition of UID and resourceVersion. None if the pod has changed or is gone.
    async fn write(
        &self,
        group: &GroupRef,
        pod: &PodRef,
        version: &str,
        marking: Marking<'_>,
    ) -> Result<Option<Pod>, RoutingError> {
        // For the API server an empty or zero version means "unconditional", which must never happen here.
        if version.is_empty() || version == "0" {
            return Ok(None);
        }
        let patch: Value = group.patch(pod, Some(version), marking);
        let (api, params) = (self.pods(group), as_manager());
        let kind = match marking {
            Marking::Active { .. } => "active",
            Marking::Standby { .. } => "standby",
            Marking::Bare | Marking::Unstamped => "clear",
        };
        let patch = Patch::Merge(&patch);
        match self.send(kind, "write a pod's role", api.patch(&pod.name, &params, &patch)).await {
            Ok(pod) => Ok(Some(pod)),
            // 409: another version. 404: gone.
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(None),
            // 422: another UID. A change that an admission policy denies gives the same status; the pod is unchanged
            // then.
            Err(refused) if refused.code() == Some(422) => match self.pod(group, pod).await? {
                Some(found) if found.resource_version().as_deref() == Some(version) => Err(refused),
                _ => Ok(None),
            },
            Err(other) => Err(other),
        }
    }
}
