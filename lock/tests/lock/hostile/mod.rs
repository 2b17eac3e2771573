//! Whatever the functions of the schema are called with, and by whichever role that may call them: a call does what the
//! documents say, or fails with an error that says why; it ends in time, and takes nothing from others.
//!
//! The functions come from the catalog, the arguments are mostly those of a client and in part anything else. After
//! each call the rules of [`contract`] compare the whole tables with those before. Meanwhile an operator, a program and
//! an application that are honest work on keys of their own.

mod arguments;
mod contract;
mod functions;
mod stage;
mod state;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest::test_runner::TestCaseError;

use crate::random;
use arguments::{Argument, KEYS, arguments};
use contract::{Caller, Limits};
use functions::{Function, Kind};
use stage::{Honest, Stage, Step, Within};

const SNAPSHOT: Limits = Limits { snapshot: true, read_only: false, impatient: false };
const READ_ONLY: Limits = Limits { snapshot: true, read_only: true, impatient: false };
const IMPATIENT: Limits = Limits { snapshot: false, read_only: false, impatient: true };
const PLAIN: Limits = Limits { snapshot: false, read_only: false, impatient: false };

/// Transactions that a program may make its calls in.
const LEVELS: &[Within] = &[
    Within { begin: "begin isolation level repeatable read", limits: SNAPSHOT },
    Within { begin: "begin isolation level serializable", limits: SNAPSHOT },
    Within { begin: "begin isolation level serializable read only", limits: READ_ONLY },
    Within { begin: "begin; set local lock_timeout = 1", limits: IMPATIENT },
    Within { begin: "begin; set local search_path = pg_temp, leadergroup, pg_catalog", limits: PLAIN },
    Within {
        begin: "begin; set local datestyle = 'SQL, DMY'; set local intervalstyle = iso_8601",
        limits: PLAIN,
    },
];

/// Settings that an application has no reason for. (A program that pretends another history begins an era.)
const SETTINGS: &[Within] = &[
    Within { begin: "begin; set local leadergroup.history = 'lost'", limits: PLAIN },
    Within { begin: "begin; set local leadergroup.fence_patience = '-1'", limits: PLAIN },
    Within { begin: "begin; set local leadergroup.fence_patience = 'for ever'", limits: PLAIN },
    Within { begin: "begin; set local leadergroup.fence_patience = '2147483648'", limits: PLAIN },
    Within { begin: "begin; set local leadergroup.fence_terminate = 'perhaps'", limits: PLAIN },
];

fn within(by: Caller) -> impl Strategy<Value = Option<Within>> {
    let settings = if by == Caller::Application { [LEVELS, SETTINGS].concat() } else { LEVELS.to_vec() };
    prop::option::weighted(0.2, select(settings))
}

/// Calls of one function.
fn calls(by: Caller, number: usize, function: &Function) -> BoxedStrategy<Step> {
    (arguments(&function.parameters), 0..KEYS.len(), within(by))
        .prop_map(move |(arguments, subject, within)| Step::Call {
            by,
            function: number,
            subject,
            arguments,
            within,
        })
        .boxed()
}

fn step(functions: &[Function]) -> impl Strategy<Value = Step> + use<> {
    let mut all = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let of_application =
            if matches!(function.name, "fence" | "fence_pass") || function.kind == Kind::Marks {
                6
            } else {
                1
            };
        let of_program = match function.name {
            "acquire" => 24,
            "release" => 16,
            "give_up" | "mark_dead" => 8,
            _ if function.kind == Kind::Protocol => 4,
            _ => 1,
        };
        all.push((of_application, calls(Caller::Application, number, function)));
        all.push((of_program, calls(Caller::Program, number, function)));
    }
    prop_oneof![3 => Union::new_weighted(all), 1 => honest().prop_map(Step::Honest)]
}

fn honest() -> impl Strategy<Value = Honest> {
    let key = || 3..5_usize;
    prop_oneof![
        4 => (0..2_usize).prop_map(|group| Honest::Grant { group }),
        1 => (0..2_usize).prop_map(|group| Honest::Vacate { group }),
        8 => key().prop_map(|key| Honest::Ask { key }),
        3 => key().prop_map(|key| Honest::Release { key }),
        1 => Just(Honest::Beat),
        2 => select(vec![0, 3_usize]).prop_map(|key| Honest::Fence { key }),
        4 => Just(Honest::EndFence),
        1 => Just(Honest::NewEra),
        3 => Just(Honest::EndQuarantine),
    ]
}

/// The arguments of honest calls are such that the others are refused for what is wrong with them.
#[tokio::test]
async fn each_function_can_be_called_by_those_who_may() {
    let mut stage = Stage::new().await;
    for function in stage.functions.clone() {
        let right = vec![Argument::Right; function.parameters.len()];
        for by in [Caller::Application, Caller::Program] {
            stage.clear().await;
            // The key of the caller, which has it first.
            if !matches!(function.name, "acquire" | "acquire_one") {
                let acquire =
                    stage.functions.iter().find(|function| function.name == "acquire").unwrap().clone();
                let asked = vec![Argument::Right; acquire.parameters.len()];
                let held = stage.call(Caller::Program, &acquire, 5, &asked, None).await.unwrap();
                assert_eq!(held.unwrap()[0]["verdict"], "granted");
                stage.refresh().await;
            }
            let outcome =
                stage.call(by, &function, 5, &right, None).await.unwrap_or_else(|why| panic!("{why}"));
            let may = by == Caller::Program || matches!(function.kind, Kind::Harmless | Kind::Marks);
            match outcome {
                Ok(answers) => {
                    assert!(may && (function.name != "release" || answers[0]["verdict"] == "done"));
                }
                Err(failure) => {
                    assert!(!may && failure.code == "42501", "{by:?} {}: {failure:?}", function.name);
                }
            }
        }
    }
}

#[test]
fn no_call_does_more_than_the_documents_say() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stage = std::cell::RefCell::new(runtime.block_on(Stage::new()));
    let steps = vec(step(&stage.borrow().functions), 1..48);
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/hostile.txt");
    let name = "hostile::no_call_does_more_than_the_documents_say";
    random::run(name, regressions, 64, &steps, |steps| {
        let mut stage = stage.borrow_mut();
        runtime.block_on(async {
            stage.clear().await;
            for step in &steps {
                stage.carry_out(step).await.map_err(TestCaseError::fail)?;
            }
            Ok(())
        })
    });
}
