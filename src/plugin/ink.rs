//! Text in colours. They are always written, and the output drops them where there is no terminal or `NO_COLOR` is set.

use clap::builder::styling::{AnsiColor, Style};

/// How a text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ink {
    /// As it is.
    #[default]
    Plain,
    /// Well.
    Good,
    /// It may become bad.
    Warning,
    /// Bad.
    Bad,
    /// Less important.
    Dim,
    /// A heading.
    Heading,
}

impl Ink {
    /// The text in this colour.
    pub(super) fn paint(self, text: &str) -> String {
        let coloured = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        let style = match self {
            Self::Plain => return text.to_owned(),
            Self::Good => coloured(AnsiColor::Green),
            Self::Warning => coloured(AnsiColor::Yellow),
            Self::Bad => coloured(AnsiColor::Red).bold(),
            Self::Dim => Style::new().dimmed(),
            Self::Heading => Style::new().bold(),
        };
        if text.trim().is_empty() { text.to_owned() } else { format!("{style}{text}{style:#}") }
    }
}
