//! How every subcommand reaches PostgreSQL: a URL in a file, because arguments and environments can be read by others.

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where the database is.
#[derive(Debug, clap::Args)]
pub(crate) struct DatabaseArgs {
    /// File with the connection URL (postgres://…)
    #[arg(long, value_name = "PATH")]
    database_url_file: PathBuf,
}

impl DatabaseArgs {
    /// A pool that connects on first use, so that a database which is not up yet is only waited for.
    pub(crate) fn pool(&self, connections: u32) -> anyhow::Result<PgPool> {
        let path = &self.database_url_file;
        let url = std::fs::read_to_string(path)
            .with_context(|| format!("can't read {}", path.display()))?;
        // The parser's error might repeat the URL, which holds a password.
        let options = PgConnectOptions::from_str(url.trim())
            .map_err(|_| anyhow::anyhow!("{} holds no connection URL", path.display()))?
            .application_name("fanout-demo");
        Ok(PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options))
    }
}
