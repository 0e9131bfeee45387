//! Kafka Connect with Debezium's PostgreSQL connector: the peer that format Debezium is compared with.

use super::child::{Process, Spec};
use super::{dirs, maven, ports};
use crate::Sandbox;
use anyhow::Context as _;
use std::path::PathBuf;

/// A connector: its name and its settings.
pub type Connector<'a> = (&'a str, Vec<(&'a str, String)>);

/// Keys, values and headers are texts unless a connector says otherwise.
const TEXT: &str = "org.apache.kafka.connect.storage.StringConverter";

/// What the virtual machine is set up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jvm {
    /// To start soon and to take little.
    Quick,
    /// To move as much as it can.
    Fast,
}

impl Jvm {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Quick => &[
                "-Xms64m",
                "-Xmx384m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xshare:auto",
            ],
            Self::Fast => &["-Xms2g", "-Xmx2g"],
        }
    }
}

/// A running Connect process with its connectors.
#[derive(Debug)]
pub struct Connect {
    process: Process,
}

impl Connect {
    /// Starts `connectors` in one process that writes to `bootstrap`.
    pub fn start(bootstrap: &str, connectors: &[Connector<'_>], jvm: Jvm) -> anyhow::Result<Self> {
        let (installation, guard) =
            maven::cached("debezium", "Kafka Connect and Debezium, about 40 MB")?;
        drop(guard);
        let port = ports::free()?;
        let dir = dirs::private(&format!("connect-{port}"), 0o700)?;
        let write = |name: &str, settings: &[(&str, String)]| -> anyhow::Result<PathBuf> {
            let lines: Vec<String> = settings
                .iter()
                .map(|(name, value)| format!("{name}={value}\n"))
                .collect();
            let file = dir.join(format!("{name}.properties"));
            std::fs::write(&file, lines.concat())?;
            Ok(file)
        };
        let mut files = vec![write(
            "worker",
            &[
                ("bootstrap.servers", bootstrap.to_owned()),
                ("listeners", format!("http://127.0.0.1:{port}")),
                ("key.converter", TEXT.to_owned()),
                ("value.converter", TEXT.to_owned()),
                ("header.converter", TEXT.to_owned()),
                (
                    "offset.storage.file.filename",
                    dir.join("offsets").display().to_string(),
                ),
                // Everything is on the class path.
                ("plugin.discovery", "only_scan".to_owned()),
            ],
        )?];
        for (name, settings) in connectors {
            let mut settings = settings.clone();
            settings.push(("name", (*name).to_owned()));
            files.push(write(name, &settings)?);
        }
        let log4j = dirs::tests_dir().join("kafka/log4j2.properties");
        let process = Spec::new(
            "java",
            &dir,
            &dirs::run().join(format!("connect-{port}.log")),
        )
        .args(jvm.arguments())
        .args([
            format!("-Dlog4j2.configurationFile={}", log4j.display()),
            "-cp".to_owned(),
            maven::class_path(&installation)?,
            "org.apache.kafka.connect.cli.ConnectStandalone".to_owned(),
        ])
        .args(files)
        .spawn()?;
        Ok(Self { process })
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails when the process has ended, with the end of its log.
    pub fn ensure_running(&self) -> anyhow::Result<()> {
        self.process.ensure_running()
    }
}

/// Settings of Debezium's connector for `table` of a sandbox on `server`'s port, with its outbox event router; slot and
/// publication are named `dbz_<table>` and exist. `own` goes last.
pub fn debezium(
    sandbox: &Sandbox,
    table: &str,
    own: &[(&'static str, &str)],
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let url = url::Url::parse(&sandbox.url)?;
    let slot = format!("dbz_{table}");
    let mut settings: Vec<(&str, String)> = [
        (
            "connector.class",
            "io.debezium.connector.postgresql.PostgresConnector",
        ),
        ("plugin.name", "pgoutput"),
        ("snapshot.mode", "no_data"),
        ("publication.autocreate.mode", "disabled"),
        ("publication.name", slot.as_str()),
        ("slot.name", slot.as_str()),
        ("topic.prefix", slot.as_str()),
        ("table.include.list", &format!("public.{table}")),
        ("database.hostname", "127.0.0.1"),
        ("database.user", url.username()),
        ("database.password", url.password().unwrap_or_default()),
        ("database.dbname", sandbox.database.as_str()),
        // Headers that the connector adds to whatever it sends; the router has no part in them.
        ("extended.headers.enabled", "false"),
        ("transforms", "outbox"),
        (
            "transforms.outbox.type",
            "io.debezium.transforms.outbox.EventRouter",
        ),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec();
    let port = url.port().context("the URL has a port")?;
    settings.push(("database.port", port.to_string()));
    settings.extend(own.iter().map(|(name, value)| (*name, (*value).to_owned())));
    Ok(settings)
}
