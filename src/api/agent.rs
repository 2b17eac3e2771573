//! The agent: the part of the spec, and what its pods say of it.

use std::time::Duration;

pub use leadergroup_agent::answer::terminated_boot;
pub use leadergroup_agent::contract::{
    Boot, Former, FormerRun, LONGEST_LEASE, Promise, Run, STOP_TIMEOUT_SECONDS,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{HumanDuration, rules};

/// The port of an agent, unless it is told another one.
const PORT: u16 = 9470;

/// Configuration of the agents, one in each pod of the group.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = rules::agent)]
pub struct AgentSpec {
    /// port is the port on which the agents answer. Defaults to 9470.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// leaseDuration is how long a program may run without a successful read of the LeaderGroup. It is the longest
    /// outage of the API server that a program survives, and how long a failover may have to wait for a pod that is cut
    /// off. From 2s to 1m, written like 10s. Defaults to 10s.
    pub lease_duration: HumanDuration,
    /// stopTimeout is how long a planned change waits for the program of the active pod to end. After that it goes on
    /// as if the pod had failed. The agents' own `--stop-timeout` should be shorter. From 1s to 1h. Defaults to 35s.
    pub stop_timeout: HumanDuration,
}

impl Default for AgentSpec {
    fn default() -> Self {
        Self {
            port: PORT,
            lease_duration: HumanDuration::from_secs(10),
            stop_timeout: HumanDuration::from_secs(35),
        }
    }
}

/// The shortest lease that leaves time for three reads and an orderly end.
pub(super) const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// What one start of an agent has promised so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promised {
    /// The start of the agent.
    pub boot: Boot,
    /// Nothing starts under a token below this one.
    pub floor: i64,
    /// No program with a token below this one runs, or ever will.
    pub over_below: i64,
}

impl From<Promise> for Promised {
    fn from(Promise { boot, floor, idle }: Promise) -> Self {
        Self { boot, floor, over_below: if idle { floor } else { i64::MIN } }
    }
}

impl Promised {
    /// Takes one more promise in. Those of one boot may come in any order. One of another boot takes the place of all
    /// others: the agent was started again.
    pub fn add(&mut self, promise: Promise) {
        let added = Self::from(promise);
        if added.boot == self.boot {
            self.floor = self.floor.max(added.floor);
            self.over_below = self.over_below.max(added.over_below);
        } else {
            *self = added;
        }
    }

    /// Whether the program of this boot and token is over.
    pub fn is_over(&self, run: &FormerRun) -> bool {
        self.boot == run.boot && self.over_below > run.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(boot: u8, floor: i64, idle: bool) -> Promise {
        Promise { boot: Boot::new([boot; 32]), floor, idle }
    }

    fn run(boot: u8, token: i64) -> FormerRun {
        FormerRun::from(&Run::uncleared(token, Boot::new([boot; 32]), Duration::from_secs(10)))
    }

    #[test]
    fn promises_of_one_boot_add_up_in_any_order() {
        let all = [promise(1, 5, true), promise(1, 6, false), promise(1, 7, true), promise(1, 7, false)];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            let mut promised = Promised::from(all[order[0]]);
            order[1..].iter().for_each(|at| promised.add(all[*at]));
            assert_eq!((promised.floor, promised.over_below), (7, 7), "{order:?}");
            assert!(promised.is_over(&run(1, 6)));
            assert!(!promised.is_over(&run(1, 7)), "it may run");
            assert!(!promised.is_over(&run(2, 6)), "another agent's");
        }
    }

    #[test]
    fn an_agent_that_was_started_again_has_promised_nothing_of_the_former_one() {
        let mut promised = Promised::from(promise(1, 9, true));
        promised.add(promise(2, 3, false));
        assert_eq!(promised, Promised::from(promise(2, 3, false)));
        assert!(!promised.is_over(&run(2, 2)), "it runs something");
        assert!(!promised.is_over(&run(1, 2)));
    }
}
