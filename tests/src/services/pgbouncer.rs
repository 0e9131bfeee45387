//! A private PgBouncer in transaction mode.

use super::child::{Process, Spec};
use super::postgres::{APP_ROLE, PASSWORD, Postgres, RELAY_ROLE};
use super::{dirs, is_root, ports, run};
use crate::Deadline;
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

/// A running pooler.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _process: Process,
}

impl PgBouncer {
    /// Starts a pooler in front of every database of `server`.
    pub fn start(server: &Postgres) -> anyhow::Result<Self> {
        Self::before(server.port())
    }

    /// The same before whatever listens at `server` on this machine.
    pub fn before(server: u16) -> anyhow::Result<Self> {
        let port = ports::free()?;
        let dir = dirs::private(&format!("pgbouncer-{port}"), 0o700)?;
        let mut users = String::new();
        for role in ["postgres", APP_ROLE, RELAY_ROLE] {
            writeln!(users, "\"{role}\" \"{PASSWORD}\"")?;
        }
        std::fs::write(dir.join("users.txt"), users)?;
        let config = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = scram-sha-256\n\
             auth_file = {}\n\
             pool_mode = transaction\n\
             default_pool_size = 5\n\
             max_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\n",
            server,
            dir.join("users.txt").display(),
        );
        std::fs::write(dir.join("pgbouncer.ini"), config)?;
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres:"]).arg(&dir))?;
        }
        let log = dirs::run().join(format!("pgbouncer-{port}.log"));
        let process = Spec::new("/usr/sbin/pgbouncer", &dir, &log)
            .user("postgres")
            .args([dir.join("pgbouncer.ini")])
            .spawn()?;
        Deadline::after(Duration::from_secs(30)).poll("PgBouncer listens", || {
            process.ensure_running()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        Ok(Self {
            port,
            _process: process,
        })
    }

    /// URL of `database` for a role of the harness.
    pub fn url_as(&self, role: &str, database: &str) -> String {
        format!(
            "postgres://{role}:{PASSWORD}@127.0.0.1:{}/{database}",
            self.port
        )
    }
}
