//! Pods that several groups select.

use std::{collections::BTreeSet, sync::Arc};

/// More pods than this are only counted in a message.
const MOST_NAMED: usize = 3;

/// A pod that other groups select, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contest {
    /// The name of the pod.
    pub(super) pod: Arc<str>,
    /// The other groups.
    pub(super) groups: BTreeSet<String>,
    /// The pod counts as one of another group, and reads as active.
    pub(super) is_active_elsewhere: bool,
}

/// Which pods other groups select, too, and what follows; `None` if there are none.
pub(super) fn words<'a>(contests: impl Iterator<Item = &'a Contest> + Clone) -> Option<String> {
    let pods = names(contests.clone())?;
    let groups: BTreeSet<_> =
        contests.clone().flat_map(|contest| &contest.groups).map(String::as_str).collect();
    let groups: Vec<_> = groups.into_iter().collect();
    let active = names(contests.filter(|contest| contest.is_active_elsewhere))
        .map_or_else(String::new, |pods| {
            format!(". While another group has {pods} active, no pod of this group becomes active")
        });
    Some(format!(
        "LeaderGroup {} selects {pods}, too, and no group makes a pod active that another one selects; narrow one of \
         the selectors, or change the labels of the pods{active}",
        groups.join(", ")
    ))
}

fn names<'a>(contests: impl Iterator<Item = &'a Contest>) -> Option<String> {
    let pods: BTreeSet<_> = contests.map(|contest| &*contest.pod).collect();
    let named: Vec<_> = pods.iter().copied().take(MOST_NAMED).collect();
    let more = match pods.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more pods"),
    };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}
