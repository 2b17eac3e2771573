//! A group as it is named on the command line.

/// The namespace, if there is one, and the name of a group that is written as NAME or NAMESPACE/NAME. `default` is the
/// namespace of one without.
pub(super) fn split<'a>(group: &'a str, default: Option<&'a str>) -> (Option<&'a str>, &'a str) {
    match group.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (default, group),
    }
}
