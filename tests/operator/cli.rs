//! Commands of the programs, run as a user does.

use std::process::Command;

use crate::apiserver::ApiServer;

/// Runs a command, with the URL of the database if it needs one. Returns whether it succeeded, and what it printed.
pub(crate) async fn run(server: &ApiServer, url: Option<&str>, args: &[&str]) -> (bool, String) {
    run_program(env!("CARGO_BIN_EXE_leadergroup"), server, url, args).await
}

/// Runs a command of the plugin.
pub(crate) async fn run_plugin(server: &ApiServer, args: &[&str]) -> (bool, String) {
    run_program(env!("CARGO_BIN_EXE_kubectl-leadergroup"), server, None, args).await
}

async fn run_program(program: &str, server: &ApiServer, url: Option<&str>, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(program);
    command.env_clear().env("KUBECONFIG", server.kubeconfig());
    command.envs(url.map(|url| ("LEADERGROUP_DATABASE_URL", url))).args(args);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.success(), text)
}
