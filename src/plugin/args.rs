//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::api::HumanDuration;

/// Shows LeaderGroups, explains them, and finds what is wrong with them. Uses the Kubernetes API only, with your own
/// rights
#[derive(Debug, Parser)]
#[command(name = "kubectl-leadergroup", bin_name = "kubectl leadergroup", version, propagate_version = true)]
pub struct CommandLine {
    /// The cluster.
    #[command(flatten)]
    pub access: Access,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and which namespace of it.
#[derive(Clone, Debug, Args)]
pub struct Access {
    /// The context of the kubeconfig; default: the current one
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// The kubeconfig; default: the files in KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace; default: that of the context
    #[arg(short, long, value_name = "NAME", global = true)]
    pub namespace: Option<String>,
    /// How long one call to the API server may take
    #[arg(long, value_name = "TIME", default_value = "10s", global = true)]
    pub request_timeout: HumanDuration,
}

impl Access {
    /// The text of an answer. A command in it goes to the cluster that was asked, when it is copied.
    pub fn with_cluster(&self, text: &str) -> String {
        let context = self.context.iter().map(|name| format!(" --context {name}"));
        let kubeconfig = self.kubeconfig.iter().map(|file| format!(" --kubeconfig {}", file.display()));
        let flags: String = context.chain(kubeconfig).collect();
        let plugin = text.replace("kubectl leadergroup ", &format!("kubectl leadergroup{flags} "));
        plugin.replace("`kubectl -n ", &format!("`kubectl{flags} -n "))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show groups, those with a problem first; or one group with its pods, conditions and Services
    Status(StatusArgs),
    /// Say why a group is as it is, and what happens next
    Explain(ExplainArgs),
    /// Show the last changes of the active pod
    History(HistoryArgs),
    /// Make another pod active while the active one still works
    Switchover(SwitchoverArgs),
    /// Keep the active pod, whatever happens to it: no failover until `resume`
    Pause(PauseArgs),
    /// End `pause`
    Resume(GroupArgs),
    /// Look for what is wrong with the installation, your rights and the groups; status 1 if something is
    Doctor(DoctorArgs),
    /// Print the completion script of a shell
    Completion(CompletionArgs),
}

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// The group; default: all of the namespace
    #[arg(value_name = "GROUP")]
    pub group: Option<String>,
    /// The groups of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["group", "namespace"])]
    pub all_namespaces: bool,
    /// Go on, and show each change until Ctrl-C
    #[arg(short, long, conflicts_with = "output")]
    pub watch: bool,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of commands about one group.
#[derive(Clone, Debug, Args)]
pub struct GroupArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
}

/// Arguments of `explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `pause`.
#[derive(Clone, Debug, Args)]
pub struct PauseArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// Wait here for so long, such as 30m, and resume then, or at once on Ctrl-C
    #[arg(long = "for", value_name = "DURATION")]
    pub limit: Option<HumanDuration>,
}

/// Arguments of `history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `switchover`.
#[derive(Clone, Debug, Args)]
pub struct SwitchoverArgs {
    /// The group: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// The pod to make active; default: the one that would follow after a failure
    #[arg(long, value_name = "POD")]
    pub to: Option<String>,
    /// Wait for the result, and print it
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "40s")]
    pub timeout: HumanDuration,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// The group; default: all of the namespace
    #[arg(value_name = "GROUP")]
    pub group: Option<String>,
    /// The groups of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["group", "namespace"])]
    pub all_namespaces: bool,
    /// How to print it
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `completion`.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people
    #[default]
    Text,
    /// JSON for programs
    Json,
    /// YAML for programs
    Yaml,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn commands_in_an_answer_name_the_cluster_that_was_asked() {
        let text = "web is paused\n`kubectl leadergroup resume -n shop web`, `kubectl -n lg logs x`, kubectl leadergroups";
        let of = |line: &[&str]| CommandLine::parse_from(line).access.with_cluster(text);
        assert_eq!(of(&["x", "status"]), text);
        assert_eq!(
            of(&["x", "status", "--context", "prod", "--kubeconfig", "/k"]),
            "web is paused\n`kubectl leadergroup --context prod --kubeconfig /k resume -n shop web`, \
             `kubectl --context prod --kubeconfig /k -n lg logs x`, kubectl leadergroups"
        );
    }

    #[test]
    fn the_cluster_may_be_named_before_and_after_the_command() {
        for line in [["x", "-n", "shop", "status"], ["x", "status", "-n", "shop"]] {
            let parsed = CommandLine::parse_from(line);
            assert_eq!(parsed.access.namespace.as_deref(), Some("shop"));
        }
        assert!(CommandLine::try_parse_from(["x", "status", "-w", "-o", "json"]).is_err());
        assert!(CommandLine::try_parse_from(["x", "status", "-A", "web"]).is_err());
    }
}
