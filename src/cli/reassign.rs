//! `leadergroup lock reassign`: gives a group the key of a group that is gone, for the recovery after the loss of a
//! cluster or of the database.

use clap::Args;
use serde_json::{Value, json};

use super::group_name::split;
use super::print::{OutputFormat, pretty};
use crate::{
    api::LARGEST_TOKEN,
    config::SettingsArgs,
    operator::{Claimant, ExplainError, claimant},
};
use leadergroup_lock::{
    Key, LockError, Refusal, Store, Token,
    admin::LockInfo,
    controller::{Reassigned, Reassignment},
};

/// Arguments of `lock reassign`.
#[derive(Clone, Debug, Args)]
pub struct ReassignArgs {
    /// The group that gets its key: NAME, or NAMESPACE/NAME
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// The group's namespace; default: the one of the kubeconfig's context
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Later tokens are larger than this number. They are in any case larger than the token of the lock's row, that of
    /// the group's status, and those on its pods
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..=LARGEST_TOKEN))]
    pub floor: Option<i64>,
    /// Take the key away from an operator that is alive. Its active pod keeps its label and may continue to write: only
    /// a fence keeps it from that
    #[arg(long)]
    pub force: bool,
    /// Reason to record in the history
    #[arg(long, value_name = "TEXT", default_value = "reassigned by hand")]
    pub reason: String,
    /// Name to record in the history
    #[arg(long, value_name = "NAME", env = "USER", default_value = "unknown")]
    pub by: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Why a key was not reassigned.
#[derive(Debug, thiserror::Error)]
pub enum ReassignError {
    /// An error of the database.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The group could not be read.
    #[error(transparent)]
    Group(#[from] ExplainError),
    /// The key was not reassigned.
    #[error("the lock \"{key}\" was not reassigned: {why}")]
    Refused {
        /// The key.
        key: Key,
        /// Why, and what to do.
        why: String,
    },
}

/// What was done.
struct Outcome {
    claimant: Claimant,
    /// The row before.
    before: Option<LockInfo>,
    /// The next token is larger than this.
    token: Token,
    /// Whether anything had to be changed.
    changed: bool,
}

pub(super) async fn reassign(args: &ReassignArgs, store: &Store) -> Result<String, ReassignError> {
    let (namespace, name) = split(&args.group, args.namespace.as_deref());
    let claimant = claimant(namespace, name).await?;
    let before = store.info(&claimant.key).await?;
    let known = claimant.known.as_ref().map(|known| known.token);
    let floor = Token::new(args.floor.max(known).unwrap_or_default());
    let refused = |why: String| ReassignError::Refused { key: claimant.key.clone(), why };
    let present = before.as_ref().map_or(Token::ZERO, |row| row.token);
    if floor.max(present) == Token::ZERO {
        return Err(refused(
            "neither the cluster nor the database knows a token of it; name the largest one that the stores have seen \
             with --floor"
                .to_owned(),
        ));
    }
    let has_it = before.as_ref().is_some_and(|row| row.group == claimant.tag && !row.tombstone);
    if has_it && floor <= present {
        return Ok(told(args, &Outcome { claimant, before, token: present, changed: false }));
    }
    // If the group already has the key and no holder, only its token is raised. The owner of the row does not matter.
    let raised = has_it && before.as_ref().is_some_and(|row| row.holder.is_none());
    if let Some(session) = before.as_ref().filter(|_| !raised).and_then(|row| row.session.as_ref())
        && !session.dead
        && !args.force
        && !store.observe_death("leadergroup lock reassign", session.id).await?
    {
        return Err(refused(alive(&session.name)));
    }
    let request = Reassignment {
        key: claimant.key.clone(),
        group: claimant.tag.clone(),
        expected: before.as_ref().map(|row| row.token),
        floor,
        reason: format!("{} (by {})", args.reason, args.by),
        force: args.force,
    };
    match store.reassign(&request).await? {
        Reassigned::Done { token } => Ok(told(args, &Outcome { claimant, before, token, changed: true })),
        Reassigned::Refused(refusal) => Err(refused(match refusal {
            Refusal::Unclaimed { .. } => alive("another replica"),
            Refusal::Foreign { .. } => "programs use it; choose another spec.lock.key".to_owned(),
            Refusal::ProtocolNewer { .. } => {
                "a newer version of this program wrote it; use that version".to_owned()
            }
            _ => {
                "it is being changed right now; look at it (`leadergroup lock show`) and try again".to_owned()
            }
        })),
    }
}

fn alive(session: &str) -> String {
    format!(
        "its owner is alive: the session {session} sends heartbeats. Stop that operator first, and its pods. --force takes \
         the key away from it: then its pod and one of this group are active at the same time, and only a fence keeps the \
         old one from writing"
    )
}

fn told(args: &ReassignArgs, outcome: &Outcome) -> String {
    match args.output {
        OutputFormat::Table => as_text(outcome),
        OutputFormat::Json => pretty(&as_json(outcome)),
    }
}

fn as_text(outcome: &Outcome) -> String {
    let Outcome { claimant: Claimant { group, key, tag, known }, before, token, changed } = outcome;
    if !changed {
        return format!("{key} belongs to {group} already; its next token is larger than {token}\n");
    }
    let from = match before {
        None => "it had no row".to_owned(),
        Some(row) if row.group == *tag => format!("it belonged to it before, at token {}", row.token),
        Some(row) => {
            let holder = row.holder.as_ref();
            let holder =
                holder.map_or_else(String::new, |pod| format!(", held by {}/{}", pod.namespace, pod.name));
            format!("it belonged to {}{holder}, at token {}", row.group, row.token)
        }
    };
    let known = known.as_ref().map_or_else(String::new, |known| {
        format!("\nthe largest token that the cluster knows is {} ({})", known.token, known.place)
    });
    format!("{key} belongs to {group} now; {from}{known}\nits next token is larger than {token}\n")
}

fn as_json(outcome: &Outcome) -> Value {
    let Outcome { claimant: Claimant { group, key, known, .. }, before, token, changed } = outcome;
    json!({
        "group": group,
        "key": key,
        "changed": changed,
        "token": token,
        "known": known.as_ref().map(|known| json!({ "token": known.token, "place": known.place })),
        "before": before.as_ref().map(|row| {
            json!({ "group": row.group, "holder": row.holder, "token": row.token, "deleted": row.tombstone })
        }),
    })
}
