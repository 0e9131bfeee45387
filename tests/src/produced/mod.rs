//! What the processes of a test run produced, kept in one folder so that the suite's last step can search all of it.
//!
//! The folder is `$FANOUT_PRODUCED`; without it nothing is kept. It gets the log, the arguments and the environment of
//! every process, the pages of admin servers, and the audit logs of API servers with everything that was written to
//! them, events and statuses included; only the contents of Secrets are not written down anywhere.

pub mod rights;
pub mod search;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};
use std::time::Duration;

/// Part of every secret value that tests make up. Letters only: it looks the same in a URL.
pub const MARK: &str = "PlantedSecret";

/// File with the secret values that have no mark (keys, vectors of specifications), one a line.
const VALUES: &str = ".values";
/// Shorter values are no secrets and occur in any log.
const SHORTEST_SECRET: usize = 8;
/// Longest wait for an admin server that is looked at for the last time.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// A page is no longer than this.
const MAX_PAGE: u64 = 16 << 20;

/// The folder, when what is produced is to be kept.
pub fn dir() -> Option<&'static Path> {
    static DIR: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let dir = std::env::var_os("FANOUT_PRODUCED")?;
        (!dir.is_empty()).then(|| PathBuf::from(dir))
    });
    DIR.as_deref()
}

/// Opens a process's log for appending.
pub fn open_log(log: &Path) -> io::Result<File> {
    divert(log)?;
    File::options().create(true).append(true).open(log)
}

/// Makes `file`, which somebody else is going to write, a link into the folder.
pub fn divert(file: &Path) -> io::Result<()> {
    let Some(dir) = dir() else {
        return Ok(());
    };
    if fs::symlink_metadata(file).is_ok() {
        return Ok(());
    }
    // A worker's log is called `log`: the folder says whose.
    let parts: Vec<_> = file.iter().rev().take(2).collect();
    let parts = parts.iter().rev().map(|part| part.to_string_lossy());
    let kept = place(dir, &parts.collect::<Vec<_>>().join("-"));
    File::create(&kept)?;
    symlink(kept, file)
}

/// Keeps `text` under a name that ends in `name`.
pub fn keep(name: &str, text: &[u8]) {
    let Some(dir) = dir() else {
        return;
    };
    let kept = fs::write(place(dir, name), text);
    // A test that fails already has more to say.
    assert!(kept.is_ok() || std::thread::panicking(), "{name}: {kept:?}");
}

/// Keeps what the admin server at `address` shows now.
pub fn keep_pages(name: &str, address: &str) {
    if dir().is_none() {
        return;
    }
    let Ok(address) = address.parse() else {
        return;
    };
    for page in ["status", "metrics", "readyz", "livez"] {
        match fetch(address, page) {
            Ok(text) => keep(&format!("{name}.{page}"), &text),
            // It has ended or stands still: neither shows anything.
            Err(_) => return,
        }
    }
}

/// Keeps the arguments of a process and what its environment has that this process has not.
pub(crate) fn keep_start(name: &str, pid: u32) {
    if dir().is_none() {
        return;
    }
    let name = name.rsplit('/').next().unwrap_or(name);
    if let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) {
        keep(&format!("{name}.arguments"), &lines(&arguments));
    }
    let own = fs::read("/proc/self/environ").unwrap_or_default();
    let own: Vec<&[u8]> = own.split(|byte| *byte == 0).collect();
    if let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) {
        let added = environment.split(|byte| *byte == 0);
        let added: Vec<&[u8]> = added.filter(|entry| !own.contains(entry)).collect();
        keep(&format!("{name}.environment"), &lines(&added.join(&0)));
    }
}

/// Keeps what this process logs through `tracing`, an operator in it included.
pub fn keep_tracing() {
    static ONCE: Once = Once::new();
    let Some(dir) = dir() else {
        return;
    };
    ONCE.call_once(|| {
        let file = File::create(place(dir, "in-process.log")).expect("a file can be made");
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_env_filter("debug,hyper=info,hyper_util=info,rustls=info,sqlx=info,h2=info")
            .with_writer(Arc::new(file))
            .try_init()
            .expect("nobody else takes what is logged");
    });
}

/// Notes the secrets in what a Secret or a file has under `name`, so that they are searched for even without the mark. The
/// name of a user is none.
pub fn note_secret(name: &str, contents: &[u8]) {
    static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(dir) = dir().filter(|_| !name.ends_with("user")) else {
        return;
    };
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    for secret in secrets_in(contents) {
        if secret.contains(MARK) || noted.contains(&secret) {
            continue;
        }
        let file = File::options()
            .create(true)
            .append(true)
            .open(dir.join(VALUES));
        file.and_then(|mut file| writeln!(file, "{secret}"))
            .expect("a secret can be noted");
        noted.push(secret);
    }
}

/// The contents of a secret file, line by line, and the password inside a URL. A certificate is public.
pub(crate) fn secrets_in(contents: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(contents);
    let mut secrets = Vec::new();
    let mut public = false;
    for line in text.lines() {
        public |= line.starts_with("-----BEGIN CERTIFICATE");
        if !public {
            secrets.push(line.to_owned());
        }
        public &= !line.starts_with("-----END CERTIFICATE");
    }
    secrets.extend(
        url::Url::parse(text.trim())
            .ok()
            .and_then(|url| Some(url.password()?.to_owned())),
    );
    secrets.retain(|secret| secret.len() >= SHORTEST_SECRET && !secret.starts_with("-----"));
    secrets
}

/// A name in the folder that nobody else has.
fn place(dir: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!("{}-{number:05}-{name}", std::process::id()))
}

fn lines(text: &[u8]) -> Vec<u8> {
    text.iter()
        .map(|byte| if *byte == 0 { b'\n' } else { *byte })
        .collect()
}

/// Blocks: what was a test's is looked at while it is dropped.
fn fetch(address: SocketAddr, page: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, LAST_LOOK)?;
    stream.set_read_timeout(Some(LAST_LOOK))?;
    write!(stream, "GET /{page} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = Vec::new();
    stream.take(MAX_PAGE).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_url_is_a_secret() {
        let secrets = secrets_in(b"postgres://relay:correct-horse@db:5432/shop\n");
        assert!(secrets.contains(&"correct-horse".to_owned()), "{secrets:?}");
    }

    #[test]
    fn short_lines_pem_frames_and_certificates_are_none() {
        let pem = b"-----BEGIN CERTIFICATE-----\nMIIBpublic\n-----END CERTIFICATE-----\n-----BEGIN KEY-----\nMIIEvQIBADAN\nabc\n";
        assert_eq!(secrets_in(pem), ["MIIEvQIBADAN"]);
    }
}
