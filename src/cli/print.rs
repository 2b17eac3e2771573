//! Output: tables and lines for people, JSON for programs.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::Value;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// A table for people
    #[default]
    Table,
    /// JSON for programs
    Json,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The text to print.
    pub text: String,
    /// The exit status.
    pub status: u8,
}

/// Indented JSON.
pub(super) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// One name and value per line, with aligned values.
pub(super) fn lines(all: &[(&str, String)]) -> String {
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    all.iter().fold(String::new(), |mut text, (name, value)| {
        let name = if name.is_empty() { String::new() } else { format!("{name}:") };
        text.push_str(&format!("{name:width$} {value}\n"));
        text
    })
}

/// Columns as wide as their widest entry, with two spaces between them.
pub(super) fn table<const N: usize>(titles: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let all: Vec<[String; N]> = std::iter::once(titles.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["längste", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(
            table(["KEY", "TOKEN"], rows.into_iter()),
            "KEY      TOKEN\n\
             a        1\n\
             längste\n"
        );
    }
}
