//! What can be wrong with the settings, in words that lead to the place and to the remedy.

use std::{fmt, path::PathBuf};

/// Where the value of a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// An environment variable, by name.
    Environment(String),
    /// An argument, without its leading dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// Where.
    pub origin: Origin,
    /// What, and what to write instead.
    pub problem: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => f.write_str(&self.problem),
            origin => write!(f, "{origin}: {}", self.problem),
        }
    }
}

/// All that is wrong with the settings, one a line, so that it can be put right in one go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct SettingsErrors(pub Vec<SettingsError>);

/// The name that was probably meant, as a question in brackets to append, or nothing if none is near.
pub(super) fn did_you_mean<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|name| (distance(&found.to_lowercase(), &name.to_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 3)
        .map_or(String::new(), |(_, name)| format!(" (did you mean {name}?)"))
}

/// How many characters must be inserted, removed or replaced to get from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_edits() {
        for (from, to, edits) in
            [("", "abc", 3), ("ttl", "ttl", 0), ("tll", "ttl", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(from, to), edits, "{from} {to}");
        }
    }

    #[test]
    fn only_a_near_name_is_offered() {
        let known = ["database.url", "database.caFile", "listen"];
        assert_eq!(did_you_mean("database.ulr", known.into_iter()), " (did you mean database.url?)");
        assert_eq!(did_you_mean("colour", known.into_iter()), "");
    }
}
