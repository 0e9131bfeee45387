//! Tests against folders laid out like a kubelet's projected volume.

use super::*;
use rstest::rstest;
use secrecy::ExposeSecret;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

#[derive(Debug, serde::Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Config {
    number: u64,
}

/// A projected volume as the kubelet lays it out: `name -> ..data/name`, `..data -> ..<generation>`.
struct Volume {
    dir: TempDir,
    generation: u64,
}

impl Volume {
    fn new(files: &[(&str, &str)]) -> Self {
        let mut volume = Self {
            dir: TempDir::new().unwrap(),
            generation: 0,
        };
        volume.publish(files);
        for (name, _) in files {
            symlink(Path::new(DATA_LINK).join(name), volume.path().join(name)).unwrap();
        }
        volume
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a generation, turns the link by rename, removes the former generation: the kubelet's order.
    fn publish(&mut self, files: &[(&str, &str)]) {
        let old = format!("..g{}", self.generation);
        self.generation += 1;
        let new = format!("..g{}", self.generation);
        fs::create_dir(self.path().join(&new)).unwrap();
        for (name, contents) in files {
            fs::write(self.path().join(&new).join(name), contents).unwrap();
        }
        symlink(&new, self.path().join("..data_tmp")).unwrap();
        fs::rename(self.path().join("..data_tmp"), self.path().join(DATA_LINK)).unwrap();
        if self.generation > 1 {
            fs::remove_dir_all(self.path().join(old)).unwrap();
        }
    }
}

async fn next(receiver: &mut watch::Receiver<Arc<Loaded<Config>>>) -> Arc<Loaded<Config>> {
    tokio::time::timeout(Duration::from_secs(30), receiver.changed())
        .await
        .expect("no change within 30 s")
        .unwrap();
    receiver.borrow_and_update().clone()
}

#[test]
fn a_projected_volume_and_a_plain_folder_give_the_same() {
    let files = [("config.yaml", "number: 7"), ("u.password", "secret\n")];
    let volume = Volume::new(&files);
    let plain = TempDir::new().unwrap();
    for (name, contents) in files {
        fs::write(plain.path().join(name), contents).unwrap();
    }
    let one = load::<Config>(volume.path()).unwrap();
    let two = load::<Config>(plain.path()).unwrap();
    assert_eq!(one.config, Config { number: 7 });
    assert_eq!(one.files, two.files);
    assert_eq!(one.hash, two.hash);
    assert_eq!(
        one.files.text("u.password").unwrap().expose_secret(),
        "secret"
    );
}

#[test]
fn one_generation_is_read_whole_while_it_is_replaced() {
    let contents = |n: u64| {
        [
            ("a", n.to_string()),
            ("config.yaml", format!("number: {n}")),
            ("z", n.to_string()),
        ]
    };
    let mut volume = {
        let first = contents(0);
        Volume::new(&first.each_ref().map(|(name, text)| (*name, text.as_str())))
    };
    let path = volume.path().to_owned();
    let stop = AtomicBool::new(false);
    let generations = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = std::collections::BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                match load::<Config>(&path) {
                    Ok(loaded) => {
                        let number = loaded.config.number.to_string();
                        assert_eq!(loaded.files.bytes("a").unwrap(), number.as_bytes());
                        assert_eq!(loaded.files.bytes("z").unwrap(), number.as_bytes());
                        seen.insert(loaded.config.number);
                    }
                    // Replaced without pause: reading gives up, but never mixes.
                    Err(ConfigError::Restless) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            seen.len()
        });
        for n in 1..=300 {
            let next = contents(n);
            volume.publish(&next.each_ref().map(|(name, text)| (*name, text.as_str())));
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(generations > 1, "only {generations} generation was seen");
}

#[tokio::test]
async fn changes_arrive_and_an_invalid_one_leaves_the_former_in_force() {
    let mut volume = Volume::new(&[("config.yaml", "number: 1"), ("u.token", "a")]);
    let shutdown = CancellationToken::new();
    let mut receiver = watch::<Config>(volume.path().to_owned(), shutdown.clone())
        .await
        .unwrap();
    let first = receiver.borrow_and_update().clone();
    assert_eq!(first.config.number, 1);

    volume.publish(&[("config.yaml", "number: 1"), ("u.token", "b")]);
    let second = next(&mut receiver).await;
    assert_ne!(second.hash, first.hash, "a changed secret is a change");

    volume.publish(&[("config.yaml", "number: many"), ("u.token", "b")]);
    volume.publish(&[("config.yaml", "number: 1"), ("u.token", "b")]);
    volume.publish(&[("config.yaml", "numbr: 2"), ("u.token", "b")]);
    let shown = tokio::time::timeout(Duration::from_millis(300), receiver.changed()).await;
    assert!(shown.is_err(), "an invalid configuration was handed on");
    assert_eq!(receiver.borrow().hash, second.hash);

    volume.publish(&[("config.yaml", "number: 3"), ("u.token", "b")]);
    assert_eq!(next(&mut receiver).await.config.number, 3);

    shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(10), receiver.changed()).await;
    assert!(ended.expect("watching did not end").is_err());
}

#[tokio::test]
async fn a_plain_folder_is_watched_too() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("config.yaml"), "number: 1").unwrap();
    let mut receiver = watch::<Config>(dir.path().to_owned(), CancellationToken::new())
        .await
        .unwrap();
    fs::write(dir.path().join("config.yaml"), "number: 2").unwrap();
    assert_eq!(next(&mut receiver).await.config.number, 2);
}

#[tokio::test]
async fn the_first_configuration_must_be_valid() {
    let volume = Volume::new(&[("config.yaml", "number: x")]);
    let error = watch::<Config>(volume.path().to_owned(), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, ConfigError::Invalid(_)), "{error}");
}

#[rstest]
#[case::missing_directory(None, "can't be read")]
#[case::missing_file(Some(("other", "x")), "\"config.yaml\" is missing")]
#[case::unknown_field(Some(("config.yaml", "number: 1\nother: hunter2")), "other")]
#[case::no_yaml(Some(("config.yaml", "[hunter2")), "invalid")]
fn errors_say_what_is_wrong_without_contents(
    #[case] file: Option<(&str, &str)>,
    #[case] expected: &str,
) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("etc");
    if let Some((name, contents)) = file {
        fs::create_dir(&path).unwrap();
        fs::write(path.join(name), contents).unwrap();
    }
    let text = load::<Config>(&path).unwrap_err().to_string();
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn debug_shows_names_only() {
    let volume = Volume::new(&[("config.yaml", "number: 1"), ("u.password", "hunter2")]);
    let text = format!("{:?}", load::<Config>(volume.path()).unwrap());
    assert!(
        text.contains("u.password") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn text_must_exist_and_be_utf8() {
    let files = Files([("bad".to_owned(), vec![0xff])].into());
    assert!(matches!(files.text("bad"), Err(ConfigError::NotText(_))));
    assert!(matches!(files.text("none"), Err(ConfigError::Missing(_))));
}

#[test]
fn the_hash_depends_on_names_contents_borders_and_key() {
    let of = |files: &[(&str, &str)]| {
        hash(
            &files
                .iter()
                .map(|(n, c)| ((*n).to_owned(), c.as_bytes().to_vec()))
                .collect(),
        )
    };
    let base = of(&[("a", "1"), ("b", "2")]);
    assert_eq!(base.len(), 64);
    assert_eq!(base, of(&[("b", "2"), ("a", "1")]));
    assert_ne!(base, of(&[("a", "1"), ("c", "2")]));
    assert_ne!(base, of(&[("a", "1"), ("b", "3")]));
    assert_ne!(of(&[("a", "bc")]), of(&[("ab", "c")]));
    let keyed = of(&[("a", "1"), ("b", "2"), ("hash.key", "k")]);
    assert_ne!(base, keyed);
    assert_ne!(keyed, of(&[("a", "1"), ("b", "2"), ("hash.key", "l")]));
}

#[test]
fn the_hash_is_hmac_sha256() {
    // RFC 4231 has no such input; computed with Python's hmac module over the same framing:
    // for key b"key" and the file a = b"1".
    let files = [
        ("a".to_owned(), b"1".to_vec()),
        ("hash.key".to_owned(), b"key".to_vec()),
    ]
    .into();
    assert_eq!(
        hash(&files),
        "42fcf8938cc38b710a21f44405f764164e5c661e0bb2d8742b41a40483aa0f35"
    );
}
