//! Durations as users write them in manifests: `5s`, `1m30s`, `250ms`.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration written as one to four numbers with a unit (`h`, `m`, `s`, `ms`), such as `5s` or `1m30s`.
///
/// The pattern is stricter than the API server's `format: duration`, which also accepts and stores `1 day`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

/// The text is no [`HumanDuration`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a duration; write one to four numbers with a unit h, m, s or ms, such as 5s or 1m30s")]
pub struct ParseDurationError(String);

/// The texts that are durations, as a regular expression. The CRD's rules enforce it rather than its schema, so that a
/// user reads what to write instead of the expression.
pub(super) const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// The maximum of `health.timeout`, in intervals.
pub(super) const LONGEST_TIMEOUT: u32 = 4;

/// Four numbers of five digits, each with a unit of two characters.
const MAX_LENGTH: usize = 28;

impl HumanDuration {
    /// A duration of whole seconds, for defaults.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

impl FromStr for HumanDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseDurationError(text.to_owned());
        let (mut rest, mut total, mut parts) = (text, Duration::ZERO, 0);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
            let (number, tail) = rest.split_at(digits);
            let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            parts += 1;
            if digits == 0 || digits > 5 || parts > 4 {
                return Err(refuse());
            }
            let number: u64 = number.parse().map_err(|_| refuse())?;
            total += match unit {
                "h" => Duration::from_secs(number * 3600),
                "m" => Duration::from_secs(number * 60),
                "s" => Duration::from_secs(number),
                "ms" => Duration::from_millis(number),
                _ => return Err(refuse()),
            };
            rest = tail;
        }
        if parts == 0 { Err(refuse()) } else { Ok(Self(total)) }
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0.as_secs(), self.0.subsec_millis());
        let parts = [(secs / 3600, "h"), (secs / 60 % 60, "m"), (secs % 60, "s"), (millis.into(), "ms")];
        if parts.iter().all(|(number, _)| *number == 0) {
            return f.write_str("0s");
        }
        parts
            .iter()
            .filter(|(number, _)| *number > 0)
            .try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
    }
}

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_LENGTH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, millis) in
            [("0s", 0), ("5s", 5_000), ("1m30s", 90_000), ("250ms", 250), ("1h1ms", 3_600_001)]
        {
            let parsed: HumanDuration = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(parsed.0, Duration::from_millis(millis));
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in ["", "5", "s", "1 day", "5 s", "1w", "-1s", "1.5s", "100000s", "1s1s1s1s1s"] {
            assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
        }
    }
}
