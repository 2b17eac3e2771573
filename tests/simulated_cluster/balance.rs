//! Which replicas own the groups when everything works: none is on the node of its group's holder, and each has a
//! share.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    api_server::{Kind, Store},
    cluster::NAMESPACE,
    played::Failed,
    simulation::Simulation,
};

/// A replica keeps a group that was handed over to it for so long, and then some.
const KEPT: Duration = Duration::from_mins(6);

/// The living sessions, and the node of each.
fn sessions(tables: &Value) -> BTreeMap<String, String> {
    let sessions = tables["sessions"].as_array().into_iter().flatten();
    let living = sessions.filter(|it| it["dead"] == false && it["closed"] == false);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    living.map(|it| (text(&it["id"]), text(&it["place"]))).collect()
}

/// The session that owns each group, by the group's name.
fn owners(tables: &Value) -> BTreeMap<String, String> {
    let locks = tables["locks"].as_array().into_iter().flatten().filter(|lock| lock["tombstone"] == false);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |lock: &Value| lock["key"].as_str().and_then(|key| key.rsplit('/').next()).map(str::to_owned);
    locks.filter_map(|lock| Some((name(lock)?, text(&lock["session"])))).collect()
}

/// The node of the replica that owns most groups.
pub fn busiest_node(run: &Simulation) -> Option<String> {
    let tables = run.database.dump();
    let (sessions, owners) = (sessions(&tables), owners(&tables));
    let mut nodes: BTreeMap<&String, usize> = BTreeMap::new();
    for node in owners.values().filter_map(|session| sessions.get(session)) {
        *nodes.entry(node).or_default() += 1;
    }
    nodes.into_iter().max_by_key(|(_, groups)| *groups).map(|(node, _)| node.clone())
}

/// The node of the pod that a group declares as its holder.
fn node_of_holder(store: &Store, group: &str) -> Option<String> {
    let group = store.get(Kind::LeaderGroup, NAMESPACE, group)?;
    let holder = group.value()["status"]["declaration"]["holder"]["name"].as_str()?;
    let pod = store.get(Kind::Pod, NAMESPACE, holder)?;
    pod.value()["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// The groups that are owned by no living replica, or by one on their holder's node.
fn misplaced(run: &Simulation) -> Vec<String> {
    let (tables, store) = (run.database.dump(), run.api.store());
    let (sessions, owners) = (sessions(&tables), owners(&tables));
    let mut found = Vec::new();
    if sessions.len() != run.replicas.len() {
        found.push(format!("{} replicas have {} sessions", run.replicas.len(), sessions.len()));
    }
    for group in store.objects(Kind::LeaderGroup).keys().map(|key| &key.name) {
        let node = owners.get(group).and_then(|session| sessions.get(session));
        match (node, node_of_holder(&store, group)) {
            (None, _) => found.push(format!("no living replica owns {group}")),
            (Some(node), Some(holder)) if *node == holder => {
                found.push(format!("the owner and the holder of {group} are on {node}"));
            }
            _ => {}
        }
    }
    found
}

/// Lets time pass until the groups are where they belong.
pub fn until_balanced(run: &mut Simulation) -> Result<(), Failed> {
    let until = run.now + KEPT;
    loop {
        let misplaced = misplaced(run);
        if misplaced.is_empty() {
            return Ok(());
        }
        if run.now >= until {
            return Err(Failed::new("not balanced", format!("{misplaced:#?}\n{}", run.state())));
        }
        run.run(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many groups each replica owns, by its node.
    fn shares(run: &Simulation) -> BTreeMap<String, usize> {
        let tables = run.database.dump();
        let sessions = sessions(&tables);
        let mut shares: BTreeMap<String, usize> = sessions.values().map(|node| (node.clone(), 0)).collect();
        for owner in owners(&tables).values() {
            *shares.get_mut(&sessions[owner]).expect("a living replica") += 1;
        }
        shares
    }

    #[test]
    fn a_replica_that_comes_back_gets_its_share() {
        const GROUPS: usize = 24;
        let mut run = Simulation::new(3, GROUPS);
        run.run(Duration::from_secs(20));
        let is_fair = |shares: &BTreeMap<String, usize>, replicas| {
            let least = GROUPS / replicas / 2;
            shares.len() == replicas && shares.values().all(|share| *share >= least)
        };
        assert!(misplaced(&run).is_empty() && is_fair(&shares(&run), 3), "{:?}", shares(&run));
        run.stop_replicas_on("node-1");
        run.run(Duration::from_secs(10));
        assert!(is_fair(&shares(&run), 2), "{:?}", shares(&run));
        run.resume_replicas_on("node-1");
        run.run(Duration::from_secs(20));
        assert!(misplaced(&run).is_empty() && is_fair(&shares(&run), 3), "{:?}", shares(&run));
    }
}
