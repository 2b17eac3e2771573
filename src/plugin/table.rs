//! Tables and paragraphs that fit the terminal.

use super::ink::Ink;

/// One entry of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    ink: Ink,
}

/// One row: its entries, and a remark of any length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) remark: String,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ink: Ink::Plain }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, ink: Ink::Plain }
    }
}

/// An entry in a colour.
pub(super) fn inked(ink: Ink, text: impl Into<String>) -> Cell {
    Cell { text: text.into(), ink }
}

/// Remarks that have at least this much room stand beside their row.
const NARROWEST: usize = 36;
/// Between columns.
const GAP: usize = 2;
/// Remarks below their row begin here.
const INDENT: usize = 4;

/// A table. The last title is that of the remarks. Where these do not fit beside the rows, they stand below them.
/// Without a width, each row is one line.
pub(super) fn table(titles: &[&str], rows: &[Row], width: Option<usize>) -> String {
    let columns = titles.len() - 1;
    let has_remarks = rows.iter().any(|row| !row.remark.is_empty());
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let entries = rows.iter().map(|row| row.cells[column].text.chars().count());
            entries.chain([titles[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let left: usize = widths.iter().map(|width| width + GAP).sum();
    let longest = rows.iter().map(|row| row.remark.chars().count()).max().unwrap_or(0);
    let beside = width.is_none_or(|width| left + longest.min(NARROWEST) <= width);
    let mut text = String::new();
    let heading: Vec<Cell> = titles[..columns].iter().map(|&title| inked(Ink::Heading, title)).collect();
    let title = if has_remarks && beside { titles[columns] } else { "" };
    text += &line(&heading, &widths, &Ink::Heading.paint(title));
    for row in rows {
        if beside {
            let room = width.map(|width| width - left);
            let mut lines = wrapped(&row.remark, room).into_iter();
            text += &line(&row.cells, &widths, &lines.next().unwrap_or_default());
            text.extend(lines.map(|more| format!("{:left$}{more}\n", "")));
        } else {
            text += &line(&row.cells, &widths, "");
            text += &indented(&row.remark, INDENT, width);
        }
    }
    text
}

fn line(cells: &[Cell], widths: &[usize], remark: &str) -> String {
    let mut text = String::new();
    let mut spaces = 0;
    for (cell, width) in cells.iter().zip(widths) {
        if !cell.text.is_empty() {
            text += &format!("{:spaces$}{}", "", cell.ink.paint(&cell.text));
            spaces = 0;
        }
        spaces += width + GAP - cell.text.chars().count();
    }
    if !remark.is_empty() {
        text += &format!("{:spaces$}{remark}", "");
    }
    text + "\n"
}

/// A paragraph whose lines begin at this column.
pub(super) fn indented(paragraph: &str, indent: usize, width: Option<usize>) -> String {
    let room = width.map(|width| width.saturating_sub(indent).max(NARROWEST));
    wrapped(paragraph, room).iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}

/// A point of a list: the mark, and the paragraph beside it.
pub(super) fn point(mark: &str, ink: Ink, paragraph: &str, width: Option<usize>) -> String {
    let indent = mark.chars().count() + 3;
    let text = indented(paragraph, indent, width);
    format!("  {}{}", ink.paint(mark), &text[indent - 1..])
}

/// The words of a paragraph. A command in backticks is one word, so that it can be copied.
fn words(paragraph: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut is_command = false;
    for word in paragraph.split_whitespace() {
        match words.last_mut() {
            Some(command) if is_command => *command += &format!(" {word}"),
            _ => words.push(word.to_owned()),
        }
        is_command ^= word.matches('`').count() % 2 == 1;
    }
    words
}

/// The lines of a paragraph. Without a width it is one line.
fn wrapped(paragraph: &str, room: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut length = 0;
    for word in words(paragraph) {
        let more = word.chars().count();
        match lines.last_mut() {
            Some(line) if room.is_none_or(|room| length + 1 + more <= room) => {
                line.push(' ');
                line.push_str(&word);
                length += 1 + more;
            }
            _ => {
                lines.push(word);
                length = more;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> [Row; 2] {
        [
            Row {
                cells: vec!["web".into(), inked(Ink::Bad, "NOT READY")],
                remark: "none of 3 pods could be active; check them".into(),
            },
            Row { cells: vec!["billing".into(), inked(Ink::Good, "ready")], remark: String::new() },
        ]
    }

    fn plain(width: Option<usize>) -> String {
        anstream::adapter::strip_str(&table(&["GROUP", "STATE", "WHY"], &rows(), width)).to_string()
    }

    #[test]
    fn without_a_terminal_each_row_is_one_line() {
        assert_eq!(
            plain(None),
            "GROUP    STATE      WHY\n\
             web      NOT READY  none of 3 pods could be active; check them\n\
             billing  ready\n"
        );
    }

    #[test]
    fn a_remark_is_wrapped_beside_its_row_or_stands_below_it() {
        assert_eq!(
            plain(Some(58)),
            "GROUP    STATE      WHY\n\
             web      NOT READY  none of 3 pods could be active; check\n\
             \x20                   them\n\
             billing  ready\n"
        );
        assert_eq!(
            plain(Some(42)),
            "GROUP    STATE\n\
             web      NOT READY\n\
             \x20   none of 3 pods could be active; check\n\
             \x20   them\n\
             billing  ready\n"
        );
    }

    #[test]
    fn a_command_is_not_broken() {
        let lines = wrapped("to see it: `kubectl leadergroup status web`, or wait", Some(12));
        assert_eq!(lines, ["to see it:", "`kubectl leadergroup status web`,", "or wait"]);
    }

    #[test]
    fn colours_take_no_room() {
        let painted = table(&["GROUP", "STATE", "WHY"], &rows(), None);
        assert!(painted.contains('\u{1b}'), "{painted:?}");
        assert_ne!(painted, plain(None));
    }
}
