//! Reads and writes of the pods' roles.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Resource as _, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::Value;

use super::{
    GroupRef, Router, RoutingError, as_manager,
    marks::{Marking, Marks, stamp_of},
};
use crate::api::{DeletionPolicy, FENCING_ANNOTATION, LeaderGroupSpec, PodAt, PodRef, Role};

/// The number of attempts to write one pod's role if the pod changes in between.
const ATTEMPTS: usize = 8;
/// How many pods of one group are written concurrently.
const PARALLEL: usize = 8;

/// The result of a strip.
#[derive(Debug)]
pub enum Stripped {
    /// None of the pods is labelled active for this group. Contains the current versions of the pods that still exist,
    /// and whether any was written.
    Done(Vec<Pod>, bool),
    /// A larger token was declared in the meantime, or a pod is active for another group, which selects it, too: this
    /// decision is out of date.
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
    /// The API server would let the pod be labelled active, and the former one lose the label.
    Accepted,
    /// It would not let the pod be labelled active.
    Refused(RoutingError),
    /// It would not let the former one lose the label.
    HolderRefused(RoutingError),
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

/// What a read before a write has found.
enum Found {
    /// The version that the write is to be bound to.
    Version(String),
    /// There is nothing to write.
    Nothing(Written),
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
        pods: &[PodAt],
    ) -> Result<Stripped, RoutingError> {
        let strips: Vec<_> = pods.iter().map(|at| self.demote(group, token, at, Active::Strip)).collect();
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
    pub async fn stamp(&self, group: &GroupRef, token: i64, pods: &[PodAt]) -> Stamped {
        let this = &self.in_background();
        let stamp = async |at: &PodAt| (at.pod.clone(), this.demote(group, token, at, Active::Leave).await);
        let stamps: Vec<_> = pods.iter().map(stamp).collect();
        let mut written = stream::iter(stamps).buffer_unordered(PARALLEL);
        let mut stamped = Stamped::default();
        while let Some((pod, outcome)) = written.next().await {
            match outcome {
                Ok(Written::Now(pod) | Written::Already(pod)) => stamped.pods.push(*pod),
                Ok(Written::Gone | Written::Outdated) => {}
                Err(error) if error.is_definite() => stamped.refused.push((pod, error)),
                Err(error) => stamped.failed = Some(error),
            }
        }
        stamped
    }

    /// Labels one pod standby and stamps it, in a write that is bound to a version of the pod: first to the one that
    /// the watch has shown, if it is known, then to one that was just read.
    ///
    /// A write that is bound to a version is a read and a write at one moment. It takes effect only on the pod that the
    /// decision saw, however old the watch was and however late the request arrives. A late strip is therefore as safe
    /// as one in time:
    ///
    /// - It never labels a pod active (I1, I2).
    /// - It does not take the label of a later term. Under that term the pod was written after the version that the
    ///   strip is bound to.
    /// - It does not replace a larger stamp by a smaller one, for the same reason. So the fence of a later term stays
    ///   in force (I3, I4).
    /// - If it precedes the first write of a later term to the pod, that write finds another version. A promotion is
    ///   then re-checked before it is repeated; a strip reads the pod.
    ///
    /// Success means in both cases that the pod had these marks at one revision after the call began. A promotion under
    /// an earlier term is bound to a version before that.
    async fn demote(
        &self,
        group: &GroupRef,
        token: i64,
        at: &PodAt,
        active: Active,
    ) -> Result<Written, RoutingError> {
        let mut known = at.version.clone();
        for _ in 0..ATTEMPTS {
            let version = match known.take() {
                Some(version) => version,
                None => match self.read_to_demote(group, token, &at.pod, active).await? {
                    Found::Version(version) => version,
                    Found::Nothing(why) => return Ok(why),
                },
            };
            if let Some(now) = self.write(group, &at.pod, &version, Marking::Standby { token }).await? {
                let same = now.resource_version().as_deref() == Some(&version);
                return Ok(if same { Written::Already(Box::new(now)) } else { Written::Now(Box::new(now)) });
            }
        }
        Err(RoutingError::Contended { what: "label a pod standby" })
    }

    /// Reads the pod, and returns the version to bind the write to, unless nothing is to be written.
    async fn read_to_demote(
        &self,
        group: &GroupRef,
        token: i64,
        pod: &PodRef,
        active: Active,
    ) -> Result<Found, RoutingError> {
        let Some(found) = self.pod(group, pod).await? else { return Ok(Found::Nothing(Written::Gone)) };
        let role = group.marks.role(&found);
        let stamped = stamp_of(&found).filter(|stamp| stamp.group == group.uid).map(|stamp| stamp.token);
        let is_standby = stamped == Some(token)
            && role == Role::Standby
            && !found.annotations().contains_key(FENCING_ANNOTATION);
        if is_standby || (active == Active::Leave && role == Role::Active) {
            return Ok(Found::Nothing(Written::Already(Box::new(found))));
        }
        if active == Active::Strip
            && let Some(why) = self.of_another(group, &found).await?
        {
            return Ok(Found::Nothing(why));
        }
        // The stamp is larger than our token. Either a later term was declared and this decision is out of date, or the
        // operator did not write the stamp, and it is corrected.
        if stamped.is_some_and(|stamped| stamped > token) {
            let declared = self.declared(group).await?;
            // Somebody may have removed the declaration of the later term. An active pod keeps its label then.
            let is_present = match active {
                Active::Strip => declared == Some(token),
                Active::Leave => declared.is_some_and(|declared| declared <= token),
            };
            if !is_present {
                return Ok(Found::Nothing(Written::Outdated));
            }
        }
        Ok(Found::Version(found.resource_version().unwrap_or_default()))
    }

    /// What a strip makes of a pod that another group has made active, and selects: nothing. If this group does not
    /// select it any more, it has no active pod in it. Otherwise the decision is out of date: a watch does not show yet
    /// that the pod is of two groups, or that this group is being deleted.
    ///
    /// A group that cannot be decoded selects nothing here. Nobody works for it, so a strip could wait for ever.
    async fn of_another(&self, group: &GroupRef, pod: &Pod) -> Result<Option<Written>, RoutingError> {
        let stamp = stamp_of(pod).filter(|stamp| stamp.group != group.uid);
        let Some(stamp) = stamp.filter(|_| group.marks.role(pod) == Role::Active) else { return Ok(None) };
        let (groups, all) = (self.groups(group), ListParams::default());
        let found = self.call("list the groups", groups.list(&all)).await?;
        let with_uid = |uid: &str| {
            let mut those = found.iter().filter(|found| found.meta().deletion_timestamp.is_none());
            those.find(|found| found.meta().uid.as_deref() == Some(uid))?.0.as_ref().ok()
        };
        // By another label, or another value of it, no pod is active for this group.
        let selects = |spec: &LeaderGroupSpec| {
            let marks = Marks::from(&spec.routing);
            let is_this = (&marks.label, &marks.active) == (&group.marks.label, &group.marks.active);
            is_this && spec.selector.matches(pod.labels())
        };
        if !with_uid(&stamp.group).is_some_and(|other| selects(&other.spec)) {
            return Ok(None);
        }
        let left = with_uid(&group.uid).is_some_and(|own| !selects(&own.spec));
        Ok(Some(if left { Written::Gone } else { Written::Outdated }))
    }

    /// The declared token by a quorum read; `None` if the group is gone.
    async fn declared(&self, group: &GroupRef) -> Result<Option<i64>, RoutingError> {
        let found = self.group(group).await?;
        Ok(found.map(|found| found.status.map_or(0, |status| status.declaration.token)))
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

    /// A dry run of step 4: whether the API server would let this pod be labelled active. With `from`, the holder that
    /// would lose the label, also one of step 3. Nothing is written.
    pub async fn try_change(
        &self,
        group: &GroupRef,
        key: &str,
        token: i64,
        pod: &PodRef,
        from: Option<&PodRef>,
    ) -> Result<Trial, RoutingError> {
        let promotion = self.try_write(group, pod, Marking::Active { token, key });
        let strip = async {
            match from {
                Some(from) => self.try_write(group, from, Marking::Standby { token }).await,
                None => Ok(Trial::Accepted),
            }
        };
        Ok(match futures::join!(promotion, strip) {
            (Ok(Trial::Accepted), Ok(Trial::Refused(refused))) => Trial::HolderRefused(refused),
            // A holder that is gone needs no strip.
            (Ok(promotion), Ok(_)) => promotion,
            (Ok(Trial::Refused(refused)), Err(_)) => Trial::Refused(refused),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        })
    }

    async fn try_write(
        &self,
        group: &GroupRef,
        pod: &PodRef,
        marking: Marking<'_>,
    ) -> Result<Trial, RoutingError> {
        let patch = group.patch(pod, None, marking);
        let (api, params) = (self.pods(group), PatchParams { dry_run: true, ..as_manager() });
        let patch = Patch::Merge(&patch);
        let what = match marking {
            Marking::Active { .. } => "label a pod active (dry run)",
            _ => "take the active label off a pod (dry run)",
        };
        match self.try_out(what, api.patch(&pod.name, &params, &patch)).await {
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

    /// Clears the labels of a deleted group: removes the stamp, and the role label and the fencing token unless they
    /// are kept. Pods that another group has stamped since are left unchanged. All pods are tried, even if some fail.
    /// The error is a refusal only if all errors are refusals.
    pub async fn clear(
        &self,
        group: &GroupRef,
        deletion_policy: DeletionPolicy,
        pods: &[PodAt],
    ) -> Result<(), RoutingError> {
        let mut pods = pods.to_vec();
        // A pod that left the group may still carry its label.
        let labelled = ListParams::default().labels(&group.marks.label);
        // No change of holder waits for the end of another group.
        let this = &self.in_background();
        let (what, api) = ("list the pods with a role", this.pods(group));
        let list = async { this.call(what, api.list_metadata(&labelled)).await.map(|found| found.items) };
        let stamped = this.lists.stamped(&group.namespace, &group.marks.label, list);
        // The list of another caller comes before this one's own.
        let after = this.call_timeout * 2;
        let stamped = tokio::time::timeout(after, stamped).await;
        let mut failed = Vec::new();
        match stamped.unwrap_or(Err(RoutingError::Timeout { what, after })) {
            Ok(stamped) => {
                let known: BTreeSet<String> = pods.iter().map(|at| at.pod.uid.clone()).collect();
                let ours = stamped.iter().filter(|stamped| stamped.group == group.uid);
                pods.extend(ours.map(|stamped| stamped.at.clone()).filter(|at| !known.contains(&at.pod.uid)));
            }
            // An invalid label cannot be on any pod, so a group with such a spec can still be deleted.
            Err(error) => failed.extend((error.code() != Some(400)).then_some(error)),
        }
        let clears: Vec<_> = pods.iter().map(|at| this.clear_one(group, deletion_policy, at)).collect();
        let outcomes: Vec<_> = stream::iter(clears).buffer_unordered(PARALLEL).collect().await;
        failed.extend(outcomes.into_iter().filter_map(Result::err));
        // Return an error that may not recur at the next attempt, rather than a refusal.
        failed.into_iter().min_by_key(RoutingError::is_refusal).map_or(Ok(()), Err)
    }

    /// Binds its writes to versions as [`Self::demote`] does.
    async fn clear_one(
        &self,
        group: &GroupRef,
        deletion_policy: DeletionPolicy,
        at: &PodAt,
    ) -> Result<(), RoutingError> {
        let marking =
            if deletion_policy == DeletionPolicy::Retain { Marking::Unstamped } else { Marking::Bare };
        let mut known = at.version.clone();
        for _ in 0..ATTEMPTS {
            let version = if let Some(version) = known.take() {
                version
            } else {
                let Some(found) = self.pod(group, &at.pod).await? else { return Ok(()) };
                // Anyone may remove a stamp; the label that was written with it is still ours.
                let stamp = stamp_of(&found);
                if stamp.as_ref().is_some_and(|stamp| stamp.group != group.uid)
                    || (stamp.is_none() && group.marks.role(&found) == Role::None)
                {
                    return Ok(());
                }
                found.resource_version().unwrap_or_default()
            };
            if self.write(group, &at.pod, &version, marking).await?.is_some() {
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
