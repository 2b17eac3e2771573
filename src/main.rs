//! The `leadergroup` program.

use clap::Parser as _;
use leadergroup::cli::{Cli, Command, crd_yaml};

fn main() {
    match Cli::parse().command {
        Command::Crd => print!("{}", crd_yaml()),
    }
}
