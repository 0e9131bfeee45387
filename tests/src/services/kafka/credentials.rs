//! What a broker trusts and is trusted by: passwords of its users and the certificate of its TLS listener, changed while it
//! runs.

use super::Kafka;
use crate::produced;
use crate::services::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prefix of the settings for the TLS listener's key and certificate.
pub(super) const KEY_STORE: &str = "listener.name.sasl_ssl.ssl.keystore";

impl Kafka {
    /// PEM bundle that signs the certificate of [`Self::tls_bootstrap`], before and after [`Self::renew_certificate`].
    pub fn ca(&self) -> String {
        format!(
            "{}{}",
            self.node.tls.old.certificate, self.node.tls.new.certificate
        )
    }

    /// What signs the first certificate alone.
    pub fn old_ca(&self) -> String {
        self.node.tls.old.certificate.clone()
    }

    /// What signs the renewed certificate alone.
    pub fn new_ca(&self) -> String {
        self.node.tls.new.certificate.clone()
    }

    /// Lets the TLS listener show its next certificate, of another authority, to new connections.
    pub fn renew_certificate(&self) -> anyhow::Result<()> {
        let path = self.node.tls.new.path.display();
        self.alter(
            &["--entity-type", "brokers", "--entity-name", "1"],
            &format!("{KEY_STORE}.location={path}\n{KEY_STORE}.type=PEM\n"),
        )
    }

    /// Gives a SASL/SCRAM user this password; makes the user when there is none.
    pub fn set_password(&self, user: &str, password: &str) -> anyhow::Result<()> {
        self.alter(
            &["--entity-type", "users", "--entity-name", user],
            &format!("SCRAM-SHA-512=iterations=4096,password={password}\n"),
        )
    }

    /// Sets configuration of an entity; `settings` is a properties file.
    fn alter(&self, entity: &[&str], settings: &str) -> anyhow::Result<()> {
        let file = self
            .node
            .dir
            .join(format!("{:016x}.properties", rand::random::<u64>()));
        fs::write(&file, settings)?;
        let path = file.display().to_string();
        run(Command::new("java")
            .args(self.installation.java_args())
            .arg("org.apache.kafka.tools.ConfigCommand")
            .args(["--bootstrap-server", &self.bootstrap(), "--alter"])
            .args(entity)
            .args(["--add-config-file", &path])
            .current_dir(&self.node.dir))
        .map(drop)
    }
}

/// The certificate of the TLS listener, and the one that replaces it.
#[derive(Debug)]
pub(super) struct Certificates {
    pub(super) old: Certificate,
    new: Certificate,
}

impl Certificates {
    pub(super) fn make(dir: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            old: Certificate::make(dir, "old")?,
            new: Certificate::make(dir, "new")?,
        })
    }
}

/// A certificate that signs itself.
#[derive(Debug)]
pub(super) struct Certificate {
    /// Key and certificate, as the broker wants them.
    pub(super) path: PathBuf,
    /// PEM.
    certificate: String,
}

impl Certificate {
    fn make(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        run(Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args([
                "-subj",
                "/CN=kafka",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ])
            .args(["-keyout", &key, "-out", &certificate])
            .current_dir(dir))?;
        let key = fs::read_to_string(dir.join(key))?;
        let certificate = fs::read_to_string(dir.join(certificate))?;
        let path = dir.join(format!("{name}.pem"));
        produced::note_secret("key", key.as_bytes());
        fs::write(&path, format!("{key}{certificate}"))?;
        Ok(Self { path, certificate })
    }
}
