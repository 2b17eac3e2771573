//! Statements, their arguments, and their answers.

use serde::{Deserialize, Serialize};
use sqlx::encode::Encode;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, Decode, Postgres, Row as _, Type};

use crate::LockError;

/// One prepared statement, and its name in errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Statement {
    /// The name, for people.
    pub(crate) name: &'static str,
    /// The SQL text.
    pub(crate) sql: &'static str,
}

/// The arguments of a statement, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bind {
    arguments: PgArguments,
    /// The same for a database in memory.
    #[cfg(feature = "memory")]
    pub(crate) values: Vec<serde_json::Value>,
}

impl Bind {
    /// No arguments yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The arguments, for the driver.
    pub(crate) fn into_inner(self) -> PgArguments {
        self.arguments
    }

    /// Appends an argument.
    pub(crate) fn with<'q, T: Encode<'q, Postgres> + Type<Postgres> + Serialize>(
        mut self,
        value: T,
    ) -> Result<Self, LockError> {
        let invalid = |problem| LockError::Invalid { what: "argument", problem };
        #[cfg(feature = "memory")]
        self.values.push(serde_json::to_value(&value).map_err(|error| invalid(error.to_string()))?);
        match self.arguments.add(value) {
            Ok(()) => Ok(self),
            Err(error) => Err(invalid(format!("is too large: {error}"))),
        }
    }
}

/// One row of an answer.
#[derive(Debug)]
pub(crate) enum Row {
    Server(PgRow),
    #[cfg(feature = "memory")]
    Memory(serde_json::Map<String, serde_json::Value>),
}

/// One column of an answer.
pub(crate) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres> + Deserialize<'r>>(
    row: &'r Row,
    column: &'static str,
) -> Result<T, LockError> {
    match row {
        Row::Server(row) => row.try_get(column).map_err(|error| unexpected(column, &error.to_string())),
        #[cfg(feature = "memory")]
        Row::Memory(row) => T::deserialize(row.get(column).unwrap_or(&serde_json::Value::Null))
            .map_err(|error| unexpected(column, &error.to_string())),
    }
}

/// The error for an answer that this program does not understand.
pub(crate) fn unexpected(what: &'static str, detail: &str) -> LockError {
    LockError::Database {
        statement: what,
        code: "none".to_owned(),
        message: format!("unexpected answer: {detail}"),
    }
}

/// Puts the answers of a batch into the order of the questions: `None` where no row answers one.
pub(crate) fn in_order<T>(
    count: usize,
    rows: &[Row],
    read: impl Fn(&Row) -> Result<T, LockError>,
) -> Result<Vec<Option<T>>, LockError> {
    let mut answers: Vec<Option<T>> = std::iter::repeat_with(|| None).take(count).collect();
    for row in rows {
        // Places count from 1.
        let place: i64 = get(row, "place")?;
        let slot = usize::try_from(place - 1).ok().and_then(|index| answers.get_mut(index));
        *slot.ok_or_else(|| unexpected("place", "out of range"))? = Some(read(row)?);
    }
    Ok(answers)
}

/// Like [`in_order`], but every question must have been answered.
pub(crate) fn all_in_order<T>(
    count: usize,
    rows: &[Row],
    read: impl Fn(&Row) -> Result<T, LockError>,
) -> Result<Vec<T>, LockError> {
    let answers: Option<Vec<T>> = in_order(count, rows, read)?.into_iter().collect();
    answers.ok_or_else(|| unexpected("batch", "an answer is missing"))
}

/// A notification, as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Notification {
    pub(crate) channel: String,
    pub(crate) payload: String,
}
