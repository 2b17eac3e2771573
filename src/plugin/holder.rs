//! The active pod of the status compared with the pods that exist. The status is what an operator wrote last: without
//! an operator it stays as it is, whatever happens to the pods.

use kube::ResourceExt;

use super::pods::{PodLine, PodRole};
use crate::api::LeaderGroup;

/// The active pod of the status, if none of these pods is it. A later pod of the same name is another pod.
pub(super) fn gone<'a, P>(group: &LeaderGroup, pods: impl IntoIterator<Item = &'a P>) -> Option<String>
where
    P: ResourceExt + 'a,
{
    let active = group.status.as_ref()?.active.as_ref()?;
    let is_it = |pod: &P| {
        let uid = pod.meta().uid.as_ref();
        pod.meta().name.as_ref() == Some(&active.pod)
            && (active.uid.is_empty() || uid.is_none_or(|uid| *uid == active.uid))
    };
    (!pods.into_iter().any(is_it)).then(|| active.pod.clone())
}

/// What is wrong if the active pod is gone.
pub(super) fn gone_words(pod: &str) -> String {
    format!("its active pod {pod} does not exist any more")
}

/// What is wrong if several pods carry the active label, and what to do.
pub(super) fn several(group: &LeaderGroup, pods: &[PodLine]) -> Option<(String, String)> {
    let holder = group.status.as_ref()?.active.as_ref().map(|active| active.pod.as_str());
    let mut names: Vec<&str> =
        pods.iter().filter(|pod| pod.role == PodRole::Active).map(|pod| pod.pod.as_str()).collect();
    if names.len() < 2 {
        return None;
    }
    names.sort_by_key(|name| (Some(*name) != holder, *name));
    let others: Vec<&str> = names.iter().copied().filter(|name| Some(*name) != holder).collect();
    let shown = names
        .iter()
        .map(|name| if Some(*name) == holder { format!("{name} (the holder)") } else { (*name).to_owned() });
    let count = if names.len() == 2 { "two".to_owned() } else { names.len().to_string() };
    let text = format!("{count} pods carry the active label: {}", shown.collect::<Vec<_>>().join(", "));
    let remedy = format!(
        "remove it from each that is not the holder: `kubectl -n {} label pod {} {}-`; docs/runbooks.md, \
         LeaderGroupTwoActive, says how to find out who set it",
        group.namespace().unwrap_or_default(),
        others.join(" "),
        group.spec.routing.role_label
    );
    Some((text, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{
        pods::lines,
        samples::{pod, pods, web, without_active},
    };

    #[test]
    fn the_active_pod_is_known_by_its_name_and_its_uid() {
        let mut pods = pods();
        assert_eq!(gone(&web(), &pods), None, "a pod without a UID is known by its name");
        pods[1].metadata.uid = Some("u1".to_owned());
        assert_eq!(gone(&web(), &pods), None);
        pods[1].metadata.uid = Some("u2".to_owned());
        assert_eq!(gone(&web(), &pods), Some("web-1".to_owned()), "another pod of the same name");
        pods.remove(1);
        assert_eq!(gone(&web(), &pods), Some("web-1".to_owned()));
        assert_eq!(gone(&without_active(), &pods), None);
    }

    #[test]
    fn several_pods_with_the_active_label_are_named_the_holder_first() {
        assert_eq!(several(&web(), &lines(&web(), &pods())), None);
        let mut pods = pods();
        pods[0] = pod("web-0", "active", "True");
        let (text, remedy) = several(&web(), &lines(&web(), &pods)).expect("two");
        assert_eq!(text, "two pods carry the active label: web-1 (the holder), web-0");
        assert!(remedy.contains("`kubectl -n shop label pod web-0 leadergroup.dev/role-`"), "{remedy}");
        pods[2] = pod("web-2", "active", "True");
        let (text, _) = several(&web(), &lines(&web(), &pods)).expect("three");
        assert_eq!(text, "3 pods carry the active label: web-1 (the holder), web-0, web-2");
    }
}
