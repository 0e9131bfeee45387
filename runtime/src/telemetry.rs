//! Log lines on standard output, as JSON or text.

use std::str::FromStr;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For people.
    Text,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(name: &str) -> Result<Self, TelemetryError> {
        match name {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(TelemetryError::Format(name.to_owned())),
        }
    }
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

/// Why logging can't start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Neither `json` nor `text`.
    #[error("log format {0:?} is unknown: json or text")]
    Format(String),
    /// The filter can't be parsed.
    #[error("log filter is invalid")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Called twice in one process.
    #[error("logging was started already")]
    Started(#[from] tracing_subscriber::util::TryInitError),
}

/// Starts logging to standard output. `filter` has the syntax of `RUST_LOG` (`info`, `info,fanout_relay=debug`).
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false);
    match format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
        LogFormat::Text => builder.finish().try_init()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_two_names() {
        for format in [LogFormat::Json, LogFormat::Text] {
            assert_eq!(format.to_string().parse::<LogFormat>().unwrap(), format);
        }
        assert!("xml".parse::<LogFormat>().is_err());
    }

    #[test]
    fn a_broken_filter_is_refused_and_logging_starts_once() {
        assert!(matches!(
            init(LogFormat::Text, "info,=="),
            Err(TelemetryError::Filter(_))
        ));
        init(LogFormat::Json, "warn").unwrap();
        assert!(matches!(
            init(LogFormat::Json, "warn"),
            Err(TelemetryError::Started(_))
        ));
    }
}
