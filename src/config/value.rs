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
    let Some((scheme, rest)) = url.split_once("://") else { return String::from("null") };
    // What precedes the last @ may be a password, even with a / or ? in it, which makes the URL invalid.
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let place = user.map_or(place.to_owned(), |user| {
        let (name, password) = user.split_once(':').map_or((user, ""), |(name, _)| (name, ":***"));
        format!("{name}{password}@{place}")
    });
    let query = query.map_or(String::new(), |query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if name.to_lowercase().contains("pass") => format!("{name}=***"),
            _ => parameter.to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    format!("\"{scheme}://{place}{query}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_survives_redaction() {
        for (url, shown) in [
            ("postgres://u:p@h:5432/d?sslmode=disable", "\"postgres://u:***@h:5432/d?sslmode=disable\""),
            ("postgres://u:p@q:r@h/d", "\"postgres://u:***@h/d\""),
            ("postgres://u:p/q?r@h/d", "\"postgres://u:***@h/d\""),
            ("postgres://h/d?password=p&user=u", "\"postgres://h/d?password=***&user=u\""),
            ("postgres://u@h/d", "\"postgres://u@h/d\""),
            ("p", "null"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
