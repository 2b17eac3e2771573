//! Reading the text of one value, and showing it. Each error says what is allowed and what to write.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::api::HumanDuration;

pub(super) fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

pub(super) fn duration(text: &str, range: &str, millis: RangeInclusive<u64>) -> Result<Duration, String> {
    let parsed = text.parse::<HumanDuration>().ok().map(|parsed| parsed.0);
    parsed
        .filter(|parsed| {
            (Duration::from_millis(*millis.start())..=Duration::from_millis(*millis.end())).contains(parsed)
        })
        .ok_or_else(|| {
            format!("must be {range}: write a number with a unit h, m, s or ms, such as 500ms, 4s or 30m")
        })
}

pub(super) fn count(text: &str, range: &str, allowed: RangeInclusive<u32>) -> Result<u32, String> {
    let parsed = text.parse().ok().filter(|number| allowed.contains(number));
    parsed.ok_or_else(|| format!("must be {range}: write a whole number"))
}

pub(super) fn one_of_two<T>(text: &str, words: [(&str, T); 2]) -> Result<T, String> {
    let [(one, _), (other, _)] = words;
    let problem = format!("must be one of two words: write {one} or {other}");
    words.into_iter().find(|(word, _)| *word == text).map(|(_, value)| value).ok_or(problem)
}

pub(super) fn path(place: &mut Option<PathBuf>, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("must be the path of a file: write one, or leave it out".to_owned());
    }
    *place = Some(text.into());
    Ok(())
}

pub(super) fn shown_path(path: Option<&Path>) -> String {
    path.map_or("null".to_owned(), |path| format!("\"{}\"", path.display()))
}

/// A URL without a user, whose password would be shown, and without a query.
pub(super) fn http_url(text: &str) -> Result<String, String> {
    let url = text.parse::<http::Uri>().ok().filter(|url| {
        matches!(url.scheme_str(), Some("http" | "https"))
            && url.host().is_some_and(|host| !host.is_empty())
            && url.query().is_none()
            && !text.contains(['@', '#'])
    });
    url.map(|_| text.to_owned()).ok_or_else(|| {
        "must be a URL with a host, and without a user and a query: write one like http://otel-collector:4318, or leave it \
         out"
            .to_owned()
    })
}

pub(super) fn namespaces(text: &str) -> Result<Vec<String>, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = |name: &str| {
        (1..=63).contains(&name.len())
            && name.bytes().all(inner)
            && !name.starts_with('-')
            && !name.ends_with('-')
    };
    let mut names: Vec<String> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if let Some(wrong) = names.iter().find(|name| !is_name(name)) {
        return Err(format!(
            "contains `{wrong}`, which names no namespace: write names such as default,my-team"
        ));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The URL without anything that may be a password.
pub(super) fn redacted(url: &str) -> String {
    let is_known = |scheme: &str| matches!(scheme, "postgres" | "postgresql");
    let parts = url.split_once("://").filter(|(scheme, _)| is_known(scheme));
    let Some((scheme, rest)) = parts else { return String::from("null") };
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let (user, place) = place.rsplit_once('@').map_or((None, place), |(user, place)| (Some(user), place));
    // With an unescaped character in a password, it is not certain where the password ends.
    if query.is_some_and(|query| query.contains('@')) || user.is_some_and(|user| user.contains('/')) {
        return format!("\"{scheme}://***\"");
    }
    let place = user.map_or(place.to_owned(), |user| {
        let (name, password) = user.split_once(':').map_or((user, ""), |(name, _)| (name, ":***"));
        format!("{name}{password}@{place}")
    });
    let query = query.map_or(String::new(), |query| format!("?{}", without_password(query)));
    format!("\"{scheme}://{place}{query}\"")
}

/// The parameters up to a password. What follows may be a part of it, after an unescaped `&`.
fn without_password(query: &str) -> String {
    let mut shown = Vec::new();
    for parameter in query.split('&') {
        match parameter.split_once('=') {
            Some((name, _)) if name.to_lowercase().contains("pass") => {
                shown.push(format!("{name}=***"));
                break;
            }
            _ => shown.push(parameter.to_owned()),
        }
    }
    shown.join("&")
}

#[cfg(test)]
#[path = "../../lock/src/db/url/unescaped.rs"]
mod unescaped;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_survives_redaction() {
        for (url, shown) in [
            ("postgres://u:p@h:5432/d?sslmode=disable", "\"postgres://u:***@h:5432/d?sslmode=disable\""),
            ("postgres://u:p@q:r@h/d", "\"postgres://u:***@h/d\""),
            ("postgres://u:p#q@h/d", "\"postgres://u:***@h/d\""),
            ("postgres://u:p/q@h/d", "\"postgres://***\""),
            ("postgres://u:p?q@h/d", "\"postgres://***\""),
            ("postgres://u:p/q?r@h/d", "\"postgres://***\""),
            ("postgres://h/d?user=u&password=p", "\"postgres://h/d?user=u&password=***\""),
            ("postgres://h/d?password=p&q&user=u", "\"postgres://h/d?password=***\""),
            ("postgres://db/d?user=me@server&password=p", "\"postgres://***\""),
            ("postgres://db:5432/d?user=me@server&password=p", "\"postgres://***\""),
            ("postgres://me:p@db/d?user=x@y&password=p", "\"postgres://***\""),
            ("postgres://db/d?password=a@p&user=u", "\"postgres://***\""),
            ("u:p://h/d", "null"),
            ("postgres://u@h/d", "\"postgres://u@h/d\""),
            ("p", "null"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    /// Passwords that were not escaped. `make fuzz` takes other seeds and more cases.
    mod fuzz {
        use proptest::prelude::*;

        use super::{
            super::unescaped::{WORDS, config, url},
            redacted,
        };

        proptest! {
            #![proptest_config(config())]

            #[test]
            fn no_part_of_a_password_survives_redaction(url in url()) {
                let shown = redacted(&url);
                prop_assert!(!WORDS.iter().any(|word| shown.contains(word)), "{url}: {shown}");
            }
        }
    }
}
