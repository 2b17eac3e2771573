//! The agent runs a program in a pod only while the pod has the authority to run it: exactly one pod of a group works.
//!
//! The authority is the declaration in the status of the `LeaderGroup`. The agent reads it itself, with quorum reads,
//! and runs the program for at most one lease after the last read that showed it. No other process lends the authority
//! or extends it, so neither the operator nor PostgreSQL has to be available while the program runs.
//!
//! The operator uses the contract and the answer only. They are all that the crate has without its feature `program`.
//!
//! | file | what it owns |
//! |---|---|
//! | `contract.rs` | what the declaration says about the program: the types that the operator writes and the agent reads |
//! | `machine.rs` | the decisions: reads and ends go in, starts and signals come out. No clock, no process, no network |
//! | `answer.rs` | the signed answer to the operator: what the agent will never do again |
//! | `moment.rs` | points in time on two clocks, neither of which is trusted alone |
//! | `supervisor/` | process 1 of the container: runs the program, has the key and the deadline |
//! | `network/` | its child: reads the declaration, answers the operator and the kubelet. Decides nothing. Also the sidecar for programs that ask |
//! | `install.rs` | copies the agent's program to where other containers of the pod can run it |
//! | `files.rs` | files that no reader finds incomplete |
//! | `messages.rs` | what these two tell each other |
//! | `log.rs` | the container's log, which never makes anything wait |

pub mod answer;
pub mod contract;

#[cfg(feature = "program")]
mod files;
#[cfg(feature = "program")]
pub mod install;
#[cfg(feature = "program")]
mod log;
#[cfg(feature = "program")]
pub mod machine;
#[cfg(feature = "program")]
pub mod messages;
#[cfg(feature = "program")]
pub mod moment;
#[cfg(feature = "program")]
pub mod network;
#[cfg(feature = "program")]
pub mod supervisor;
