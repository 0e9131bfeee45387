//! One record of the log, copied out of the client's buffers, and the CloudEvent in it.

use fanout_contract::envelope::{Attributes, DecodeError};
use rdkafka::Message;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers, OwnedHeaders};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a record costs beside its key, value and headers, bytes; keeps many empty ones bounded too.
const OVERHEAD: usize = 256;

/// A record with everything that has to survive unchanged.
#[derive(Debug)]
pub(crate) struct Event {
    /// Partition of the log.
    pub partition: i32,
    /// Offset in it.
    pub offset: i64,
    /// Kafka timestamp, milliseconds since 1970.
    pub timestamp: Option<i64>,
    /// Record key.
    pub key: Option<Vec<u8>>,
    /// Payload.
    pub value: Option<Vec<u8>>,
    /// All headers, for the dead letter topic.
    pub headers: Option<OwnedHeaders>,
    /// The CloudEvent's attributes, or why there are none.
    pub attributes: Result<Attributes, DecodeError>,
}

impl Event {
    /// Copies `message`.
    pub(crate) fn copy(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(BorrowedHeaders::detach);
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            attributes: attributes(headers.as_ref()),
            headers,
        }
    }

    /// Bytes it is counted as.
    pub(crate) fn bytes(&self) -> usize {
        let length = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let headers: usize = self.attributes.as_ref().map_or(0, |attributes| {
            attributes
                .extensions
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum()
        });
        OVERHEAD + length(&self.key) + length(&self.value) + headers
    }
}

fn attributes(headers: Option<&OwnedHeaders>) -> Result<Attributes, DecodeError> {
    let Some(headers) = headers else {
        return Attributes::from_headers([]);
    };
    // The client library panics on a header whose name is not UTF-8: such a record is no CloudEvent.
    catch_unwind(AssertUnwindSafe(|| {
        Attributes::from_headers(headers.iter().map(|header| (header.key, header.value)))
    }))
    .unwrap_or_else(|_| Err(DecodeError::NotUtf8("name".to_owned())))
}
