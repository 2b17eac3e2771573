//! The numbered rules. Their texts are in the document of the protocol, and nowhere else.

/// The document that has the rules of the protocol.
const PROTOCOL: &str = include_str!("../../docs/sql-protocol.md");
/// The document that has the rules of the lines between this program and a client.
const LINES: &str = include_str!("../../docs/conformance.md");

/// A rule that a client can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule(pub u8);

impl Rule {
    /// The program answers as `docs/conformance.md` says.
    pub const LINES: Self = Self(0);

    /// What the rule demands, in one sentence.
    pub fn sentence(self) -> String {
        let marker = format!("**{self}. ");
        let text = [PROTOCOL, LINES].into_iter().find_map(|document| document.split(&*marker).nth(1));
        let sentence = text.and_then(|text| text.split("**").next()).unwrap_or_default();
        sentence.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// All rules of the protocol, in order.
    pub fn all() -> Vec<Self> {
        (1..=u8::MAX).map(Self).take_while(|rule| !rule.sentence().is_empty()).collect()
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self(0) => f.write_str("P1"),
            Self(number) => write!(f, "R{number}"),
        }
    }
}

/// A rule that was broken, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What was seen, in one line.
    pub seen: String,
    /// Whether a slow machine cannot be the cause.
    pub certain: bool,
}

impl Violation {
    /// Something that must not happen, on no machine.
    pub fn wrong(rule: Rule, seen: impl Into<String>) -> Self {
        Self { rule, seen: seen.into(), certain: true }
    }

    /// Something that did not happen in time, which a very slow machine can cause as well.
    pub fn late(rule: Rule, seen: impl Into<String>) -> Self {
        Self { rule, seen: seen.into(), certain: false }
    }
}

/// Why a scenario ended early.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The client broke a rule.
    Broken(Violation),
    /// Something is missing on this machine.
    Unchecked(String),
    /// This program failed: the scenario says nothing about the client.
    Own(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Own(error.into())
    }
}

/// The outcome of a step of a scenario.
pub(crate) type Outcome<T = ()> = Result<T, Trouble>;

/// Ends the scenario: this must not happen, on no machine.
pub(crate) fn wrong<T>(rule: u8, seen: impl Into<String>) -> Outcome<T> {
    Err(Trouble::Broken(Violation::wrong(Rule(rule), seen)))
}

/// Checks that the token of a later term is larger.
pub(crate) fn follows(later: i64, earlier: i64) -> Outcome {
    if later > earlier { Ok(()) } else { wrong(24, format!("the token {later} is not above {earlier}")) }
}

/// Ends the scenario: this did not happen in time.
pub(crate) fn late<T>(rule: u8, seen: impl Into<String>) -> Outcome<T> {
    Err(Trouble::Broken(Violation::late(Rule(rule), seen)))
}
