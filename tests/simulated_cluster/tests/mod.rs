//! Tests of the simulated API server through the clients that the operator uses, in virtual time.

mod faults;
mod routing;
mod stage;
mod watches;
mod writes;
