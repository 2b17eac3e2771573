//! Logs: one line per event on standard error, for people or for machines.

use std::{fmt, io, str::FromStr};

use tracing::{Subscriber, subscriber::set_global_default};
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{Layer, MakeWriter},
    layer::SubscriberExt as _,
};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Plain text.
    Text,
}

/// The text is not a [`LogFormat`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no log format; write json or text")]
pub struct UnknownLogFormat(String);

/// The filter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It is not of the form `level` or `target=level`, separated by commas.
    #[error(
        "the log filter `{filter}` cannot be read ({reason}); write a level, or target=level pairs, such as info,leadergroup=debug"
    )]
    Unreadable {
        /// The filter as given.
        filter: String,
        /// The error of the parser.
        reason: String,
    },
    /// Logging was already set up in this process.
    #[error("logging was set up twice; set it up once, at the start of the process")]
    SetUpTwice,
}

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(UnknownLogFormat(other.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

/// Sets up logging for the process, to standard error. `filter` is a level, or several `target=level` pairs.
pub fn init_logs(format: LogFormat, filter: &str) -> Result<(), FilterError> {
    let subscriber = log_subscriber(format, filter, io::stderr)?;
    set_global_default(subscriber).map_err(|_| FilterError::SetUpTwice)
}

/// The subscriber of [`init_logs`], with a choice of writer.
pub fn log_subscriber<W>(
    format: LogFormat,
    filter: &str,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, FilterError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let unreadable = |error: tracing_subscriber::filter::ParseError| FilterError::Unreadable {
        filter: filter.to_owned(),
        reason: error.to_string(),
    };
    // The client and its watches log a line for every failed attempt. Our own messages say more, and each only once. So
    // these are off unless the filter names them.
    let unnamed = ["kube_client", "kube_runtime"].into_iter().filter(|target| !filter.contains(target));
    let whole: String = unnamed.map(|target| format!("{target}=off,")).chain([filter.to_owned()]).collect();
    let registry = Registry::default().with(EnvFilter::try_new(whole).map_err(unreadable)?);
    let layer = Layer::default().with_writer(writer).with_ansi(false);
    Ok(match format {
        LogFormat::Json => Box::new(registry.with(layer.json().flatten_event(true).with_span_list(false))),
        LogFormat::Text => Box::new(registry.with(layer)),
    })
}
