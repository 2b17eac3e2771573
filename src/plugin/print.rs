//! Writing to standard output: text for people, JSON and YAML for programs.

use std::{
    env,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
};

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

use super::{
    args::Output,
    failure::{Failure, Kind},
};

/// The width of the terminal; none if the output is no terminal.
pub(super) fn width() -> Option<usize> {
    let out = io::stdout();
    out.is_terminal().then(|| terminal_size_of(&out)).flatten().map(|(Width(width), _)| width.into())
}

/// Whether the output is a terminal whose text can be replaced.
pub(super) fn can_redraw() -> bool {
    io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Writes a text, in colours if a person looks at it.
pub(super) fn write(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| unwritten(&error))
}

fn unwritten(error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write the answer: {error}"), "");
    let kind = if error.kind() == ErrorKind::BrokenPipe { Kind::NoReader } else { Kind::Other };
    Failure { kind, ..failure }
}

/// Writes a text in place of the former one on the terminal, without a flicker.
pub(super) fn redraw(text: &str) -> Result<(), Failure> {
    // `anstream` would drop the movements of the cursor together with the colours.
    let is_plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    let text = if is_plain { strip_str(text).to_string() } else { text.to_owned() };
    let mut out = io::stdout().lock();
    let written = out.write_all(redrawn(&text).as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| unwritten(&error))
}

/// From the top left corner: each line, and nothing of the former text beside and below it.
fn redrawn(text: &str) -> String {
    let (home, end_of_line, rest) = ("\u{1b}[H", "\u{1b}[K\n", "\u{1b}[J");
    format!("{home}{}{rest}", text.replace('\n', end_of_line))
}

/// The value in the chosen format; `text` is that for people.
pub(super) fn formatted(
    output: Output,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<String, Failure> {
    let failed = |error: &str| Failure::new(format!("cannot write the answer: {error}"), "");
    match output {
        Output::Text => Ok(text()),
        Output::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| failed(&error.to_string())),
        Output::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrawn_text_clears_what_was_there() {
        assert_eq!(redrawn("a\nb\n"), "\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
    }
}
