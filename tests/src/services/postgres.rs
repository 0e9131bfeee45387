//! A private PostgreSQL server.

use super::child::{Process, Signal, Spec, as_user};
use super::{dirs, is_root, ports, run};
use crate::Deadline;
use crate::faults::clock::Environment;
use anyhow::Context;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Password of every role the harness makes; it carries [`crate::produced::MARK`].
pub const PASSWORD: &str = "pg-PlantedSecret-of-the-tests";
/// Database that [`crate::Sandbox`] clones; it holds what `manifests/sql` creates.
pub const TEMPLATE: &str = "fanout_template";
/// Connections the server admits; tests run in parallel with a pool each.
const MAX_CONNECTIONS: u32 = 300;

const START_LIMIT: Duration = Duration::from_mins(1);

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    dir: PathBuf,
    bin: PathBuf,
    environment: Environment,
    process: Mutex<Option<Process>>,
}

impl Postgres {
    /// Creates a cluster in the run folder and starts it, with the template database.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_under(Environment::new())
    }

    /// [`Self::start`] with environment variables beside those of this process.
    pub fn start_under(environment: Environment) -> anyhow::Result<Self> {
        let bin = binaries()?;
        let port = ports::free()?;
        let dir = dirs::private(&format!("postgres-{port}"), 0o700)?;
        if is_root() {
            run(Command::new("chown").arg("postgres:").arg(&dir))?;
        }
        let password = dirs::run().join(format!("postgres-{port}.password"));
        std::fs::write(&password, PASSWORD)?;
        run(as_user(Some("postgres"))
            .arg(bin.join("initdb"))
            .args([
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ])
            .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
            .arg("--pwfile")
            .arg(&password)
            .arg(dir.join("data"))
            .current_dir(&dir))?;
        let server = Self {
            port,
            dir,
            bin,
            environment,
            process: Mutex::new(None),
        };
        server.start_again()?;
        server.create_template()?;
        Ok(server)
    }

    /// A server whose log can be decoded, which Debezium reads.
    pub fn start_logical() -> anyhow::Result<Self> {
        let server = Self::start()?;
        server.psql("postgres", "alter system set wal_level = logical", &[])?;
        server.kill()?;
        server.start_again()?;
        Ok(server)
    }

    /// A physical standby of this server that follows it and answers queries.
    pub fn standby(&self) -> anyhow::Result<Self> {
        let port = ports::free()?;
        let dir = dirs::private(&format!("postgres-{port}"), 0o700)?;
        if is_root() {
            run(Command::new("chown").arg("postgres:").arg(&dir))?;
        }
        run(as_user(Some("postgres"))
            .arg(self.bin.join("pg_basebackup"))
            .args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf"])
            .args(["-U", "postgres", "-p", &self.port.to_string(), "-h"])
            .arg(&self.dir)
            .arg("-D")
            .arg(dir.join("data"))
            .current_dir(&dir))?;
        let server = Self {
            port,
            dir,
            bin: self.bin.clone(),
            environment: self.environment.clone(),
            process: Mutex::new(None),
        };
        server.start_again()?;
        Ok(server)
    }

    /// Starts the server over its existing data, after [`Self::kill`].
    pub fn start_again(&self) -> anyhow::Result<()> {
        let settings = [
            ("port", self.port.to_string()),
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("unix_socket_directories", self.dir.display().to_string()),
            ("max_connections", MAX_CONNECTIONS.to_string()),
            ("max_prepared_transactions", "20".to_owned()),
            ("fsync", "off".to_owned()),
            ("full_page_writes", "off".to_owned()),
            // A folder that is deleted takes it along.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("shared_buffers", "128MB".to_owned()),
            ("log_line_prefix", "%m [%p] %d ".to_owned()),
        ];
        let log = dirs::run().join(format!("postgres-{}.log", self.port));
        let process = Spec::new(self.bin.join("postgres"), &self.dir, &log)
            .user("postgres")
            .envs(&self.environment)
            // Immediate shutdown: the server ends its own children and returns its shared memory.
            .death_signal("QUIT")
            .args(["-D".as_ref(), self.dir.join("data").as_os_str()])
            .args(
                settings
                    .iter()
                    .flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]),
            )
            .spawn()?;
        Deadline::after(START_LIMIT).poll("PostgreSQL answers", || {
            process.ensure_running()?;
            Ok(self.psql("postgres", "select 1", &[]).ok())
        })?;
        *self.lock() = Some(process);
        Ok(())
    }

    /// Immediate shutdown, as after a crash: connections break, the log is replayed on [`Self::start_again`].
    ///
    /// For tests that have a server of their own ([`Self::start`]).
    pub fn kill(&self) -> anyhow::Result<()> {
        if let Some(process) = self.lock().take() {
            process.signal(Signal::QUIT);
            process.wait(Duration::from_secs(30))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Id of the process that all others of the server descend from; `None` after [`Self::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Process::pid)
    }

    /// TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Folder of the Unix socket, where connections are trusted.
    pub fn socket_dir(&self) -> &Path {
        &self.dir
    }

    /// URL of `database` for the superuser.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// URL of `database` for a role of the harness.
    pub fn url_as(&self, role: &str, database: &str) -> String {
        url_at(self.port, role, database)
    }

    /// Runs SQL as the superuser through psql, with psql variables, stopping at the first error; returns what it
    /// printed, unaligned and without headings.
    pub fn psql(
        &self,
        database: &str,
        sql: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let file = dirs::run().join(format!("{:016x}.sql", rand::random::<u64>()));
        std::fs::write(&file, sql)?;
        let result = self.psql_file(database, &file, variables);
        std::fs::remove_file(&file)?;
        result
    }

    /// [`Self::psql`] for a file.
    pub fn psql_file(
        &self,
        database: &str,
        file: &Path,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let mut command = Command::new(self.bin.join("psql"));
        command
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
            ])
            .arg("-h")
            .arg(&self.dir)
            .args(["-p", &self.port.to_string(), "-d", database, "-f"])
            .arg(file);
        for (name, value) in variables {
            command.arg("-v").arg(format!("{name}={value}"));
        }
        run(&mut command).with_context(|| file.display().to_string())
    }

    /// The roles, and a database with everything in `manifests/sql`, in the order of the file names.
    fn create_template(&self) -> anyhow::Result<()> {
        let mut sql = String::new();
        for role in [APP_ROLE, RELAY_ROLE] {
            writeln!(sql, "create role {role} login password '{PASSWORD}';")?;
        }
        writeln!(sql, "create database {TEMPLATE};")?;
        self.psql("postgres", &sql, &[])?;
        let roles = [("app_role", APP_ROLE), ("relay_role", RELAY_ROLE)];
        for file in manifests()? {
            self.psql_file(TEMPLATE, &file, &roles)?;
        }
        self.psql(TEMPLATE, include_str!("../harness.sql"), &[])?;
        Ok(())
    }
}

/// URL of `database` for a role of the harness at a port of this machine, where a proxy may stand.
pub fn url_at(port: u16, role: &str, database: &str) -> String {
    format!("postgres://{role}:{PASSWORD}@127.0.0.1:{port}/{database}")
}

/// Role of the application that writes the outbox.
pub const APP_ROLE: &str = "fanout_app";
/// Role of the relay.
pub const RELAY_ROLE: &str = "fanout_relay";

/// The numbered SQL files for the DBA.
fn manifests() -> anyhow::Result<Vec<PathBuf>> {
    let dir = dirs::tests_dir().join("../manifests/sql");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .with_context(|| dir.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|file| {
        // The others are for tables that few databases have.
        file.file_name().is_some_and(|name| {
            name.to_string_lossy()
                .starts_with(|first: char| first.is_ascii_digit())
        }) && file.extension().is_some_and(|extension| extension == "sql")
    });
    files.sort();
    Ok(files)
}

/// Folder of the newest installed server's binaries.
fn binaries() -> anyhow::Result<PathBuf> {
    let root = Path::new("/usr/lib/postgresql");
    let mut versions: Vec<u32> = std::fs::read_dir(root)
        .with_context(|| root.display().to_string())?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|version: &u32| root.join(format!("{version}/bin/postgres")).exists())
        .collect();
    versions.sort_unstable();
    let newest = versions
        .last()
        .context("no server in /usr/lib/postgresql")?;
    Ok(root.join(format!("{newest}/bin")))
}
