//! Failed calls to the API server in words.

use std::error::Error as _;

/// The error with its causes, each once: some errors repeat their cause.
pub fn with_causes(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
}
