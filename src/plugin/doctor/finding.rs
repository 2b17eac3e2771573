//! What the doctor finds, and how it is printed.

use serde::{Serialize, Serializer};

use crate::plugin::{
    ink::Ink,
    table::{indented, point},
};

/// How bad a finding is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::plugin) enum Level {
    /// It keeps a group from working, or from surviving a failure.
    Wrong,
    /// It could not be looked at.
    Unknown,
    /// It may be meant so.
    Hint,
    /// It is as it should be.
    Fine,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::plugin) struct Finding {
    pub(in crate::plugin) level: Level,
    /// What it is about: the installation, the rights, or a group.
    pub(in crate::plugin) about: String,
    pub(in crate::plugin) text: String,
    /// What to do; none if all is fine. Only this file creates findings, so that none lacks it.
    #[serde(serialize_with = "as_text")]
    remedy: Option<Remedy>,
}

/// What to do about a finding, in one line. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plugin) struct Remedy(String);

impl Remedy {
    /// Where a finding of an unknown cause leads to.
    pub(super) const ELSEWHERE: &'static str = "docs/operations.md, Troubleshooting";

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self(if text.is_empty() { Self::ELSEWHERE.to_owned() } else { text })
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn as_text<S: Serializer>(remedy: &Option<Remedy>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(remedy.as_ref().map_or("", Remedy::as_str))
}

impl Finding {
    pub(super) fn new(
        level: Level,
        about: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) -> Self {
        Self { level, about: about.into(), text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fine(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self { level: Level::Fine, about: about.into(), text: text.into(), remedy: None }
    }

    /// What to do; empty if all is fine.
    pub(super) fn remedy(&self) -> &str {
        self.remedy.as_ref().map_or("", Remedy::as_str)
    }
}

/// All findings for people, by what they are about, and a last line that sums them up.
pub(in crate::plugin) fn text(findings: &[Finding], width: Option<usize>) -> String {
    let mut text = String::new();
    let mut about = "";
    for finding in findings {
        if finding.about != about {
            about = &finding.about;
            let gap = if text.is_empty() { "" } else { "\n" };
            text += &format!("{gap}{}\n", Ink::Heading.paint(about));
        }
        let (mark, ink) = match finding.level {
            Level::Wrong => ("WRONG", Ink::Bad),
            Level::Unknown => ("?    ", Ink::Warning),
            Level::Hint => ("hint ", Ink::Warning),
            Level::Fine => ("ok   ", Ink::Good),
        };
        text += &point(mark, ink, &finding.text, width);
        if !finding.remedy().is_empty() {
            text += &indented(&format!("-> {}", finding.remedy()), 8, width);
        }
    }
    text + "\n" + &summed_up(findings)
}

fn summed_up(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (wrong, unknown, hints) = (count(Level::Wrong), count(Level::Unknown), count(Level::Hint));
    let things =
        |count: usize| if count == 1 { "1 thing is".to_owned() } else { format!("{count} things are") };
    let verdict = match wrong {
        0 => Ink::Good.paint("Nothing is wrong."),
        _ => Ink::Bad.paint(&format!("{} wrong.", things(wrong))),
    };
    let unknown = match unknown {
        0 => String::new(),
        _ => format!(" {} not known.", things(unknown)),
    };
    let hints = match hints {
        0 => String::new(),
        1 => " 1 hint.".to_owned(),
        _ => format!(" {hints} hints."),
    };
    format!("{verdict}{unknown}{hints}\n")
}

/// Whether something is wrong.
pub(in crate::plugin) fn is_any_wrong(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Wrong)
}
