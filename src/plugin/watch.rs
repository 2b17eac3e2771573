//! `status --watch`: follows changes. A terminal shows the present state; anything else gets a line for each change.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use tokio::time::{Instant, interval, sleep_until};

use super::{
    cluster::{Cluster, GroupName},
    failure::{Failure, Kind},
    ink::Ink,
    moments::utc,
    pods::query,
    print::{can_redraw, redraw, width, write},
    state::GroupLine,
    status,
};
use crate::api::{LeaderGroup, Sighting};

/// How often ages are brought up to date.
const TICK: Duration = Duration::from_secs(1);
/// The shortest time between two reads of a group with all that belongs to it.
const PAUSE: Duration = Duration::from_millis(500);

/// The groups as the watch has shown them.
#[derive(Default)]
struct Shown {
    groups: BTreeMap<(String, String), Sighting>,
    /// The groups that a restarted watch has listed so far.
    incoming: Option<BTreeMap<(String, String), Sighting>>,
    is_complete: bool,
    /// Why the watch is interrupted.
    trouble: Option<String>,
}

impl Shown {
    /// Takes an event in. Returns the groups that it changed, and those that it ended.
    fn apply(&mut self, event: Result<Event<Sighting>, watcher::Error>) -> (Vec<Sighting>, Vec<Sighting>) {
        let key = |group: &Sighting| (group.namespace().unwrap_or_default(), group.name_any());
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.trouble = Some(error.to_string());
                return Default::default();
            }
        };
        self.trouble = None;
        match event {
            Event::Init => self.incoming = Some(BTreeMap::new()),
            Event::InitApply(group) => {
                self.incoming.get_or_insert_default().insert(key(&group), group);
            }
            Event::InitDone => {
                let new = self.incoming.take().unwrap_or_default();
                let old = std::mem::replace(&mut self.groups, new);
                self.is_complete = true;
                let line = GroupLine::of;
                let changed =
                    self.groups.iter().filter(|(key, group)| old.get(*key).map(line) != Some(line(group)));
                let changed = changed.map(|(_, group)| group.clone()).collect();
                let gone = old.into_iter().filter(|(key, _)| !self.groups.contains_key(key));
                return (changed, gone.map(|(_, group)| group).collect());
            }
            Event::Apply(group) => {
                let before = self.groups.insert(key(&group), group.clone());
                let is_new = before.as_ref().map(GroupLine::of) != Some(GroupLine::of(&group));
                return (Vec::from_iter(is_new.then_some(group)), Vec::new());
            }
            Event::Delete(group) => {
                self.groups.remove(&key(&group));
                return (Vec::new(), vec![group]);
            }
        }
        Default::default()
    }
}

/// Follows the groups of a namespace, or of all; or one group, where the output is no terminal.
pub(super) async fn list(
    cluster: &Cluster,
    namespace: Option<&str>,
    group: Option<&GroupName>,
) -> Result<(), Failure> {
    let namespace = group.map_or(namespace, |group| Some(&group.namespace));
    // A first list tells what is wrong, while the watch would try again without end.
    match group {
        Some(group) => drop(cluster.group(group).await?),
        None => drop(cluster.groups(namespace).await?),
    }
    let config = match group {
        Some(group) => watcher::Config::default().fields(&format!("metadata.name={}", group.name)),
        None => watcher::Config::default(),
    };
    let events = kube::runtime::watcher(cluster.of::<Sighting>(namespace), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut tick = interval(TICK);
    let mut shown = Shown::default();
    loop {
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return Ok(()) };
                let was_well = shown.trouble.is_none();
                let (changed, gone) = shown.apply(event);
                if !can_redraw() {
                    let now = Timestamp::now();
                    let mut text = String::new();
                    text.extend(changed.iter().map(|group| status::change_line(&GroupLine::of(group), now)));
                    text.extend(gone.iter().map(|group| status::gone_line(group, now)));
                    if let Some(trouble) = shown.trouble.as_ref().filter(|_| was_well) {
                        text += &format!("{} the watch is interrupted: {trouble}\n", utc(now));
                    }
                    write(&text)?;
                }
            }
            _ = tick.tick() => {}
        }
        if can_redraw() && shown.is_complete {
            let lines = status::lines(shown.groups.values(), None);
            let mut text = status::list(&lines, namespace, Timestamp::now(), width());
            if let Some(trouble) = &shown.trouble {
                let warning = format!("The watch is interrupted, and this may be out of date: {trouble}");
                let _ = writeln!(text, "\n{}", Ink::Bad.paint(&warning));
            }
            redraw(&text)?;
        }
    }
}

/// Follows one group on a terminal: reads everything again whenever the group or one of its pods changes.
pub(super) async fn group(cluster: &Cluster, name: &GroupName) -> Result<(), Failure> {
    let selector = query(&cluster.group(name).await?.spec.selector);
    let namespace = Some(name.namespace.as_str());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", name.name));
    let groups = kube::runtime::watcher(cluster.of::<LeaderGroup>(namespace), only);
    let pods =
        kube::runtime::watcher(cluster.of::<Pod>(namespace), watcher::Config::default().labels(&selector));
    let mut changes = std::pin::pin!(stream::select(signals(groups), signals(pods)));
    // A watch that is interrupted is tried again after growing pauses, in which changes are not seen.
    let mut interrupted = BTreeMap::new();
    let mut tick = interval(TICK);
    let mut seen = cluster.see(name).await?;
    let (mut is_due, mut read_at, mut trouble) = (false, Instant::now(), String::new());
    loop {
        let mut text = status::text(&status::of_group(&seen), &seen, width());
        if let Some(trouble) = Some(&trouble).filter(|it| !it.is_empty()).or(interrupted.values().next()) {
            let _ = writeln!(text, "\n{}", Ink::Bad.paint(&format!("This may be out of date: {trouble}")));
        }
        redraw(&text)?;
        tokio::select! {
            change = changes.next() => {
                match change {
                    None => return Ok(()),
                    Some((kind, Some(error))) => drop(interrupted.insert(kind, error)),
                    Some((kind, None)) => drop(interrupted.remove(&kind)),
                }
                is_due = true;
            }
            () = sleep_until(read_at + PAUSE), if is_due => {
                match cluster.see(name).await {
                    Ok(new) => (seen, trouble) = (new, String::new()),
                    Err(failure) if failure.kind == Kind::NotFound => return Err(failure),
                    Err(failure) => trouble = failure.problem,
                }
                (is_due, read_at) = (!trouble.is_empty(), Instant::now());
            }
            _ = tick.tick() => seen.now = Timestamp::now(),
        }
    }
}

/// A signal for each event of a watch: the kind of object, and the failure if it is one.
fn signals<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
) -> impl Stream<Item = (String, Option<String>)>
where
    K: kube::Resource<DynamicType = ()> + Clone,
{
    let kind = K::plural(&()).into_owned();
    events.default_backoff().map(move |event| {
        let interrupted = |error| format!("the watch of {kind} is interrupted: {error}");
        (kind.clone(), event.err().map(interrupted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, message: &str) -> Sighting {
        let object = serde_json::json!({
            "apiVersion": "leadergroup.dev/v1alpha1", "kind": "LeaderGroup",
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "selector": { "matchLabels": { "app": name } } },
            "status": { "conditions": [{
                "type": "Ready", "status": "False", "reason": "NoPods", "message": message,
                "lastTransitionTime": "2026-11-20T00:00:00Z",
            }] },
        });
        serde_json::from_value(object).expect("a group")
    }

    fn names(groups: &[Sighting]) -> Vec<String> {
        groups.iter().map(ResourceExt::name_any).collect()
    }

    #[test]
    fn only_what_people_see_is_a_change_and_a_new_list_ends_what_it_lacks() {
        let mut shown = Shown::default();
        for event in [Event::Init, Event::InitApply(group("a", "x")), Event::InitApply(group("b", "x"))] {
            assert!(shown.apply(Ok(event)).0.is_empty());
        }
        assert!(!shown.is_complete);
        assert_eq!(names(&shown.apply(Ok(Event::InitDone)).0), ["a", "b"]);
        assert!(shown.is_complete);
        assert!(shown.apply(Ok(Event::Apply(group("a", "x")))).0.is_empty());
        assert_eq!(names(&shown.apply(Ok(Event::Apply(group("a", "y")))).0), ["a"]);
        // The watch was interrupted.
        shown.apply(Ok(Event::Init));
        shown.apply(Ok(Event::InitApply(group("a", "z"))));
        let (changed, gone) = shown.apply(Ok(Event::InitDone));
        assert_eq!((names(&changed), names(&gone)), (vec!["a".to_owned()], vec!["b".to_owned()]));
        assert_eq!(names(&shown.apply(Ok(Event::Delete(group("a", "z")))).1), ["a"]);
        assert!(shown.groups.is_empty());
    }
}
