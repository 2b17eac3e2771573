//! The syntax that Kubernetes requires of label keys, label values and DNS names: as regular expressions for the CRD's
//! rules, and as functions for the operator's own validation.

/// A label key: a name, after an optional DNS subdomain and a slash.
pub(super) const LABEL_KEY: &str =
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A label value that is not empty.
pub(super) const LABEL_VALUE: &str = "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// Labels that Kubernetes' own controllers use to find their pods.
pub(super) const CONTROLLERS_LABELS: [&str; 5] = [
    "pod-template-hash",
    "pod-template-generation",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
];

/// A label key: an optional DNS subdomain and a slash, then a name.
pub(super) fn is_label_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    is_label_name(name)
        && domain.is_none_or(|domain| domain.len() <= 253 && domain.split('.').all(is_dns_label))
}

/// One label of a DNS name, of any length.
pub(super) fn is_dns_label(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// The name of a label key, or a label value that is not empty.
pub(super) fn is_label_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && end(bytes.first()) && end(bytes.last())
}
