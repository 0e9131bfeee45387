//! Configuration directory of a worker: read whole, hashed, and watched for changes.
//!
//! In a pod the directory is a projected volume: the kubelet writes a new generation into a folder of its own and
//! then turns the symlink `..data` to it. Elsewhere it may be a plain folder.

use hmac::{Hmac, KeyInit, Mac};
use notify::{RecursiveMode, Watcher};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use fanout_contract::names::{CONFIG_FILE, HASH_KEY_FILE};

/// Symlink that a projected volume turns to its newest generation.
const DATA_LINK: &str = "..data";
/// A ConfigMap or Secret holds at most 1 MiB; a projection of a few is far below this.
const MAX_BYTES: usize = 16 << 20;
/// How often a read begins anew because the generation changed meanwhile.
const MAX_READS: usize = 10;
/// Look at the directory at least this often: inotify tells nothing on some file systems.
const POLL: Duration = Duration::from_secs(10);
/// Changes come in bursts (a plain folder is written file by file); look once, after the burst.
const SETTLE: Duration = Duration::from_millis(50);

/// Why a configuration can't be used. Never contains the contents of a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The directory or a file in it can't be read.
    #[error("configuration directory can't be read: {0}")]
    Read(#[source] io::Error),
    /// New generations arrived faster than they could be read.
    #[error("configuration changed {MAX_READS} times while it was read")]
    Restless,
    /// More than 16 MiB.
    #[error("configuration is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// A file that the configuration names does not exist.
    #[error("configuration file {0:?} is missing")]
    Missing(String),
    /// A text file is not UTF-8.
    #[error("configuration file {0:?} is not UTF-8")]
    NotText(String),
    /// The configuration file is no YAML, or not of the expected form.
    #[error("{CONFIG_FILE} is invalid: {0}")]
    Invalid(String),
}

/// All files of a configuration directory by name. Their contents have no `Debug`: most are secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files(pub BTreeMap<String, Vec<u8>>);

impl Files {
    /// Contents of `name` as text, without the trailing newline that editors add.
    pub fn text(&self, name: &str) -> Result<SecretString, ConfigError> {
        let text = std::str::from_utf8(self.bytes(name)?)
            .map_err(|_| ConfigError::NotText(name.to_owned()))?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        Ok(text.strip_suffix('\r').unwrap_or(text).to_owned().into())
    }

    /// Contents of `name`.
    pub fn bytes(&self, name: &str) -> Result<&[u8], ConfigError> {
        self.0
            .get(name)
            .map(Vec::as_slice)
            .ok_or_else(|| ConfigError::Missing(name.to_owned()))
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One generation of the configuration.
#[derive(Debug)]
pub struct Loaded<C> {
    /// The parsed `config.yaml`.
    pub config: C,
    /// Every file of the directory, `config.yaml` included.
    pub files: Files,
    /// [`hash`] of `files`.
    pub hash: String,
}

/// HMAC-SHA256 in hex over every file's name and contents, keyed by the file `hash.key`, so that it may be
/// published without saying anything about secrets. The operator and its workers compute the same.
pub fn hash(files: &BTreeMap<String, Vec<u8>>) -> String {
    let key = files.get(HASH_KEY_FILE).map_or(&[][..], Vec::as_slice);
    let mut mac = Hmac::<Sha256>::new_from_slice(key)
        .unwrap_or_else(|_| unreachable!("HMAC takes a key of any size"));
    for (name, contents) in files.iter().filter(|(name, _)| *name != HASH_KEY_FILE) {
        for part in [name.as_bytes(), contents] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
    }
    let digest = mac.finalize().into_bytes();
    digest.iter().fold(String::new(), |mut hex, byte| {
        let _infallible = write!(hex, "{byte:02x}");
        hex
    })
}

/// Reads `dir` and parses its `config.yaml`. Blocks; a directory with a `..data` link is read as one whole
/// generation even while it is being replaced.
pub fn load<C: DeserializeOwned>(dir: &Path) -> Result<Loaded<C>, ConfigError> {
    parse(read(dir)?)
}

fn parse<C: DeserializeOwned>(files: Files) -> Result<Loaded<C>, ConfigError> {
    let config = serde_yaml::from_slice(files.bytes(CONFIG_FILE)?)
        .map_err(|error| ConfigError::Invalid(error.without_snippet().to_string()))?;
    let hash = hash(&files.0);
    Ok(Loaded {
        config,
        files,
        hash,
    })
}

/// All regular files of the generation in force.
fn read(dir: &Path) -> Result<Files, ConfigError> {
    for _ in 0..MAX_READS {
        let Some(generation) = generation(dir).map_err(ConfigError::Read)? else {
            return read_folder(dir);
        };
        let files = read_folder(&dir.join(&generation));
        // The kubelet removes a generation only after the link has left it: as long as the link still points
        // here, what was read is whole.
        if self::generation(dir).map_err(ConfigError::Read)? == Some(generation) {
            return files;
        }
    }
    Err(ConfigError::Restless)
}

/// Folder that `..data` points to; `None` in a plain folder.
fn generation(dir: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read_link(dir.join(DATA_LINK)) {
        Ok(target) => Ok(Some(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_folder(folder: &Path) -> Result<Files, ConfigError> {
    let mut files = BTreeMap::new();
    let mut total = 0;
    for entry in fs::read_dir(folder).map_err(ConfigError::Read)? {
        let entry = entry.map_err(ConfigError::Read)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        let metadata = fs::metadata(&path).map_err(ConfigError::Read)?;
        if !metadata.is_file() {
            continue;
        }
        let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        total = usize::saturating_add(total, size);
        if total > MAX_BYTES {
            return Err(ConfigError::TooLarge);
        }
        files.insert(name, fs::read(&path).map_err(ConfigError::Read)?);
    }
    Ok(Files(files))
}

/// Loads `dir` and keeps watching it until `shutdown`, or until every receiver is gone. The first load must
/// succeed; a later generation that can't be read or parsed is logged and the former one stays in force. The
/// receiver hears of a generation only when its hash differs.
pub async fn watch<C>(
    dir: PathBuf,
    shutdown: CancellationToken,
) -> Result<watch::Receiver<Arc<Loaded<C>>>, ConfigError>
where
    C: DeserializeOwned + Send + Sync + 'static,
{
    // Watching begins before the first read, so that no change falls between the two.
    let (notify, mut changes) = mpsc::channel(1);
    let watcher = start_watcher(&dir, notify);
    let first = load_blocking::<C>(dir.clone()).await?;
    let (sender, receiver) = watch::channel(Arc::new(first));
    tokio::spawn(async move {
        let _watcher = watcher;
        let mut last_error = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sender.closed() => return,
                Some(()) = changes.recv() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(POLL) => {}
            }
            match load_blocking::<C>(dir.clone()).await {
                Ok(loaded) => {
                    last_error = None;
                    if sender.borrow().hash != loaded.hash {
                        tracing::info!(hash = loaded.hash, "configuration changed");
                        sender.send_replace(Arc::new(loaded));
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if last_error.as_ref() != Some(&text) {
                        tracing::warn!(
                            error = text,
                            "new configuration refused, the former stays in force"
                        );
                        last_error = Some(text);
                    }
                }
            }
        }
    });
    Ok(receiver)
}

async fn load_blocking<C: DeserializeOwned + Send + 'static>(
    dir: PathBuf,
) -> Result<Loaded<C>, ConfigError> {
    match tokio::task::spawn_blocking(move || load(&dir)).await {
        Ok(result) => result,
        Err(error) => Err(ConfigError::Read(io::Error::other(error))),
    }
}

/// Tells `changed` of anything that happens in `dir`. Where the system can't watch (inotify instances are
/// limited per user), the poll alone finds changes.
fn start_watcher(dir: &Path, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let started = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let read_only = event.is_ok_and(|event| event.kind.is_access());
        if !read_only && changed.try_send(()).is_err() {
            // A look is due already.
        }
    })
    .and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    started
        .inspect_err(
            |error| tracing::warn!(%error, "can't watch the configuration, polling instead"),
        )
        .ok()
}

#[cfg(test)]
mod tests;
