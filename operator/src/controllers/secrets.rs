//! Reads the Secret keys that a spec refers to. Pure: the Secrets were watched before.
//!
//! Only Secrets with the credentials label are watched at all, so "missing" and "not labelled" look the same here, and
//! a condition can't be used to find out which Secrets exist.

use super::error::Invalid;
use fanout_contract::names;
use fanout_crds::condition::reason;
use fanout_crds::reference::SecretKeyRef;
use k8s_openapi::api::core::v1::Secret;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Secret values by file name, as they go into a worker's Secret. Never logged.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Finds the labelled Secrets of one namespace.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<Arc<Secret>>;

/// Reads what the spec of one object (with `uid`) refers to, and collects the files its worker needs.
pub(crate) struct Reader<'a> {
    lookup: Lookup<'a>,
    uid: &'a str,
    files: Files,
}

impl<'a> Reader<'a> {
    /// Reads for the object with `uid`.
    pub(crate) fn new(lookup: Lookup<'a>, uid: &'a str) -> Self {
        Self {
            lookup,
            uid,
            files: Files::new(),
        }
    }

    /// The text that `reference` (found at `path` in the spec) names, kept as the file `<uid>.<field>`; returns the
    /// file's name and the text without a trailing line break.
    pub(crate) fn text(
        &mut self,
        path: &str,
        field: &str,
        reference: &SecretKeyRef,
    ) -> Result<(String, String), Invalid> {
        let SecretKeyRef { name, key } = reference;
        let secret = (self.lookup)(name).ok_or_else(|| {
            Invalid::new(
                reason::SECRET_NOT_PERMITTED,
                format!(
                    "{path}: Secret {name} is missing or not labelled {}=true; create or label it",
                    names::CREDENTIALS_LABEL
                ),
            )
        })?;
        let value = secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .filter(|value| !value.0.is_empty())
            .ok_or_else(|| {
                Invalid::new(
                    reason::SECRET_KEY_MISSING,
                    format!("{path}: Secret {name} has no key {key}, or it is empty; add it, or name another"),
                )
            })?;
        let text = std::str::from_utf8(&value.0).map_err(|_| {
            Invalid::new(
                reason::SPEC_INVALID,
                format!("{path}: key {key} of Secret {name} must be UTF-8 text"),
            )
        })?;
        let file = names::secret_file(self.uid, field);
        self.files.insert(file.clone(), value.0.clone());
        Ok((file, text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// The same for an optional reference.
    pub(crate) fn optional(
        &mut self,
        path: &str,
        field: &str,
        reference: Option<&SecretKeyRef>,
    ) -> Result<Option<(String, String)>, Invalid> {
        reference
            .map(|reference| self.text(path, field, reference))
            .transpose()
    }

    /// The files read so far.
    pub(crate) fn into_files(self) -> Files {
        self.files
    }
}
