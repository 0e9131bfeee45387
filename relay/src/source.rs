//! Connections to the outbox's database, and what its errors mean.

use fanout_contract::reason::SourceError;
use fanout_contract::relay::{PostgresSource, Problem, RelayConfig, Source as SourceConfig};
use fanout_runtime::config::Files;
use secrecy::ExposeSecret as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use std::future::Future;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

use crate::claim::{Outbox, columns};

/// Why the outbox can't be used.
pub type Failure = Problem<SourceError>;

/// Connecting and answering one short statement takes at most this long.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Statements that read many rows (the ids of a large difference) take at most this long.
pub const SCAN_TIMEOUT: Duration = Duration::from_mins(5);
/// A relay has two to four ranges; all of a topic's when the others are gone, until it has merged them. A write for each of
/// four beside the [`SCANS`], and one each for leases, measuring and removing; one to spare.
const CONNECTIONS: u32 = 16;
/// Statements that may take long, at once: leases are renewed beside them.
const SCANS: usize = 8;
/// A connection is replaced after this time, so that a pooler or a changed DNS entry is noticed.
const CONNECTION_AGE: Duration = Duration::from_mins(30);

/// The outbox and connections to its database.
#[derive(Clone, Debug)]
pub struct Source {
    /// What is read.
    pub outbox: Outbox,
    pool: PgPool,
    scans: Arc<Semaphore>,
}

impl Source {
    /// Connects once, so that what is wrong is known exactly, looks at the table's columns, then opens the pool.
    pub async fn connect(config: &RelayConfig, files: &Files) -> Result<Self, Failure> {
        let SourceConfig::Postgres(postgres) = &config.source;
        let table = Outbox::table(postgres)?;
        let options = options(postgres, files)?;
        let mut connection =
            within(STATEMENT_TIMEOUT, PgConnection::connect_with(&options)).await?;
        let types = sqlx::raw_sql(AssertSqlSafe(columns::types(&table)));
        let rows = within(STATEMENT_TIMEOUT, types.fetch_all(&mut connection)).await?;
        within(STATEMENT_TIMEOUT, connection.close()).await?;
        let types = columns::decode_types(&rows).map_err(|error| classify(&error))?;
        let identity = format!("/{}/{}", config.namespace, config.name);
        let outbox = Outbox::new(postgres, identity, types)?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(STATEMENT_TIMEOUT)
            .max_lifetime(CONNECTION_AGE)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self {
            outbox,
            pool,
            scans: Arc::new(Semaphore::new(SCANS)),
        })
    }

    /// Connects once more, and leaves.
    pub async fn log_in(&self) -> Result<(), Failure> {
        let options = self.pool.connect_options();
        let connection = within(STATEMENT_TIMEOUT, PgConnection::connect_with(&options)).await?;
        within(STATEMENT_TIMEOUT, connection.close()).await
    }

    /// Runs a short statement (or several, which make one transaction) and returns its rows.
    pub async fn query(&self, sql: String) -> Result<Vec<PgRow>, Failure> {
        self.query_within(STATEMENT_TIMEOUT, sql).await
    }

    /// Runs a statement with a time limit of its own, which counts from when it is its turn.
    pub async fn query_within(&self, limit: Duration, sql: String) -> Result<Vec<PgRow>, Failure> {
        let turn = (limit > STATEMENT_TIMEOUT).then(|| self.scans.acquire());
        // The semaphore is never closed.
        let _turn = futures::future::OptionFuture::from(turn).await;
        within(
            limit,
            sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&self.pool),
        )
        .await
    }

    /// Runs a statement that changes rows; returns how many.
    pub async fn execute(&self, sql: String) -> Result<u64, Failure> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        let done = within(STATEMENT_TIMEOUT, async {
            sqlx::Executor::execute(&self.pool, statement).await
        });
        Ok(done.await?.rows_affected())
    }

    /// A transaction; dropping it rolls back.
    pub async fn begin(&self) -> Result<Transaction, Failure> {
        Ok(Transaction(
            within(STATEMENT_TIMEOUT, self.pool.begin()).await?,
        ))
    }

    /// Closes every connection; what is under way ends with an error.
    pub async fn close(&self) {
        let closed = tokio::time::timeout(STATEMENT_TIMEOUT, self.pool.close()).await;
        if closed.is_err() {
            tracing::warn!("connections to the outbox did not close in time");
        }
    }
}

/// A transaction on one connection.
#[derive(Debug)]
pub struct Transaction(sqlx::Transaction<'static, sqlx::Postgres>);

impl Transaction {
    /// Runs a statement and returns its rows.
    pub async fn query(&mut self, sql: String) -> Result<Vec<PgRow>, Failure> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        within(STATEMENT_TIMEOUT, statement.fetch_all(&mut *self.0)).await
    }

    /// Runs a statement that changes rows; returns how many.
    pub async fn execute(&mut self, sql: String) -> Result<u64, Failure> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql));
        let done = within(
            STATEMENT_TIMEOUT,
            sqlx::Executor::execute(&mut *self.0, statement),
        );
        Ok(done.await?.rows_affected())
    }

    /// Commits.
    pub async fn commit(self) -> Result<(), Failure> {
        within(STATEMENT_TIMEOUT, self.0.commit()).await
    }

    /// Rolls back.
    pub async fn rollback(self) -> Result<(), Failure> {
        within(STATEMENT_TIMEOUT, self.0.rollback()).await
    }
}

fn options(config: &PostgresSource, files: &Files) -> Result<PgConnectOptions, Failure> {
    let invalid = |message| failure(SourceError::SourceUrlInvalid, message);
    let url = files.text(&config.url_file).map_err(|_| {
        invalid("spec.source.postgres.urlSecretRef: the value is missing or not text")
    })?;
    // The error may quote the URL, so it goes nowhere.
    let options = PgConnectOptions::from_str(url.expose_secret())
        .map_err(|_| invalid("spec.source.postgres.urlSecretRef: not a postgres:// URL"))?
        .application_name("fanout-relay")
        // Poolers refuse start-up parameters they do not know.
        .extra_float_digits(None)
        // Statements carry snapshots and ids; nobody needs them in a log.
        .disable_statement_logging();
    let Some(file) = &config.ca_file else {
        return Ok(options);
    };
    let ca = files
        .bytes(file)
        .map_err(|_| invalid("spec.source.postgres.caSecretRef: the value is missing"))?;
    let options = options.ssl_root_cert_from_pem(ca.to_vec());
    // A CA that is given must be used: verify at least the chain, and the name too unless the URL asks for less.
    Ok(match options.get_ssl_mode() {
        PgSslMode::VerifyCa | PgSslMode::VerifyFull => options,
        _ => options.ssl_mode(PgSslMode::VerifyFull),
    })
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|error| classify(&error)),
        Err(_) => Err(failure(
            SourceError::SourceUnreachable,
            "the database does not answer: check host and port of spec.source.postgres.urlSecretRef and the network",
        )),
    }
}

/// A failure with a text for humans.
pub fn failure(class: SourceError, message: impl Into<String>) -> Failure {
    Problem {
        class,
        message: message.into(),
    }
}

/// An answer that has not the columns, or not the values, that its statement asks for.
pub(crate) fn unexpected() -> Failure {
    failure(
        SourceError::SourceQueryFailed,
        "the database answered in an unexpected form",
    )
}

/// What an error of the driver means; keeps nothing of the server's text but the SQLSTATE.
pub fn classify(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(database) => {
            let state = database.code().unwrap_or_default();
            let class = by_state(&state);
            failure(class, describe(class, &state))
        }
        sqlx::Error::Tls(_) => failure(
            SourceError::SourceTlsFailed,
            "the TLS handshake with the database failed: check sslmode and spec.source.postgres.caSecretRef",
        ),
        sqlx::Error::Configuration(_) => failure(
            SourceError::SourceUrlInvalid,
            "spec.source.postgres.urlSecretRef or caSecretRef can't be used",
        ),
        sqlx::Error::Decode(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => unexpected(),
        // No answer, or none in time; whatever else a later driver tells apart is tried again, too.
        _ => failure(
            SourceError::SourceUnreachable,
            "the database does not answer: check host and port of spec.source.postgres.urlSecretRef and the network",
        ),
    }
}

/// Class of an SQLSTATE.
fn by_state(state: &str) -> SourceError {
    match state {
        "28000" | "28P01" => SourceError::SourceAuthenticationFailed,
        "3D000" => SourceError::DatabaseMissing,
        "25006" => SourceError::SourceReadOnly,
        "42501" => SourceError::SourcePermissionDenied,
        "42P01" | "3F000" => SourceError::TableMissing,
        "42703" => SourceError::ColumnInvalid,
        // Shutting down, starting up, too many connections, connection lost, and what poolers say when their server is
        // away.
        "57P01" | "57P02" | "57P03" | "53300" | "08000" | "08003" | "08006" | "08001" | "08004"
        | "08P01" => SourceError::SourceUnreachable,
        _ => SourceError::SourceQueryFailed,
    }
}

fn describe(class: SourceError, state: &str) -> String {
    match class {
        SourceError::SourceAuthenticationFailed => {
            "the database refused user or password of spec.source.postgres.urlSecretRef: correct the Secret or the role".to_owned()
        }
        SourceError::DatabaseMissing => {
            "the database named in spec.source.postgres.urlSecretRef does not exist: correct the Secret or create it".to_owned()
        }
        SourceError::SourceReadOnly => {
            "spec.source.postgres.urlSecretRef leads to a server that accepts no writes".to_owned()
        },
        SourceError::SourcePermissionDenied => {
            "the role of spec.source.postgres.urlSecretRef lacks a right: run manifests/sql again"
                .to_owned()
        }
        SourceError::TableMissing => {
            "spec.source.postgres.table or a table of schema fanout is missing: run manifests/sql".to_owned()
        },
        SourceError::ColumnInvalid => {
            "spec.source.postgres.table: a column is missing; see manifests/sql/10-outbox.sql".to_owned()
        },
        SourceError::SourceUnreachable => {
            format!("the database of spec.source.postgres.urlSecretRef is not available (SQLSTATE {state})")
        }
        _ => format!("the database refused a statement (SQLSTATE {state})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("28P01", SourceError::SourceAuthenticationFailed)]
    #[case("28000", SourceError::SourceAuthenticationFailed)]
    #[case("3D000", SourceError::DatabaseMissing)]
    #[case("25006", SourceError::SourceReadOnly)]
    #[case("42501", SourceError::SourcePermissionDenied)]
    #[case("57P01", SourceError::SourceUnreachable)]
    #[case("40001", SourceError::SourceQueryFailed)]
    fn states_have_classes(#[case] state: &str, #[case] class: SourceError) {
        assert_eq!(by_state(state), class);
    }
}
