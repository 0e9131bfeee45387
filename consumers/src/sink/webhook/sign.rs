//! Standard Webhooks signatures, version `v1`: HMAC-SHA256 with one or several secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fanout_contract::names::SIGNING_SECRET_PREFIX;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;

/// Bytes a secret may have.
const LENGTH: std::ops::RangeInclusive<usize> = 24..=64;

/// Why a secret can't be used. Says nothing of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretError {
    /// Not base64.
    #[error("signing secret must be whsec_ and base64")]
    Encoding,
    /// Too short or too long.
    #[error("signing secret must be {} to {} bytes", LENGTH.start(), LENGTH.end())]
    Length,
}

/// Signs with every secret of a subscription; without secrets nothing is signed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signer {
    keys: Vec<SecretSlice<u8>>,
}

impl Signer {
    /// Decodes `secrets`, each `whsec_` and base64, newest first.
    pub(crate) fn new(secrets: &[SecretString]) -> Result<Self, SecretError> {
        let keys = secrets
            .iter()
            .map(|secret| {
                let text = secret.expose_secret().trim();
                // Without it, what was handed in may be another secret, a password: its signatures would give it away.
                let text = text
                    .strip_prefix(SIGNING_SECRET_PREFIX)
                    .ok_or(SecretError::Encoding)?;
                let key = STANDARD.decode(text).map_err(|_| SecretError::Encoding)?;
                if !LENGTH.contains(&key.len()) {
                    return Err(SecretError::Length);
                }
                Ok(key.into())
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// No secrets?
    pub(crate) const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// `webhook-signature` of a message: one signature per secret, separated by spaces. `timestamp` in seconds
    /// since 1970.
    pub(crate) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signatures: Vec<String> = self
            .keys
            .iter()
            .map(|key| {
                let mut mac = Hmac::<Sha256>::new_from_slice(key.expose_secret())
                    .unwrap_or_else(|_| unreachable!("HMAC takes a key of any size"));
                mac.update(id.as_bytes());
                mac.update(b".");
                mac.update(timestamp.to_string().as_bytes());
                mac.update(b".");
                mac.update(body);
                format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
            })
            .collect();
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use standardwebhooks::Webhook;

    fn secret(byte: u8, length: usize) -> SecretString {
        format!(
            "{SIGNING_SECRET_PREFIX}{}",
            STANDARD.encode(vec![byte; length])
        )
        .into()
    }

    #[test]
    fn every_signature_is_what_the_reference_implementation_makes() {
        let secrets = [secret(1, 24), secret(2, 64)];
        let signature = Signer::new(&secrets)
            .unwrap()
            .sign("msg:a:b", 1_700_000_000, b"{\"a\":1}");
        let expected: Vec<String> = secrets
            .iter()
            .map(|secret| {
                Webhook::new(secret.expose_secret())
                    .unwrap()
                    .sign("msg:a:b", 1_700_000_000, b"{\"a\":1}")
                    .unwrap()
            })
            .collect();
        assert_eq!(signature, expected.join(" "));
    }

    #[test]
    fn the_vector_of_the_specification_is_met() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned().into();
        let signature = Signer::new(&[secret]).unwrap().sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_with_white_space_is_the_same_secret() {
        let plain = STANDARD.encode([7; 32]);
        let sign = |text: String| Signer::new(&[text.into()]).unwrap().sign("a", 1, b"x");
        let tidy = sign(format!("whsec_{plain}"));
        assert_eq!(tidy, sign(format!(" whsec_{plain}\n")));
    }

    #[test]
    fn a_password_is_no_signing_secret_although_it_looks_like_base64() {
        let refused = Signer::new(&[STANDARD.encode([7; 32]).into()]).unwrap_err();
        assert_eq!(refused, SecretError::Encoding);
    }

    #[test]
    fn bad_secrets_are_refused_without_being_shown() {
        let refused = |text: &str| Signer::new(&[text.to_owned().into()]).unwrap_err();
        assert_eq!(refused("whsec_***"), SecretError::Encoding);
        assert_eq!(
            Signer::new(&[secret(1, 23)]).unwrap_err(),
            SecretError::Length
        );
        assert_eq!(
            Signer::new(&[secret(1, 65)]).unwrap_err(),
            SecretError::Length
        );
        let signer = Signer::new(&[secret(0x41, 24)]).unwrap();
        assert!(!format!("{signer:?}").contains("65, 65"));
    }
}
