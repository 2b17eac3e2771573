//! The scenarios: each plays one fault, in a database of its own.

mod clocks;
mod competition;
mod connections;
mod deaths;
mod eras;
mod keys;
mod lease;
mod requests;
mod until;

use futures::future::BoxFuture;

use crate::rules::Outcome;
use crate::stage::Stage;

/// A scenario.
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: &'static str,
    /// The rule that a client breaks if it holds a key for longer than its lease.
    pub(crate) lease: u8,
    /// The same, if the database has lost the grant.
    pub(crate) lost_grant: u8,
    /// Whether it does things to its server that others must not notice.
    pub(crate) own_server: bool,
    /// What happens.
    pub(crate) play: for<'a> fn(&'a mut Stage) -> BoxFuture<'a, Outcome>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The names of all scenarios.
pub fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|scenario| scenario.name).collect()
}

macro_rules! scenario {
    ($name:literal, $play:path) => {
        scenario!($name, $play, 1, 15, false)
    };
    ($name:literal, $play:path, on its own server) => {
        scenario!($name, $play, 1, 15, true)
    };
    ($name:literal, $play:path, $lease:literal, $lost_grant:literal, $own_server:literal) => {
        Scenario {
            name: $name,
            lease: $lease,
            lost_grant: $lost_grant,
            own_server: $own_server,
            play: |stage| Box::pin($play(stage)),
        }
    };
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario!("one after the other", keys::one_after_the_other),
    scenario!("a queue", keys::a_queue),
    scenario!("an outage", lease::an_outage),
    scenario!("a late grant", lease::a_late_grant),
    scenario!("a killed holder", deaths::a_killed_holder),
    scenario!("a paused holder", deaths::a_paused_holder),
    scenario!("a session that is marked dead", deaths::a_marked_session),
    scenario!("a single try", deaths::a_single_try),
    scenario!("an outage for all", deaths::an_outage_for_all),
    scenario!("a new era", eras::a_new_era),
    scenario!("a lost grant", eras::a_lost_grant),
    scenario!("an answer from an old primary", eras::an_old_answer),
    scenario!("old files", eras::old_files, 1, 34, false),
    scenario!("files from before the session", eras::files_from_before_the_session, 1, 34, false),
    scenario!("a grant of the era before", eras::a_grant_of_the_era_before),
    scenario!("a delay", requests::a_delay),
    scenario!("an unknown verdict", requests::an_unknown_verdict),
    scenario!("a newer schema", requests::a_newer_schema),
    scenario!("a request that is given up", requests::a_request_given_up),
    scenario!("no answer to a give_up", requests::no_answer_to_a_give_up),
    scenario!("lost answers", connections::lost_answers),
    scenario!("closed connections", connections::closed_connections),
    scenario!("a restart of the database", connections::a_restart, on its own server),
    scenario!("a clock that is set", clocks::a_clock_that_is_set, 2, 15, false),
    scenario!("a database whose clock is set", clocks::a_jump_of_the_database),
    scenario!("clients that compete", competition::clients_that_compete),
    scenario!("a promoted standby", eras::a_promotion, on its own server),
];
