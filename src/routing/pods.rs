//! Reads and writes of the pods' roles.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::Value;

use super::{GroupRef, Router, RoutingError, marks::stamp_of};
use crate::{
    api::{OnDelete, PodRef},
    election::Role,
};

/// How often one pod's role is tried when the pod keeps changing in between.
const ATTEMPTS: usize = 8;
/// How many pods of one group are written to at a time.
const PARALLEL: usize = 8;

/// How a strip ended.
#[derive(Debug)]
pub enum Stripped {
    /// None of the pods reads as active. Those that are still there, as they are now; and whether any was written to.
    Done(Vec<Pod>, bool),
    /// A larger token was declared meanwhile: this decision is old.
    Outdated,
}

/// How a promotion ended.
#[derive(Debug)]
pub enum Promoted {
    /// The pod reads as active, with the term's stamp.
    Done(Box<Pod>),
    /// The pod is not what it was when it was read, or is gone; nothing was written.
    Conflict,
}

/// What becomes of a pod that reads as active.
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
    /// A quorum read of a pod: none when it is gone or another one of the same name.
    pub async fn pod(&self, group: &GroupRef, pod: &PodRef) -> Result<Option<Pod>, RoutingError> {
        let found = self.get("read a pod", &self.pods(group), &pod.name).await?;
        Ok(found.filter(|found| found.uid().as_deref() == Some(&pod.uid)))
    }

    /// Step 3: every one of the pods reads as standby and carries the term's stamp, or is gone. Confirmed, each.
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

    /// Labels and stamps standbys as far as possible; one that cannot be written to holds up nobody. A pod that turned
    /// active meanwhile is left alone: whether it loses the role is decided elsewhere.
    pub async fn stamp(
        &self,
        group: &GroupRef,
        token: i64,
        pods: &[PodRef],
    ) -> (Vec<Pod>, Option<RoutingError>) {
        let this = &self.in_background();
        let stamps: Vec<_> = pods.iter().map(|pod| this.demote(group, token, pod, Active::Leave)).collect();
        let mut written = stream::iter(stamps).buffer_unordered(PARALLEL);
        let (mut left, mut failed) = (Vec::new(), None);
        while let Some(outcome) = written.next().await {
            match outcome {
                Ok(Written::Now(pod) | Written::Already(pod)) => left.push(*pod),
                Ok(Written::Gone | Written::Outdated) => {}
                Err(error) => failed = Some(error),
            }
        }
        (left, failed)
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
                Some(stamped) if stamped == token && group.marks.role(&found) == Role::Standby => {
                    return Ok(Written::Already(Box::new(found)));
                }
                // Somebody's stamp is above ours. Either a later term was declared, and this decision is old, or the
                // stamp is foreign and is put right.
                Some(stamped) if stamped > token && self.declared_above(group, token).await? => {
                    return Ok(Written::Outdated);
                }
                _ => {}
            }
            let version = found.resource_version().unwrap_or_default();
            if let Some(now) = self.write(group, pod, &version, Role::Standby, Some(token)).await? {
                return Ok(Written::Now(Box::new(now)));
            }
        }
        Err(RoutingError::Contended { what: "label a pod standby" })
    }

    async fn declared_above(&self, group: &GroupRef, token: i64) -> Result<bool, RoutingError> {
        let found = self.group(group).await?;
        Ok(found.is_none_or(|found| found.status.is_some_and(|status| status.declaration.token > token)))
    }

    /// Step 4: the holder reads as active and carries the term's stamp, if it is still just what it was at `version`.
    ///
    /// The version must have been read before the term's declaration was made or re-checked. Whoever declares a larger
    /// token writes to this pod before promoting another, so this write can never come late.
    pub async fn promote(
        &self,
        group: &GroupRef,
        token: i64,
        pod: &PodRef,
        version: &str,
    ) -> Result<Promoted, RoutingError> {
        Ok(match self.write(group, pod, version, Role::Active, Some(token)).await? {
            Some(pod) => Promoted::Done(Box::new(pod)),
            None => Promoted::Conflict,
        })
    }

    /// Settles the labels of a deleted group: the stamp goes, and the role label too unless it is to be kept. Pods that
    /// another group has stamped since are left alone. All are tried, whatever becomes of the others; the error is a
    /// refusal only if all that went wrong are.
    pub async fn clear(
        &self,
        group: &GroupRef,
        on_delete: OnDelete,
        pods: &[PodRef],
    ) -> Result<(), RoutingError> {
        let mut pods = pods.to_vec();
        // A pod that left the group may still carry its label.
        let labelled = ListParams::default().labels(&group.marks.label);
        let api = self.pods(group);
        let list = async {
            let found = self.call("list the pods with a role", api.list(&labelled)).await;
            found.map(|found| found.items)
        };
        let mut failed = Vec::new();
        match self.lists.stamped(&group.namespace, &group.marks.label, list).await {
            Ok(stamped) => {
                let known: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
                let ours = stamped.iter().filter(|stamped| stamped.group == group.uid);
                pods.extend(ours.map(|stamped| stamped.pod.clone()).filter(|pod| !known.contains(&pod.uid)));
            }
            // No pod carries a label that is not valid: a group with such a spec goes all the same.
            Err(error) => failed.extend((error.code() != Some(400)).then_some(error)),
        }
        let clears: Vec<_> = pods.iter().map(|pod| self.clear_one(group, on_delete, pod)).collect();
        let outcomes: Vec<_> = stream::iter(clears).buffer_unordered(PARALLEL).collect().await;
        failed.extend(outcomes.into_iter().filter_map(Result::err));
        // The worst of them: what may be otherwise at the next attempt comes first.
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
            // A stamp may be taken off by anybody; the label that it came with is ours all the same.
            let stamp = stamp_of(&found);
            if stamp.as_ref().is_some_and(|stamp| stamp.group != group.uid)
                || (stamp.is_none() && group.marks.role(&found) == Role::None)
            {
                return Ok(());
            }
            let role = if on_delete == OnDelete::Keep { group.marks.role(&found) } else { Role::None };
            let version = found.resource_version().unwrap_or_default();
            if self.write(group, pod, &version, role, None).await?.is_some() {
                return Ok(());
            }
        }
        Err(RoutingError::Contended { what: "clear a pod's role" })
    }

    /// One write bound to UID and version; none when the pod is not what it was.
    async fn write(
        &self,
        group: &GroupRef,
        pod: &PodRef,
        version: &str,
        role: Role,
        stamp: Option<i64>,
    ) -> Result<Option<Pod>, RoutingError> {
        // To the API server an empty or zero version means "unconditionally": never on this path.
        if version.is_empty() || version == "0" {
            return Ok(None);
        }
        let patch: Value = group.patch(pod, version, role, stamp);
        let (api, params) = (self.pods(group), PatchParams::default());
        let kind = match (role, stamp) {
            (Role::Active, Some(_)) => "active",
            (_, Some(_)) => "standby",
            (_, None) => "clear",
        };
        let patch = Patch::Merge(&patch);
        match self.send(kind, "write a pod's role", api.patch(&pod.name, &params, &patch)).await {
            Ok(pod) => Ok(Some(pod)),
            // 409: another version. 404: gone.
            Err(refused) if matches!(refused.code(), Some(404 | 409)) => Ok(None),
            // 422: another UID. The same is said of a change that a policy forbids: then the pod is what it was.
            Err(refused) if refused.code() == Some(422) => match self.pod(group, pod).await? {
                Some(found) if found.resource_version().as_deref() == Some(version) => Err(refused),
                _ => Ok(None),
            },
            Err(other) => Err(other),
        }
    }
}
