//! What the declaration of a `LeaderGroup` says about the program of its holder.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest lease. The first term of a new `LeaderGroup` waits for it, because a program may still run under the
/// authority of a former `LeaderGroup` of the same name, whose lease is not known.
pub const LONGEST_LEASE: Duration = Duration::from_mins(1);

/// How long after SIGTERM an agent kills its program, unless it is told otherwise.
pub const STOP_TIMEOUT_SECONDS: u32 = 25;

/// By how much a wait for the end of a lease is longer than the lease. The rates of two clocks may each differ by 1 %
/// from true time, and the operator waits by `CLOCK_BOOTTIME`, which the kernel bends by up to 8.33 % to follow the
/// network's time. The faster one shows 1.0942 s while the slower one shows 0.99 s: the ratio is 1.1053.
pub const CLOCK_MARGIN_PERCENT: u32 = 11;

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

/// The program of a term: which agent may run it, and for how long after a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// token is the token of the term. A version of the operator that does not know this field keeps it in later
    /// declarations, where it has no meaning.
    pub token: i64,
    /// boot names the start of the agent that may run the program.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub boot: Boot,
    /// leaseMilliseconds is how long the program may run after a read of this declaration was sent.
    #[cfg_attr(feature = "schema", schemars(with = "i64"))]
    #[serde(rename = "leaseMilliseconds", with = "milliseconds")]
    pub lease: Duration,
    /// cleared is whether the former program is known to be over. The program does not start before that.
    #[serde(default)]
    pub cleared: bool,
    /// stop is whether the program is to end, because a planned change follows.
    #[serde(default)]
    pub stop: bool,
    /// hold keeps the lease from being extended while it is set. It is a random name, so that one hold is not taken for
    /// another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Fields that a newer version has added. A compare-and-set compares them, too.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub unknown: BTreeMap<String, Value>,
}

impl Run {
    /// A run that may not start yet.
    pub fn uncleared(token: i64, boot: Boot, lease: Duration) -> Self {
        Self { token, boot, lease, cleared: false, stop: false, hold: None, unknown: BTreeMap::new() }
    }
}

/// A program that may still run although its term is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FormerRun {
    /// token is the token of its term.
    pub token: i64,
    /// boot names the start of the agent that runs it.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub boot: Boot,
    /// leaseMilliseconds is its lease.
    #[cfg_attr(feature = "schema", schemars(with = "i64"))]
    #[serde(rename = "leaseMilliseconds", with = "milliseconds")]
    pub lease: Duration,
    /// hold is the hold that was set when the next term was declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Fields that a newer version has added. A compare-and-set compares them, too.
    #[serde(flatten)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub unknown: BTreeMap<String, Value>,
}

impl From<&Run> for FormerRun {
    fn from(run: &Run) -> Self {
        let Run { token, boot, lease, hold, .. } = run.clone();
        Self { token, boot, lease, hold, unknown: BTreeMap::new() }
    }
}

/// What may still run when a term begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Former {
    /// Nothing: the last program is known to be over.
    Over,
    /// One program.
    One(FormerRun),
    /// One that is not known, with a lease of at most [`LONGEST_LEASE`]: the `LeaderGroup` is new, and another one of
    /// its name may have existed before; or its pods were not supervised so far.
    Anyone,
}

impl Former {
    /// What may run beside the program of the declared term with this token, by the other fields of its declaration.
    pub fn of(token: i64, run: Option<&Run>, former: Option<&FormerRun>) -> Self {
        match run {
            Some(run) if run.cleared && run.token == token => Self::Over,
            run => Self::after(run, former),
        }
    }

    /// What may run when a term after the declared one begins: the program of the declared term, if it could start,
    /// else the one before it.
    ///
    /// A run of an earlier term could start, too: a version of the operator that does not know programs has declared
    /// the present term.
    pub fn after(run: Option<&Run>, former: Option<&FormerRun>) -> Self {
        match run.filter(|run| run.cleared) {
            Some(run) => Self::One(run.into()),
            None => former.cloned().map_or(Self::Anyone, Self::One),
        }
    }

    /// The field that carries this on in a declaration whose program may not start yet.
    pub fn into_field(self) -> Option<FormerRun> {
        match self {
            Self::One(run) => Some(run),
            Self::Over | Self::Anyone => None,
        }
    }

    /// How long to wait for it, counted from when a declaration of a later term was first seen. [`Former::Anyone`]
    /// counts from when nothing was known of a former program first: the `LeaderGroup` is new, or somebody removed its
    /// declaration.
    pub fn wait(&self) -> Duration {
        match self {
            Self::Over => Duration::ZERO,
            Self::One(run) => outlasts(run.lease),
            Self::Anyone => outlasts(LONGEST_LEASE),
        }
    }
}

/// What an agent will never do again. It stays true forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The start of the agent.
    pub boot: Boot,
    /// Nothing starts under a token below this one.
    pub floor: i64,
    /// Whether nothing runs. Together with the floor this stays true for all tokens below it.
    pub idle: bool,
}

/// The term that is declared, as far as the agent reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Declared {
    /// The token of the term.
    pub token: i64,
    /// Its program; none if the group's pods are not supervised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

impl Declared {
    /// The program of this term, if this agent may run it.
    pub fn run_of(&self, boot: Boot) -> Option<&Run> {
        self.run.as_ref().filter(|run| run.boot == boot && run.token == self.token)
    }
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
    fn the_former_program_is_the_last_one_that_could_start() {
        let run = |token: i64, cleared: bool| {
            let boot = Boot::new([u8::try_from(token).expect("a small number"); 32]);
            Run { cleared, ..Run::uncleared(token, boot, Duration::from_secs(10)) }
        };
        let one = |token: i64| Former::One(FormerRun::from(&run(token, true)));
        let field = FormerRun::from(&run(3, true));
        for (run, former, beside, after) in [
            (None, None, Former::Anyone, Former::Anyone),
            (None, Some(&field), one(3), one(3)),
            (Some(run(5, false)), None, Former::Anyone, Former::Anyone),
            (Some(run(5, false)), Some(&field), one(3), one(3)),
            (Some(run(5, true)), None, Former::Over, one(5)),
            // Term 5 was declared by a version that does not know programs, and has kept the fields of term 4.
            (Some(run(4, true)), None, one(4), one(4)),
            (Some(run(4, false)), Some(&field), one(3), one(3)),
        ] {
            assert_eq!(Former::of(5, run.as_ref(), former), beside, "{run:?} {former:?}");
            assert_eq!(Former::after(run.as_ref(), former), after, "{run:?} {former:?}");
        }
    }

    #[test]
    fn what_a_newer_version_has_added_is_kept_and_a_run_of_another_term_is_not_ones_own() {
        let text = r#"{"token":5,"boot":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc","leaseMilliseconds":4000,"cleared":true,"stop":false,"new":1}"#;
        let run: Run = serde_json::from_str(text).expect("a run");
        let written = serde_json::to_value(&run).expect("JSON");
        assert_eq!(written, serde_json::from_str::<Value>(text).expect("JSON"));
        let declared = |token: i64| Declared { token, run: Some(run.clone()) };
        assert!(declared(5).run_of(Boot::new([7; 32])).is_some());
        assert_eq!(declared(5).run_of(Boot::new([8; 32])), None);
        assert_eq!(declared(6).run_of(Boot::new([7; 32])), None);
    }

    #[test]
    fn a_wait_on_the_fastest_clock_outlasts_a_lease_on_the_slowest() {
        // In true time: the waiting clock gains 1 % and is bent by 8.33 %, and the one of the lease loses 1 %.
        for lease in [Duration::from_secs(1), LONGEST_LEASE] {
            let (waited, lasts) = (outlasts(lease).div_f64(1.01 * 1.0833), lease.div_f64(0.99));
            assert!(waited > lasts + KILL_MARGIN.mul_f64(0.9), "{waited:?} {lasts:?}");
        }
    }
}
