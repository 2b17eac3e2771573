//! Errors in the settings: each names its place, says what is wrong and what to write instead.

use std::{fmt, path::PathBuf};

/// The source of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is not set.
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

/// One error in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// Where it is.
    pub origin: Origin,
    /// What is wrong, and what to write instead.
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

/// All errors in the settings, one on each line, so that they can be fixed together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct SettingsErrors(pub Vec<SettingsError>);

/// A question to append in brackets: the known name that is nearest to the one found. Empty if none is near.
pub(super) fn did_you_mean<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> String {
    known
        .map(|name| (strsim::levenshtein(&found.to_lowercase(), &name.to_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= name.len() / 3)
        .map_or(String::new(), |(_, name)| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_offered() {
        let known = ["database.url", "database.caFile", "listen"];
        assert_eq!(did_you_mean("database.ulr", known.into_iter()), " (did you mean database.url?)");
        assert_eq!(did_you_mean("colour", known.into_iter()), "");
    }
}
