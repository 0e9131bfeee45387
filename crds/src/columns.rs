//! Which column, constant or path each field of an event comes from.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where the fields of an event come from. A key that is absent: the column that the table in manifests/sql has for it;
/// where the table has no such column, eventId is derived from the FanoutTopic's name and the row's id, contentType is
/// `application/json`, and subject, headers and traceparent are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.eventId) || !has(self.eventId.value)").message("eventId must not be one value for every row"))]
pub struct Columns {
    /// What identifies a row and orders the rows of a key: a number that rises with each row. In claim mode Delete it may
    /// be of any type; nothing is ordered then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TableColumn>,
    /// Id of the event; must never change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<ColumnSource>,
    /// What an absent match compares with the FanoutTopic's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<TableColumn>,
    /// Key. Must be a column in the claim modes Snapshot and Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ColumnSource>,
    /// Type of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#type: Option<ColumnSource>,
    /// Subject of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<ColumnSource>,
    /// Media type of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<ColumnSource>,
    /// Further headers: a JSON object of texts, numbers and booleans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<ColumnSource>,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<ColumnSource>,
    /// Data of the event, of type bytea, jsonb, json or text: its bytes, or its text in UTF-8, are passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<TableColumn>,
    /// Time of the event. A timestamp without time zone is in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<TableColumn>,
}

/// A column of the outbox table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TableColumn {
    /// Name of the column. Case-sensitive.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_$]*$")
    )]
    pub column: String,
}

/// Where one field of an event comes from. Exactly one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.column) ? 1 : 0) + (has(self.value) ? 1 : 0) + (has(self.jsonPath) ? 1 : 0) == 1")
        .message("must have exactly one member of: column, value, jsonPath"),
)]
pub struct ColumnSource {
    /// Name of a column of the outbox table. Case-sensitive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z_][A-Za-z0-9_$]*$")
    )]
    pub column: Option<String>,
    /// The same text for every row; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub value: Option<String>,
    /// SQL/JSON path into the payload, which must be jsonb: the text of the first item there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub json_path: Option<String>,
}
