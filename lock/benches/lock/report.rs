//! Tables for people, a last line as a summary, JSON for programs, and pictures for the docs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

/// A target for a figure.
struct Target {
    what: String,
    value: f64,
    limit: f64,
    bound: &'static str,
    met: bool,
}

/// Collects the results.
pub(crate) struct Report {
    /// What is measured: the name of the file, and the first word of the last line.
    name: &'static str,
    figures: Map<String, Value>,
    summary: Vec<String>,
    targets: Vec<Target>,
    pictures: Vec<(&'static str, String)>,
}

impl Report {
    /// Begins a report with a description of the machine.
    pub(crate) fn new(name: &'static str, machine: Value) -> Self {
        let told: Vec<_> = machine
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| {
                format!("{name} {}", value.as_str().map_or(value.to_string(), str::to_owned))
            })
            .collect();
        println!("{}", told.join(", "));
        Self {
            name,
            figures: Map::from_iter([("machine".to_owned(), machine)]),
            summary: Vec::new(),
            targets: Vec::new(),
            pictures: Vec::new(),
        }
    }

    /// Begins a table. `columns` with a negative width are aligned to the left.
    pub(crate) fn table(title: &str, columns: &[(&str, i32)]) -> Table {
        println!("\n{title}");
        let table = Table { widths: columns.iter().map(|(_, width)| *width).collect() };
        table.row(&columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
        table
    }

    /// Adds the figures of a subject.
    pub(crate) fn figures(&mut self, subject: &str, figures: Vec<Value>) {
        self.figures.insert(subject.to_owned(), figures.into());
    }

    /// Adds to the last line.
    pub(crate) fn summarise(&mut self, text: String) {
        self.summary.push(text);
    }

    /// Adds a figure that should be no larger than `limit`.
    pub(crate) fn at_most(&mut self, what: impl Into<String>, value: f64, limit: f64) {
        self.target(what.into(), value, limit, "at most", value <= limit);
    }

    /// Adds a figure that should be no smaller than `limit`.
    pub(crate) fn at_least(&mut self, what: impl Into<String>, value: f64, limit: f64) {
        self.target(what.into(), value, limit, "at least", value >= limit);
    }

    fn target(&mut self, what: String, value: f64, limit: f64, bound: &'static str, met: bool) {
        self.targets.push(Target { what, value, limit, bound, met });
    }

    /// Prints the targets, and adds them to the figures and the last line.
    fn tell_targets(&mut self) {
        if self.targets.is_empty() {
            return;
        }
        let widest = self.targets.iter().map(|target| target.what.len()).max().unwrap_or_default();
        let table = Self::table(
            "Targets",
            &[("", -i32::try_from(widest).unwrap_or(60)), ("is", 9), ("to be", -14), ("", -6)],
        );
        let mut figures = Vec::new();
        for Target { what, value, limit, bound, met } in &self.targets {
            let outcome = if *met { "met" } else { "missed" };
            table.row(&[
                what.clone(),
                number(*value),
                format!("{bound} {}", number(*limit)),
                outcome.to_owned(),
            ]);
            figures.push(json!({ "what": what, "is": value, "bound": bound, "limit": limit, "met": met }));
            self.summary.push(format!("{what} {} ({outcome}: {bound} {})", number(*value), number(*limit)));
        }
        self.figures.insert("targets".to_owned(), figures.into());
    }

    /// Adds a picture under a file name.
    pub(crate) fn picture(&mut self, name: &'static str, svg: String) {
        self.pictures.push((name, svg));
    }

    /// Writes a file beside the figures.
    pub(crate) fn file(name: &str, text: &str) -> Result<PathBuf> {
        write(&directory().join("bench"), name, text)
    }

    /// Writes the files and prints the last line.
    pub(crate) fn finish(mut self, complete: bool) -> Result<()> {
        self.tell_targets();
        // A part of the figures must not replace all of them.
        let name = if complete { format!("{}.json", self.name) } else { format!("{}-part.json", self.name) };
        let file = Self::file(&name, &serde_json::to_string_pretty(&self.figures)?)?;
        let images =
            std::env::var_os("LEADERGROUP_BENCH_IMAGES").map_or(directory().join("bench"), PathBuf::from);
        for (name, svg) in &self.pictures {
            write(&images, name, svg)?;
        }
        println!("\nfigures: {}, pictures: {}", file.display(), images.display());
        println!("{}: {}", self.name, self.summary.join(" · "));
        Ok(())
    }
}

fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let file = directory.join(name);
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&file, text))
        .with_context(|| format!("writing {}", file.display()))?;
    Ok(file)
}

/// Cargo's target directory: this program is in `release/deps` below it.
fn directory() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(3).map_or_else(|| PathBuf::from("target"), Path::to_path_buf)
}

/// A table that is printed row by row.
pub(crate) struct Table {
    widths: Vec<i32>,
}

impl Table {
    pub(crate) fn row(&self, cells: &[String]) {
        let cells: Vec<_> = cells
            .iter()
            .zip(&self.widths)
            .map(|(cell, width)| {
                let wide = width.unsigned_abs() as usize;
                if *width < 0 { format!("{cell:<wide$}") } else { format!("{cell:>wide$}") }
            })
            .collect();
        println!("  {}", cells.join("  ").trim_end());
    }
}

/// Formats a number with separated thousands, or with decimals if it is small.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
