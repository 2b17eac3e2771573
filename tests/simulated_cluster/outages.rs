//! I8: outages that are over within a second. The operator tells nobody of them, so it writes nothing.

use std::time::Duration;

use leadergroup_e2e::{history::operator_writes, random::Random};

use crate::{played::Failed, simulation::Simulation};

/// The longest of them.
const SHORT: Duration = Duration::from_secs(1);
/// No agent ends its program if the API server is away for this part of a lease: a third of it may have passed
/// since the last read, and SIGTERM comes half a second before its end.
const PART_OF_LEASE: u32 = 5;
/// A watch that has failed counts as failing for ten seconds, and its failure is told after as long.
const AFTER: Duration = Duration::from_secs(25);

/// While everything works, the API server is away for a moment, and then the database.
pub fn short_outages(run: &mut Simulation, seed: u64) -> Result<(), Failed> {
    run.random = Random::new(seed ^ 6);
    let revision = run.api.store().revision();
    let is_orderly = run.random.below(2) == 0;
    let lease = run.cluster.shortest_lease();
    let away = run.millis(lease.map_or(SHORT, |lease| SHORT.min(lease / PART_OF_LEASE)));
    run.act(|run| run.api.stop(is_orderly));
    run.run(away);
    run.act(|run| run.api.start());
    run.run(AFTER);
    nothing_is_written_since(run, revision, "a short outage of the API server is told")?;
    let away = run.millis(SHORT);
    run.act(|run| run.database.stop());
    run.run(away);
    run.act(|run| run.database.start());
    run.run(AFTER);
    nothing_is_written_since(run, revision, "a short outage of the database is told")
}

fn nothing_is_written_since(run: &mut Simulation, revision: u64, how: &str) -> Result<(), Failed> {
    let revision = i64::try_from(revision).expect("few enough revisions");
    let writes = operator_writes(&run.history(), revision);
    Failed::unless_none(how, &writes, run)
}
