//! What the demo prints.

use std::{io::Write as _, time::Duration};

use anyhow::{Context as _, Result};

use crate::scenario::ms;

pub(super) fn heading(number: u8, text: &str) -> Result<()> {
    say(&format!("\n{number}. {text}"))
}

pub(super) fn note(text: &str) -> Result<()> {
    say(&format!("   {text}"))
}

pub(super) fn told(after: Duration, text: &str) -> Result<()> {
    note(&format!("+{:>6} ms  {text}", ms(after)))
}

pub(super) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush().context("the output is closed")
}
