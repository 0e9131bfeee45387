//! What of an event must arrive unchanged, reduced to a digest.

use fanout_contract::envelope::Attributes;
use sha2::{Digest, Sha256};

/// How the data may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Byte for byte.
    Exact,
    /// JSON data is a member of a larger document there: the same value, however it is written.
    Json,
}

/// Digest of the attributes that count and the data. No data is the same as empty data: HTTP knows no difference.
pub(super) fn digest(attributes: &Attributes, data: &[u8], form: Form) -> Vec<u8> {
    let mut digest = Sha256::new();
    let sequence = attributes.extension(fanout_contract::envelope::SEQUENCE);
    for part in [
        Some(attributes.r#type.as_str()),
        attributes.subject.as_deref(),
        attributes.content_type.as_deref(),
        sequence,
    ] {
        digest.update([u8::from(part.is_some())]);
        let part = part.unwrap_or_default();
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let value = match form {
        Form::Exact => None,
        Form::Json => serde_json::from_slice::<serde_json::Value>(data).ok(),
    };
    match value {
        Some(value) => digest.update(value.to_string()),
        None => digest.update(data),
    }
    digest.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        Attributes {
            id: "1".to_owned(),
            source: "/a/b".to_owned(),
            r#type: "post.created".to_owned(),
            time: None,
            subject: Some("key-1/1".to_owned()),
            content_type: Some("application/json".to_owned()),
            extensions: Vec::new(),
        }
    }

    #[test]
    fn white_space_counts_only_byte_for_byte() {
        let of = |data: &[u8], form| digest(&attributes(), data, form);
        assert_ne!(
            of(b"{\"a\":1}", Form::Exact),
            of(b"{ \"a\": 1 }", Form::Exact)
        );
        assert_eq!(
            of(b"{\"a\":1}", Form::Json),
            of(b"{ \"a\": 1 }", Form::Json)
        );
        assert_ne!(of(b"{\"a\":1}", Form::Json), of(b"{\"a\":2}", Form::Json));
    }

    #[test]
    fn an_attribute_counts() {
        let mut other = attributes();
        other.subject = None;
        assert_ne!(
            digest(&attributes(), b"", Form::Exact),
            digest(&other, b"", Form::Exact)
        );
    }
}
