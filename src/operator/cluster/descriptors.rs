//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as this process may. Many container runtimes set a low one, which some old
/// programs need, and allow a high one. `needed`: the connections that this process may have at a time. Without
/// descriptors for them, pods that hang would keep it from probing others.
pub(in crate::operator) fn raise_limit(needed: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| maximum.is_none_or(|maximum| current < maximum))
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is low: if many pods hang, others cannot be probed; raise the limit (RLIMIT_NOFILE) \
             of the container"
        );
    }
}
