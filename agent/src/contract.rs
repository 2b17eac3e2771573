//! What the declaration of a `LeaderGroup` says about the program of its holder.

use std::{fmt, str::FromStr, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

/// The longest lease. A new `LeaderGroup` waits for it, because a program may still run under the authority of a former
/// one whose lease nobody knows.
pub const LONGEST_LEASE: Duration = Duration::from_mins(5);

/// By how much a wait for the end of a lease is longer than the lease. The rates of two clocks may each differ by 1 %
/// from true time, so that the slower one shows 0.99 s while the faster one shows 1.01 s: the ratio is 1.0202.
pub const CLOCK_MARGIN_PERCENT: u32 = 3;

/// How long an agent may take to kill a program at the end of its lease: it may have to wait for the CPU, for example
/// under a CPU limit, which is enforced in periods of 100 ms.
pub const KILL_MARGIN: Duration = Duration::from_millis(500);

/// How long to wait on one clock so that the program of a lease is over, by whatever clock the lease was measured.
pub fn outlasts(lease: Duration) -> Duration {
    lease * (100 + CLOCK_MARGIN_PERCENT) / 100 + KILL_MARGIN
}

/// One start of an agent, named by the public key that the agent has made for it. The private key never leaves the
/// process, so a later start, also in the same container, cannot be taken for this one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Boot([u8; 32]);

/// A text that names no boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a boot is a public key of 32 bytes in base64url, which is 43 characters")]
pub struct NotABoot;

impl Boot {
    /// The boot with this public key.
    pub const fn new(public_key: [u8; 32]) -> Self {
        Self(public_key)
    }

    /// The public key.
    pub const fn public_key(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Boot({self})")
    }
}

impl FromStr for Boot {
    type Err = NotABoot;

    fn from_str(text: &str) -> Result<Self, NotABoot> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| NotABoot)?;
        bytes.try_into().map(Self).map_err(|_| NotABoot)
    }
}

impl TryFrom<String> for Boot {
    type Error = NotABoot;

    fn try_from(text: String) -> Result<Self, NotABoot> {
        text.parse()
    }
}

impl From<Boot> for String {
    fn from(boot: Boot) -> Self {
        boot.to_string()
    }
}

/// How the program of a term may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The start of the agent that may run the program.
    pub boot: Boot,
    /// How long after a quorum read the program may run: at most [`LONGEST_LEASE`].
    #[serde(rename = "leaseMilliseconds", with = "milliseconds")]
    pub lease: Duration,
    /// Whether the former program is known to be over. Until then the program does not start.
    #[serde(default)]
    pub cleared: bool,
    /// Whether the program is to end, because another pod will take over as planned.
    #[serde(default)]
    pub stop: bool,
    /// While this is set, the lease is not extended. A random name, so that one hold is not taken for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
}

/// The former program that may still run when a term begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Former {
    /// None: the last one is known to be over.
    Over,
    /// The program of this boot, under this token.
    One {
        /// The start of the agent that runs it.
        boot: Boot,
        /// The token of its term.
        token: i64,
        /// Its lease.
        lease: Duration,
        /// The hold that was set when its successor was declared.
        hold: Option<String>,
    },
    /// One that is not known: the `LeaderGroup` is new, and another one of its name may have existed before.
    Anyone {
        /// The longest lease that it may have.
        lease: Duration,
    },
}

/// The term that is declared, as far as the agent reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Declared {
    /// The token of the term.
    pub token: i64,
    /// How its program may run; none if the group's pods are not supervised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

mod milliseconds {
    //! Durations as whole numbers of milliseconds.

    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_read_as_it_is_written() {
        let boot = Boot::new(std::array::from_fn(|index| u8::try_from(index * 7).expect("at most 217")));
        assert_eq!(boot.to_string().len(), 43);
        assert_eq!(boot.to_string().parse(), Ok(boot));
        let json = serde_json::to_string(&boot).expect("JSON");
        assert_eq!(serde_json::from_str::<Boot>(&json).expect("a boot"), boot);
        for wrong in ["", "AAAA", &"A".repeat(44), &"!".repeat(43)] {
            assert_eq!(wrong.parse::<Boot>(), Err(NotABoot), "{wrong}");
        }
    }

    #[test]
    fn a_wait_on_the_fastest_clock_outlasts_a_lease_on_the_slowest() {
        // In true time: the waiting clock gains 1 %, and the one of the lease loses 1 %.
        for lease in [Duration::from_secs(1), LONGEST_LEASE] {
            let (waited, lasts) = (outlasts(lease).div_f64(1.01), lease.div_f64(0.99));
            assert!(waited > lasts + KILL_MARGIN.mul_f64(0.99), "{waited:?} {lasts:?}");
        }
    }
}
