//! x

pub mod lock;
