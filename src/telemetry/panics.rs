//! Panics: none is survived.

use std::{
    backtrace::Backtrace,
    panic::{PanicHookInfo, set_hook},
};

/// From now on a panic anywhere is logged and ends the process.
///
/// A runtime lets the other tasks go on when one of them panics: a replica without its watches, or without its loop, would
/// look alive and do nothing. One that ends is started anew, and the others take its groups over meanwhile.
pub fn end_on_panic() {
    set_hook(Box::new(|panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn tell(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    tracing::error!(
        panic = panic.payload_as_str().unwrap_or("no text"),
        place,
        backtrace = %Backtrace::capture(),
        "a bug: this replica ends, and others take its groups over. Please report it"
    );
}
