//! Panics end the process.

use std::{
    backtrace::Backtrace,
    panic::{PanicHookInfo, set_hook},
};

/// Installs a hook that logs a panic in any thread and ends the process.
///
/// When a task panics, the runtime keeps the other tasks running. A replica without its watches or its main loop
/// would look alive and do nothing. A replica that ends is restarted, and in the meantime the others take over its
/// groups.
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
        "a bug: this replica exits, and others take over its groups. Please report this"
    );
}
