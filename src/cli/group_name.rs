//! A group as it is named on the command line.

/// The namespace, if there is one, and the name of a group that is written as NAME or NAMESPACE/NAME. `default` is the
/// namespace of one without.
pub(super) fn split<'a>(group: &'a str, default: Option<&'a str>) -> (Option<&'a str>, &'a str) {
    match group.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (default, group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_before_the_name_wins_over_the_option() {
        assert_eq!(split("shop/web", Some("other")), (Some("shop"), "web"));
        assert_eq!(split("web", Some("other")), (Some("other"), "web"));
        assert_eq!(split("web", None), (None, "web"));
    }
}
