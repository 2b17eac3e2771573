//! Whether the pod is ready. A standby is if it could start the program; from the moment in which it may start it, the
//! program itself has to be ready.

use std::time::Duration;

use crate::{contract::Declared, messages::State, moment::Moment};

/// A read that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRead {
    /// When it was sent.
    pub sent_at: Moment,
    /// The declared term.
    pub shown: Option<Declared>,
    /// Why the group starts no programs, if that does not end by itself.
    pub problem: Option<&'static str>,
}

/// Whether the pod is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It could start the program.
    CouldStart,
    /// It is if the program with this token is.
    IfProgram(i64),
    /// It is not, because of this.
    Not(String),
}

/// Judges by what the supervisor has said and what the last read showed. A standby's read may be this old.
pub fn judge(state: &State, read: Option<&LastRead>, now: Moment, oldest: Duration) -> Readiness {
    let Some(boot) = state.boot else { return not("the supervisor has not said yet what runs") };
    if state.leaves {
        return not("the container is being ended");
    }
    match (state.token, state.ends) {
        (Some(_), Some(why)) => return not(&format!("the program has to end: {why}")),
        (Some(token), None) => return Readiness::IfProgram(token),
        (None, _) => {}
    }
    let Some(LastRead { sent_at, shown, problem }) = read else {
        return not("the LeaderGroup was not read yet; see the agent's log");
    };
    let age = now.since(*sent_at);
    if age > oldest {
        return not(&format!("the LeaderGroup was last read {} s ago; see the agent's log", age.as_secs()));
    }
    if let Some(problem) = problem {
        return not(&format!("the LeaderGroup {problem}"));
    }
    // Below the floor nothing starts: after its end, the pod may be chosen for another term.
    let run = shown.as_ref().and_then(|declared| declared.run_of(boot));
    if let Some(run) = run.filter(|run| run.cleared && !run.stop && run.token >= state.floor) {
        return not(&format!("the program of token {} is about to start", run.token));
    }
    Readiness::CouldStart
}

fn not(why: &str) -> Readiness {
    Readiness::Not(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        contract::{Boot, Run},
        machine::Why,
    };

    const OWN: Boot = Boot::new([1; 32]);
    const OTHER: Boot = Boot::new([2; 32]);

    fn at(seconds: u64) -> Moment {
        let time = Duration::from_secs(seconds);
        Moment { boottime: time, raw: time }
    }

    fn standby() -> State {
        State { boot: Some(OWN), floor: 7, ..State::default() }
    }

    fn read(token: i64, boot: Boot, cleared: bool, stop: bool) -> LastRead {
        let run = Run { cleared, stop, ..Run::uncleared(token, boot, Duration::from_secs(10)) };
        LastRead { sent_at: at(100), shown: Some(Declared { token, run: Some(run) }), problem: None }
    }

    fn judged(state: &State, read: &LastRead) -> Readiness {
        judge(state, Some(read), at(103), Duration::from_secs(9))
    }

    #[test]
    fn a_standby_is_ready_until_it_may_start_the_program() {
        let nothing = LastRead { sent_at: at(100), shown: None, problem: None };
        for fine in [
            nothing.clone(),
            read(7, OTHER, true, false),
            read(7, OWN, false, false),
            // It has run, or will not: it may be chosen again.
            read(6, OWN, true, false),
            read(7, OWN, true, true),
        ] {
            assert_eq!(judged(&standby(), &fine), Readiness::CouldStart, "{fine:?}");
        }
        let soon = judged(&standby(), &read(7, OWN, true, false));
        assert_eq!(soon, not("the program of token 7 is about to start"));
        let is_not = |of: Readiness| matches!(of, Readiness::Not(_));
        assert!(is_not(judge(&standby(), None, at(103), Duration::from_secs(9))));
        assert!(is_not(judge(&standby(), Some(&nothing), at(110), Duration::from_secs(9))), "old");
        let gone = LastRead { problem: Some("does not exist"), ..nothing.clone() };
        assert_eq!(judged(&standby(), &gone), not("the LeaderGroup does not exist"));
        assert!(is_not(judged(&State { leaves: true, ..standby() }, &nothing)));
        assert!(is_not(judged(&State { boot: None, ..standby() }, &nothing)));
    }

    #[test]
    fn a_running_program_decides_itself_unless_it_has_to_end() {
        let runs = State { token: Some(7), ..standby() };
        let last = read(7, OWN, true, false);
        assert_eq!(judged(&runs, &last), Readiness::IfProgram(7));
        // It may run for the rest of its lease, and its clients with it.
        let old = LastRead { sent_at: at(10), ..last.clone() };
        assert_eq!(judged(&runs, &old), Readiness::IfProgram(7));
        let ends = State { ends: Some(Why::Planned), ..runs.clone() };
        assert_eq!(judged(&ends, &last), not("the program has to end: another pod takes over as planned"));
        let leaves = State { leaves: true, ..runs };
        assert_eq!(judged(&leaves, &last), not("the container is being ended"));
    }
}
