//! `leadergroup lock`: inspects locks, takes a lock away from its holder, or gives it to another group.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::check::{CheckArgs, check};
use super::lock_alone::LockAloneCommand;
use super::print::{Answer, OutputFormat, lines, pretty, table};
use super::reassign::{ReassignArgs, ReassignError, reassign};
use crate::config::SettingsArgs;
use leadergroup_lock::{
    Changed, Key, LockError, Refusal, Store, Token,
    admin::{LONGEST_LIST, LockInfo, TermInfo, WaiterInfo},
};

/// Arguments of `lock`.
#[derive(Clone, Debug, Args)]
pub struct LockArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: LockCommand,
}

/// The subcommands of `lock`.
#[derive(Clone, Debug, Subcommand)]
pub enum LockCommand {
    /// List the locks
    Ls(LsArgs),
    /// Show one lock
    Show(ShowArgs),
    /// Show the holders of a lock, latest first
    History(HistoryArgs),
    /// Take a lock away from its holder, which notices it only afterwards
    Release(ReleaseArgs),
    /// Give a group its key after its old cluster or the database was lost
    Reassign(ReassignArgs),
    /// Check whether programs can use the locks: exit status 0 if they can
    Check(CheckArgs),
    /// A command that needs no database.
    #[command(flatten)]
    Alone(LockAloneCommand),
}

/// Arguments of `lock ls`.
#[derive(Clone, Debug, Args)]
pub struct LsArgs {
    /// Only keys with this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    pub limit: u32,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Arguments of `lock show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    /// The lock's key
    pub key: String,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Arguments of `lock history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryArgs {
    /// The lock's key
    pub key: String,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// The settings; only those of the database are used.
    #[command(flatten)]
    pub settings: SettingsArgs,
}

/// Arguments of `lock release`.
#[derive(Clone, Debug, Args)]
pub struct ReleaseArgs {
    /// The lock's key
    pub key: String,
    /// Required, because the holder may still be working when the next holder starts. Without a fence both work then
    #[arg(long, required = true)]
    pub force: bool,
    /// Release only if the token is still this one; by default the current token
    #[arg(long, value_name = "NUMBER")]
    pub token: Option<i64>,
    /// Reason to record in the history
    #[arg(long, value_name = "TEXT", default_value = "released by hand")]
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

/// Why a lock could not be shown or released.
#[derive(Debug, thiserror::Error)]
pub enum LockCommandError {
    /// An error of the database, or an argument that is not a valid key.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A key was not reassigned.
    #[error(transparent)]
    Reassign(#[from] ReassignError),
    /// No such lock.
    #[error("there is no lock with the key \"{key}\"; `leadergroup lock ls` lists them")]
    Missing {
        /// The key.
        key: Key,
    },
    /// The lock was not released.
    #[error("the lock \"{key}\" was not released: {why}")]
    Refused {
        /// The key.
        key: Key,
        /// Why, and what to do.
        why: String,
    },
}

impl LockCommand {
    /// The settings that the command needs, if any.
    pub fn settings(&self) -> Option<SettingsArgs> {
        match self {
            Self::Ls(LsArgs { settings, .. })
            | Self::Show(ShowArgs { settings, .. })
            | Self::History(HistoryArgs { settings, .. })
            | Self::Release(ReleaseArgs { settings, .. })
            | Self::Reassign(ReassignArgs { settings, .. })
            | Self::Check(CheckArgs { settings, .. }) => Some(settings.clone()),
            Self::Alone(_) => None,
        }
    }

    /// Runs the command.
    pub async fn run(&self, store: &Store) -> Result<Answer, LockCommandError> {
        let text = match self {
            Self::Ls(args) => list(args, store).await?,
            Self::Show(args) => show(args, store).await?,
            Self::History(args) => history(args, store).await?,
            Self::Release(args) => release(args, store).await?,
            Self::Reassign(args) => reassign(args, store).await?,
            Self::Check(args) => return Ok(check(args, store).await),
            Self::Alone(command) => return Ok(command.run().await),
        };
        Ok(Answer { text, status: 0 })
    }
}

async fn list(args: &LsArgs, store: &Store) -> Result<String, LockCommandError> {
    let mut all: Vec<LockInfo> = Vec::new();
    let wanted = args.limit as usize;
    while all.len() < wanted {
        let room = u32::try_from(wanted - all.len()).unwrap_or(u32::MAX).min(LONGEST_LIST);
        let page = store.list(&args.prefix, all.last().map(|last| &last.key), room).await?;
        let last_page = page.len() < room as usize;
        all.extend(page);
        if last_page {
            break;
        }
    }
    if args.output == OutputFormat::Json {
        return Ok(pretty(&Value::Array(all.iter().map(lock_json).collect())));
    }
    let rows = all.iter().map(|lock| {
        let session = lock.session.as_ref().map_or_else(String::new, |session| {
            match (session.dead, session.is_silent()) {
                (true, _) => format!("{} (ended)", session.name),
                (_, true) => format!("{} (SILENT)", session.name),
                _ => session.name.clone(),
            }
        });
        [
            lock.key.to_string(),
            holder(lock),
            lock.token.to_string(),
            lock.since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            session,
        ]
    });
    Ok(table(["KEY", "HOLDER", "TOKEN", "SINCE", "SESSION"], rows))
}

async fn find(text: &str, store: &Store) -> Result<LockInfo, LockCommandError> {
    let key = Key::new(text)?;
    store.info(&key).await?.ok_or(LockCommandError::Missing { key })
}

async fn show(args: &ShowArgs, store: &Store) -> Result<String, LockCommandError> {
    let lock = find(&args.key, store).await?;
    let waiters = store.waiters(&lock.key, LONGEST_LIST).await?;
    if args.output == OutputFormat::Json {
        let mut all = lock_json(&lock);
        all["waiting"] = waiters.iter().map(waiter_json).collect();
        return Ok(pretty(&all));
    }
    let mut shown = vec![
        ("key", lock.key.to_string()),
        ("holder", holder(&lock)),
        ("token", lock.token.to_string()),
        ("since", lock.since.to_string()),
        ("group", lock.group.clone()),
    ];
    if let Some(holder) = &lock.holder {
        shown.insert(2, ("holder's uid", holder.uid.clone()));
        shown.insert(3, ("confirmed", yes_or_no(lock.confirmed)));
    }
    if let Some(session) = &lock.session {
        shown.push(("session", format!("{} ({})", session.name, session.id)));
        let seen = match (session.dead, session.is_silent()) {
            (true, _) => "ended; last seen",
            (_, true) => "SILENT, and probably ended; last seen",
            _ => "last seen",
        };
        shown.push(("", format!("{seen} {}", session.seen)));
    } else {
        shown.push(("session", "none".to_owned()));
    }
    for (place, waiter) in waiters.iter().enumerate() {
        let name = if place == 0 { "waiting" } else { "" };
        shown.push((
            name,
            format!("{}/{} since {}", waiter.holder.namespace, waiter.holder.name, waiter.since),
        ));
    }
    Ok(lines(&shown))
}

async fn history(args: &HistoryArgs, store: &Store) -> Result<String, LockCommandError> {
    let key = find(&args.key, store).await?.key;
    let terms = store.history(&key, args.limit).await?;
    if args.output == OutputFormat::Json {
        return Ok(pretty(&Value::Array(terms.iter().map(term_json).collect())));
    }
    let rows = terms.iter().map(|TermInfo { term, ended, .. }| {
        let end =
            ended.as_ref().map_or_else(String::new, |(at, _)| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        [
            term.token.to_string(),
            format!("{}/{}", term.holder.namespace, term.holder.name),
            term.granted_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            term.reason.clone(),
            end,
            ended.as_ref().map_or_else(String::new, |(_, reason)| reason.clone()),
        ]
    });
    Ok(table(["TOKEN", "HOLDER", "GRANTED", "REASON", "RELEASED", "REASON"], rows))
}

async fn release(args: &ReleaseArgs, store: &Store) -> Result<String, LockCommandError> {
    let lock = find(&args.key, store).await?;
    let token = args.token.map_or(lock.token, Token::new);
    let reason = format!("{} (by {})", args.reason, args.by);
    if token != lock.token {
        // The output uses the row that was read here, so it must be the right one.
        let why = outdated(Some(lock.token), token);
        return Err(LockCommandError::Refused { key: lock.key, why });
    }
    let why = match store.force_release(&lock.key, token, &reason).await? {
        Changed::Done => {
            let next =
                store.info(&lock.key).await?.filter(|next| next.token > token && next.holder.is_some());
            return Ok(match args.output {
                OutputFormat::Table => released_text(&lock, next.as_ref()),
                OutputFormat::Json => pretty(&released_json(&lock, next.as_ref())),
            });
        }
        Changed::Refused(Refusal::TokenChanged) => {
            outdated(store.info(&lock.key).await?.map(|now| now.token), token)
        }
        Changed::Refused(Refusal::Busy) => "it is being changed right now; try again".to_owned(),
        Changed::Refused(Refusal::Tombstone) => "its group was deleted; it has no holder".to_owned(),
        Changed::Refused(Refusal::ProtocolNewer { .. }) => {
            "a newer version of this program wrote it; use that version".to_owned()
        }
        Changed::Refused(_) => return Err(LockCommandError::Missing { key: lock.key }),
    };
    Err(LockCommandError::Refused { key: lock.key, why })
}

fn outdated(now: Option<Token>, token: Token) -> String {
    let now = now.map_or_else(|| "gone".to_owned(), |now| now.to_string());
    format!("its token is {now}, not {token}; check who holds it now (`leadergroup lock show`)")
}

fn released_text(lock: &LockInfo, next: Option<&LockInfo>) -> String {
    let LockInfo { key, token, .. } = lock;
    if lock.holder.is_none() {
        return format!("{key} had no holder (token {token})\n");
    }
    let next = next.map_or_else(String::new, |next| format!("; {} holds it now", holder(next)));
    format!("{key} was taken away from {} (token {token}){next}\n", holder(lock))
}

fn released_json(lock: &LockInfo, next: Option<&LockInfo>) -> Value {
    json!({
        "key": lock.key,
        "token": lock.token,
        "takenFrom": lock.holder,
        "next": next.map(|next| json!({ "holder": next.holder, "token": next.token })),
    })
}

fn holder(lock: &LockInfo) -> String {
    match &lock.holder {
        Some(holder) => format!("{}/{}", holder.namespace, holder.name),
        None if lock.tombstone => "(group deleted)".to_owned(),
        None => "(none)".to_owned(),
    }
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn lock_json(lock: &LockInfo) -> Value {
    json!({
        "key": lock.key,
        "group": lock.group,
        "holder": lock.holder,
        "token": lock.token,
        "confirmed": lock.confirmed,
        "deleted": lock.tombstone,
        "since": lock.since.to_string(),
        "session": lock.session.as_ref().map(|session| json!({
            "id": session.id,
            "name": session.name,
            "ended": session.dead,
            "silent": session.is_silent(),
            "lastSeen": session.seen.to_string(),
        })),
    })
}

fn term_json(TermInfo { term, session, ended, .. }: &TermInfo) -> Value {
    json!({
        "token": term.token,
        "holder": term.holder,
        "from": term.granted_at.to_string(),
        "reason": term.reason,
        "confirmed": term.confirmed,
        "grant": term.grant,
        "session": session,
        "released": ended.as_ref().map(|(at, reason)| json!({ "at": at.to_string(), "reason": reason })),
    })
}

fn waiter_json(waiter: &WaiterInfo) -> Value {
    json!({
        "holder": waiter.holder,
        "session": waiter.session,
        "since": waiter.since.to_string(),
        "reason": waiter.reason,
    })
}
