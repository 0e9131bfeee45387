//! The real services that tests run against, each started once per test binary, on first use.
//!
//! They are private: own folders, free ports, no system service. They end with the test process, however it ends
//! ([`child`]); the folders of dead processes go when the next one starts ([`dirs`]).

pub mod api_server;
pub mod child;
pub mod connect;
pub mod dirs;
pub mod kafka;
mod maven;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;

pub(crate) use maven::short_hash;

use anyhow::Context;
use std::io::Write;
use std::process::Command;
use std::sync::{LazyLock, OnceLock};

use api_server::ApiServer;
use kafka::Kafka;
use pgbouncer::PgBouncer;
use postgres::Postgres;

/// Address that webhook receivers listen on: benchmark range, routed nowhere, and not loopback, which the
/// consumers' address guard always refuses.
pub const RECEIVER_ADDRESS: &str = "198.18.0.1";
/// The range of [`RECEIVER_ADDRESS`], for `egress.allowedCIDRs`.
pub const RECEIVER_RANGE: &str = "198.18.0.0/15";

/// The PostgreSQL server of this test binary.
pub fn postgres() -> &'static Postgres {
    static SERVICE: OnceLock<Result<Postgres, String>> = OnceLock::new();
    once(&SERVICE, "PostgreSQL", Postgres::start)
}

/// The Kafka broker of this test binary.
pub fn kafka() -> &'static Kafka {
    static SERVICE: OnceLock<Result<Kafka, String>> = OnceLock::new();
    once(&SERVICE, "Kafka", Kafka::start)
}

/// The Kubernetes API server of this test binary, with both CRDs installed.
pub fn api_server() -> &'static ApiServer {
    static SERVICE: OnceLock<Result<ApiServer, String>> = OnceLock::new();
    once(&SERVICE, "the Kubernetes API server", ApiServer::start)
}

/// The PgBouncer in front of [`postgres()`], in transaction mode.
pub fn pgbouncer() -> &'static PgBouncer {
    static SERVICE: OnceLock<Result<PgBouncer, String>> = OnceLock::new();
    once(&SERVICE, "PgBouncer", || PgBouncer::start(postgres()))
}

/// Makes [`RECEIVER_ADDRESS`] an address of this machine. Needs root; elsewhere it must be there already.
pub fn receiver_address() -> std::net::IpAddr {
    static ADDED: OnceLock<Result<(), String>> = OnceLock::new();
    once(&ADDED, "the receivers' address", || {
        if std::net::TcpListener::bind((RECEIVER_ADDRESS, 0)).is_ok() {
            return Ok(());
        }
        let command = format!("ip addr add {RECEIVER_ADDRESS}/32 dev lo");
        anyhow::ensure!(
            is_root(),
            "webhook receivers need an address that is not loopback; run once: sudo {command}"
        );
        say(&format!(
            "running `{command}`; the address stays until the machine restarts"
        ));
        let words: Vec<&str> = command.split(' ').collect();
        // Another test process may have added it in between: what counts is the bind below.
        run(Command::new(words[0]).args(&words[1..])).ok();
        std::net::TcpListener::bind((RECEIVER_ADDRESS, 0)).context(command)?;
        Ok(())
    });
    RECEIVER_ADDRESS.parse().expect("a literal address")
}

/// Starts a service on a thread of its own, because a test's thread may be one of a tokio runtime, where blocking
/// clients refuse to work. A failed start fails every test that needs the service, at once.
fn once<T: Send + Sync>(
    cell: &'static OnceLock<Result<T, String>>,
    name: &str,
    start: impl FnOnce() -> anyhow::Result<T> + Send,
) -> &'static T {
    let started = cell.get_or_init(|| {
        std::thread::scope(|scope| {
            scope
                .spawn(|| packages().and_then(|()| start()))
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("its start panicked")))
                .map_err(|error| format!("{error:#}"))
        })
    });
    match started {
        Ok(service) => service,
        Err(error) => panic!("{name} did not start: {error}"),
    }
}

/// Installs missing packages, or says which are missing.
pub(crate) fn packages() -> anyhow::Result<()> {
    static CHECKED: LazyLock<Result<(), String>> = LazyLock::new(|| {
        let script = dirs::tests_dir().join("packages.sh");
        let status = Command::new("bash").arg(script).arg("services").status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err("packages are missing, see above".to_owned()),
            Err(error) => Err(format!("bash: {error}")),
        }
    });
    CHECKED.clone().map_err(anyhow::Error::msg)
}

/// Tells the developer about something slow, past the output capture of the test runner.
pub fn say(message: &str) {
    // Nobody to tell is no reason to fail.
    writeln!(std::io::stderr(), "harness: {message}").ok();
}

/// True when this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a command to its end and returns its standard output; the error holds the end of what it printed.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| name.clone())?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::bail!(
        "{name}: {}\n{}\n{}",
        output.status,
        stdout.trim(),
        stderr.trim()
    )
}
