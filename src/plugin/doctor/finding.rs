//! What the doctor finds, and how it is printed.

use serde::Serialize;

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
    /// What to do, in one line; empty if nothing is to be done.
    pub(in crate::plugin) remedy: String,
}

impl Finding {
    pub(super) fn new(
        level: Level,
        about: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level, about: about.into(), text: text.into(), remedy: remedy.into() }
    }

    pub(super) fn fine(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Level::Fine, about, text, "")
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
        if !finding.remedy.is_empty() {
            text += &indented(&format!("-> {}", finding.remedy), 8, width);
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
