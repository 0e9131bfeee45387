//! How a worker reaches Kafka. Secret values are named by file, never inlined.

use serde::{Deserialize, Serialize};

/// One Kafka cluster and the principal used on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kafka {
    /// Comma-separated `host:port` list.
    pub bootstrap_servers: String,
    /// Authentication and TLS.
    #[serde(default)]
    pub auth: KafkaAuth,
}

/// Authentication and TLS. Fields that end in `_file` name files beside the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaAuth {
    /// SASL mechanism; `None` means no SASL.
    #[serde(default)]
    pub mechanism: Mechanism,
    /// SASL user name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_file: Option<String>,
    /// SASL password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<String>,
    /// PEM bundle that signs the brokers' certificates; its presence switches TLS on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// PEM client certificate; its presence switches TLS on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert_file: Option<String>,
    /// PEM client key (PKCS#8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key_file: Option<String>,
}

/// SASL mechanism, spelled as in the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mechanism {
    /// No SASL.
    #[default]
    None,
    /// SASL/PLAIN.
    Plain,
    /// SASL/SCRAM-SHA-256.
    ScramSha256,
    /// SASL/SCRAM-SHA-512.
    ScramSha512,
}

impl Mechanism {
    /// librdkafka's `sasl.mechanism`, where SASL is used.
    pub const fn sasl_name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Plain => Some("PLAIN"),
            Self::ScramSha256 => Some("SCRAM-SHA-256"),
            Self::ScramSha512 => Some("SCRAM-SHA-512"),
        }
    }
}

/// Values read from the files that [`KafkaAuth`] names.
///
/// Has no `Debug`: what it holds must not reach a log.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct KafkaCredentials {
    /// SASL user name.
    pub user: Option<String>,
    /// SASL password.
    pub password: Option<String>,
    /// PEM CA bundle.
    pub ca: Option<String>,
    /// PEM client certificate.
    pub client_cert: Option<String>,
    /// PEM client key.
    pub client_key: Option<String>,
}

/// For clients of Kafka's administration: they keep a connection to every broker.
///
/// Otherwise librdkafka connects for a request, and while the request waits for a broker that can't be reached, each
/// connection that fails starts the next one at once: thousands a second, without the pauses of `reconnect.backoff.ms`.
pub const KEEP_CONNECTIONS: (&str, &str) = ("enable.sparse.connections", "false");

/// librdkafka connection properties for `bootstrap_servers`, `mechanism` and `credentials`; everything that is
/// about reaching and trusting the cluster and nothing else.
pub fn client_properties(
    bootstrap_servers: &str,
    mechanism: Mechanism,
    credentials: &KafkaCredentials,
) -> Vec<(&'static str, String)> {
    let tls = credentials.ca.is_some() || credentials.client_cert.is_some();
    let sasl = mechanism.sasl_name();
    let protocol = match (sasl, tls) {
        (None, false) => "plaintext",
        (None, true) => "ssl",
        (Some(_), false) => "sasl_plaintext",
        (Some(_), true) => "sasl_ssl",
    };
    let mut properties = vec![
        ("bootstrap.servers", bootstrap_servers.to_owned()),
        ("security.protocol", protocol.to_owned()),
        // A broker that was replaced must not be remembered for ever.
        ("reconnect.backoff.max.ms", "5000".to_owned()),
        ("client.software.name", "fanout".to_owned()),
    ];
    let mut add = |name, value: Option<&String>| {
        if let Some(value) = value {
            properties.push((name, value.clone()));
        }
    };
    if let Some(name) = sasl {
        add("sasl.mechanism", Some(&name.to_owned()));
        add("sasl.username", credentials.user.as_ref());
        add("sasl.password", credentials.password.as_ref());
    }
    add("ssl.ca.pem", credentials.ca.as_ref());
    add("ssl.certificate.pem", credentials.client_cert.as_ref());
    add("ssl.key.pem", credentials.client_key.as_ref());
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_on_exactly_when_a_certificate_is_given() {
        let protocol = |mechanism, credentials: &KafkaCredentials| {
            client_properties("k:9092", mechanism, credentials)
                .into_iter()
                .find(|(name, _)| *name == "security.protocol")
                .map(|(_, value)| value)
        };
        let none = KafkaCredentials::default();
        let ca = KafkaCredentials {
            ca: Some("PEM".into()),
            ..KafkaCredentials::default()
        };
        assert_eq!(
            protocol(Mechanism::None, &none).as_deref(),
            Some("plaintext")
        );
        assert_eq!(protocol(Mechanism::None, &ca).as_deref(), Some("ssl"));
        assert_eq!(
            protocol(Mechanism::ScramSha512, &none).as_deref(),
            Some("sasl_plaintext")
        );
        assert_eq!(
            protocol(Mechanism::ScramSha512, &ca).as_deref(),
            Some("sasl_ssl")
        );
    }
}
