//! Remembers which filters compile. A pass over a FanoutTopic checks those of all its Subscriptions, and compiling one
//! takes a thread and up to some milliseconds; the answer is always the same.

use fanout_runtime::filter::{Filter, FilterError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Filters remembered; beyond, all are forgotten and compiled again as they come.
const REMEMBERED: usize = 20_000;

type Verdicts = HashMap<[u8; 32], Result<(), FilterError>>;

/// What [`Filter::compile`] says of `source`.
pub(super) fn check(source: &str) -> Result<(), FilterError> {
    static VERDICTS: LazyLock<Mutex<Verdicts>> = LazyLock::new(Mutex::default);
    remembered(&VERDICTS, source, |source| {
        Filter::compile(source).map(drop)
    })
}

fn remembered(
    verdicts: &Mutex<Verdicts>,
    source: &str,
    compile: impl FnOnce(&str) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    let key = Sha256::digest(source.as_bytes()).into();
    let lock = || verdicts.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(verdict) = lock().get(&key) {
        return verdict.clone();
    }
    let verdict = compile(source);
    let mut verdicts = lock();
    if verdicts.len() >= REMEMBERED {
        verdicts.clear();
    }
    verdicts.insert(key, verdict.clone());
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_compiled_once_and_its_verdict_kept() {
        let verdicts = Mutex::default();
        let mut compiled = Vec::new();
        for source in ["true", "event.x ==", "true", "event.x =="] {
            let verdict = remembered(&verdicts, source, |source| {
                compiled.push(source.to_owned());
                Filter::compile(source).map(drop)
            });
            assert_eq!(verdict.is_ok(), source == "true", "{source}");
        }
        assert_eq!(compiled, ["true", "event.x =="]);
    }

    #[test]
    fn a_full_memory_is_emptied() {
        let verdicts = Mutex::default();
        for number in 0..=REMEMBERED {
            remembered(&verdicts, &number.to_string(), |_| Ok(())).unwrap();
        }
        assert_eq!(verdicts.lock().unwrap().len(), 1);
    }
}
