//! Which column, constant or path each field of an event comes from, as SQL expressions: the one place that makes them.

use super::row::parsed;
use crate::sql::{Table, ident, literal};
use fanout_contract::relay::{self as contract, ColumnSource};
use sqlx::postgres::PgRow;
use std::collections::BTreeMap;

/// Name of each column of a table and of its type, as `pg_type` has it; `enum` for every enum, and of a domain what is
/// below it.
pub type Types = BTreeMap<String, String>;

/// The statement that reads the [`Types`] of `table`; no row where it does not exist.
pub fn types(table: &Table) -> String {
    format!(
        "select a.attname, {TYPE} from pg_attribute a join pg_type t on t.oid = a.atttypid left join pg_type b on b.oid = t.typbasetype \
         join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = {} and c.relname = {} and a.attnum > 0 and not a.attisdropped",
        literal(&table.schema),
        literal(&table.name)
    )
}

/// Name of the type `t`, whose base type is `b`.
pub const TYPE: &str =
    "case t.typtype when 'e' then 'enum' when 'd' then b.typname else t.typname end";

/// Decodes what [`types`] returns.
pub fn decode_types(rows: &[PgRow]) -> Result<Types, sqlx::Error> {
    rows.iter()
        .map(|row| Ok((parsed(row, 0)?, parsed(row, 1)?)))
        .collect()
}

/// Types whose values order rows.
const ORDERED: [&str; 3] = ["int8", "int4", "int2"];

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Order and identity of the row.
    Id,
    /// Id of the event.
    EventId,
    /// Key.
    Key,
    /// Type.
    Type,
    /// Subject.
    Subject,
    /// Media type of the payload.
    ContentType,
    /// Further headers.
    Headers,
    /// Trace context.
    Traceparent,
    /// Data.
    Payload,
    /// Time.
    CreatedAt,
}

impl Field {
    /// Every field, in the order in which rows are decoded.
    pub const ALL: [Self; 10] = [
        Self::Id,
        Self::EventId,
        Self::Key,
        Self::Type,
        Self::Subject,
        Self::ContentType,
        Self::Headers,
        Self::Traceparent,
        Self::Payload,
        Self::CreatedAt,
    ];

    /// Column of the standard table.
    pub const fn standard(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::EventId => "event_id",
            Self::Key => "key",
            Self::Type => "type",
            Self::Subject => "subject",
            Self::ContentType => "content_type",
            Self::Headers => "headers",
            Self::Traceparent => "traceparent",
            Self::Payload => "payload",
            Self::CreatedAt => "created_at",
        }
    }

    /// Key of `columns`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventId => "eventId",
            Self::ContentType => "contentType",
            Self::CreatedAt => "createdAt",
            _ => self.standard(),
        }
    }

    /// Types its column may have; `*` stands for any type that has a text form.
    pub const fn types(self) -> &'static [&'static str] {
        match self {
            Self::Id => &ORDERED,
            Self::EventId => &["uuid", "text", "varchar", "bpchar", "int8", "int4"],
            Self::Key | Self::Subject => &["*"],
            Self::Type | Self::ContentType | Self::Traceparent => {
                &["text", "varchar", "bpchar", "enum"]
            }
            Self::Headers => &["jsonb", "json"],
            Self::Payload => &["bytea", "jsonb", "json", "text", "varchar"],
            Self::CreatedAt => &["timestamptz", "timestamp"],
        }
    }

    /// True where an event can do without: a mapping that does not name it leaves it out when the table has no column of
    /// the standard name.
    const fn optional(self) -> bool {
        matches!(
            self,
            Self::EventId | Self::Subject | Self::ContentType | Self::Headers | Self::Traceparent
        )
    }

    /// What `columns` says of it.
    const fn of(self, mapping: &contract::Columns) -> Option<&ColumnSource> {
        match self {
            Self::Id => mapping.id.as_ref(),
            Self::EventId => mapping.event_id.as_ref(),
            Self::Key => mapping.key.as_ref(),
            Self::Type => mapping.r#type.as_ref(),
            Self::Subject => mapping.subject.as_ref(),
            Self::ContentType => mapping.content_type.as_ref(),
            Self::Headers => mapping.headers.as_ref(),
            Self::Traceparent => mapping.traceparent.as_ref(),
            Self::Payload => mapping.payload.as_ref(),
            Self::CreatedAt => mapping.created_at.as_ref(),
        }
    }
}

/// Where the fields of an event come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    mapping: Option<contract::Columns>,
    /// What event ids are derived from, beside the row's id.
    identity: String,
    types: Types,
}

impl Columns {
    /// The columns of `mapping` (`None`: those of the standard table) in a table whose columns have `types`; empty where
    /// the table does not exist. `identity` names the FanoutTopic.
    pub const fn new(mapping: Option<contract::Columns>, identity: String, types: Types) -> Self {
        Self {
            mapping,
            identity,
            types,
        }
    }

    /// True where the configuration maps columns.
    pub const fn mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// The type of `column`.
    pub fn type_of(&self, column: &str) -> Option<&str> {
        self.types.get(column).map(String::as_str)
    }

    /// Where `field` comes from; `None` where events have none.
    pub fn source(&self, field: Field) -> Option<ColumnSource> {
        let standard = || ColumnSource::Column(field.standard().to_owned());
        let Some(mapping) = &self.mapping else {
            return Some(standard());
        };
        field.of(mapping).cloned().or_else(|| {
            (!field.optional() || self.types.contains_key(field.standard())).then(standard)
        })
    }

    /// Name of the column that `field` comes from.
    pub fn column(&self, field: Field) -> Option<String> {
        match self.source(field)? {
            ColumnSource::Column(name) => Some(name),
            ColumnSource::Value(_) | ColumnSource::JsonPath(_) => None,
        }
    }

    /// The column that identifies a row, and orders rows when [`Self::ordered`]; quoted.
    pub fn row(&self) -> String {
        ident(&self.column(Field::Id).unwrap_or_default())
    }

    /// Type of [`Self::row`], quoted where it needs to be.
    pub fn row_type(&self) -> String {
        let column = self.column(Field::Id).unwrap_or_default();
        match self.type_of(&column) {
            Some(name) if name != "enum" => ident(name),
            _ => "text".to_owned(),
        }
    }

    /// True where the rows have an order: the id is a number.
    pub fn ordered(&self) -> bool {
        let column = self.column(Field::Id).unwrap_or_default();
        self.type_of(&column)
            .is_none_or(|name| ORDERED.contains(&name))
    }

    /// The row's number: its id, or 60 bits of a hash of it where that is no number.
    pub fn id(&self) -> String {
        let row = self.row();
        if !self.ordered() {
            let hash = format!("encode(sha256(convert_to({row}::text, 'UTF8')), 'hex')");
            return format!("('x' || substr({hash}, 1, 15))::bit(60)::bigint");
        }
        match self
            .column(Field::Id)
            .as_deref()
            .and_then(|id| self.type_of(id))
        {
            None | Some("int8") => row,
            Some(_) => format!("{row}::bigint"),
        }
    }

    /// The key as text, or NULL.
    pub fn key(&self) -> String {
        match self.source(Field::Key) {
            Some(ColumnSource::Value(empty)) if empty.is_empty() => "null::text".to_owned(),
            source => self.text(source.as_ref()),
        }
    }

    /// The time of the event, a `timestamptz` or NULL.
    pub fn created_at(&self) -> String {
        let column = self.column(Field::CreatedAt).unwrap_or_default();
        let quoted = ident(&column);
        match self.type_of(&column) {
            Some("timestamp") => format!("({quoted} at time zone 'UTC')"),
            _ => quoted,
        }
    }

    /// Id of the event, the same for ever: the column's, or derived from the FanoutTopic's name and the row's id.
    fn event_id(&self) -> String {
        let hashed = format!(
            "convert_to({} || {}::text, 'UTF8')",
            literal(&format!("{}/", self.identity)),
            self.row()
        );
        // A UUID of version 8: what its other bits say is ours to choose.
        let derived = format!(
            "overlay(overlay(substr(encode(sha256({hashed}), 'hex'), 1, 32) placing '8' from 13) placing '8' from 17)::uuid::text"
        );
        match self.source(Field::EventId) {
            None => derived,
            Some(source) if self.mapped() => {
                format!("coalesce({}, {derived})", self.text(Some(&source)))
            }
            Some(source) => self.text(Some(&source)),
        }
    }

    fn payload(&self) -> String {
        ident(&self.column(Field::Payload).unwrap_or_default())
    }

    fn payload_type(&self) -> &str {
        self.column(Field::Payload)
            .and_then(|column| self.type_of(&column))
            .unwrap_or("bytea")
    }

    fn headers(&self) -> String {
        match self.source(Field::Headers) {
            None => "null::jsonb".to_owned(),
            Some(ColumnSource::Column(name)) => ident(&name),
            Some(ColumnSource::Value(json)) => format!("{}::jsonb", literal(&json)),
            Some(ColumnSource::JsonPath(path)) => self.first(&path),
        }
    }

    /// The first item at `path` in the payload; NULL where there is none, whatever the payload is.
    fn first(&self, path: &str) -> String {
        format!(
            "jsonb_path_query_first({}, {}::jsonpath, '{{}}', true)",
            self.payload(),
            literal(path)
        )
    }

    /// A field that is text.
    fn text(&self, source: Option<&ColumnSource>) -> String {
        match source {
            None => "null::text".to_owned(),
            Some(ColumnSource::Column(name)) => format!("{}::text", ident(name)),
            Some(ColumnSource::Value(value)) => format!("{}::text", literal(value)),
            Some(ColumnSource::JsonPath(path)) => format!("({} #>> '{{}}')", self.first(path)),
        }
    }

    /// Everything of a row, as stored: `id`, `event_id`, `key`, …, `created_at`, and `identity`, the id of a row that is
    /// no number. Payload and headers are as they are in the table, so that nothing is read from the toast table yet.
    pub fn stored(&self) -> String {
        let text = |field| self.text(self.source(field).as_ref());
        // What a mapped table may lack makes a row that is parked, not a statement that fails.
        let or = |expression: String, other: &str| {
            if self.mapped() {
                format!("coalesce({expression}, {other})")
            } else {
                expression
            }
        };
        let content_type = match self.source(Field::ContentType) {
            None => "'application/json'::text".to_owned(),
            Some(_) => or(text(Field::ContentType), "''"),
        };
        let identity = if self.ordered() {
            "null::text".to_owned()
        } else {
            format!("{}::text", self.row())
        };
        format!(
            "{} as id, {} as event_id, {} as key, {} as type, {} as subject, {content_type} as content_type, \
             {} as headers, {} as traceparent, {} as payload, {} as created_at, {identity} as identity",
            self.id(),
            self.event_id(),
            self.key(),
            or(text(Field::Type), "''"),
            text(Field::Subject),
            self.headers(),
            text(Field::Traceparent),
            self.payload(),
            or(self.created_at(), "'infinity'"),
        )
    }

    /// The columns of [`Self::stored`] in `d`, as [`super::row::Row`] decodes them. Texts that no session setting changes:
    /// hex whatever `bytea_output` says, ISO 8601 in UTC whatever `DateStyle` and `TimeZone` say.
    pub fn encoded(&self) -> String {
        format!(
            "d.id, d.event_id, d.key, d.type, d.subject, d.content_type, d.headers::text, d.traceparent, \
             encode({}, 'hex'), to_json(d.created_at at time zone 'UTC'), d.identity",
            self.bytes("d.payload")
        )
    }

    /// The bytes of `payload`, a column of the payload's type: text of any kind as it is, in UTF-8.
    pub fn bytes(&self, payload: &str) -> String {
        match self.payload_type() {
            "bytea" => payload.to_owned(),
            _ => format!("convert_to({payload}::text, 'UTF8')"),
        }
    }

    /// What a row weighs, bytes, about, without reading its payload from the toast table; of the table's columns.
    pub fn weight(&self) -> String {
        self.weight_of(&self.payload(), &self.headers())
    }

    /// The same of the columns of [`Self::stored`].
    pub fn stored_weight(&self) -> String {
        self.weight_of("payload", "headers")
    }

    fn weight_of(&self, payload: &str, headers: &str) -> String {
        let payload = match self.payload_type() {
            // JSON has no length that is known before it is decompressed; it shrinks to a quarter or so.
            "jsonb" | "json" => format!("4 * pg_column_size({payload})"),
            _ => format!("octet_length({payload})"),
        };
        let headers = match self.source(Field::Headers) {
            Some(ColumnSource::Column(_)) => format!(" + coalesce(pg_column_size({headers}), 0)"),
            _ => String::new(),
        };
        format!("coalesce({payload}, 0){headers}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(mapping: Option<contract::Columns>, types: &[(&str, &str)]) -> Columns {
        let types = types
            .iter()
            .map(|(name, of)| ((*name).to_owned(), (*of).to_owned()))
            .collect();
        Columns::new(mapping, "/social/posts".to_owned(), types)
    }

    #[allow(clippy::unnecessary_wraps)] // as the fields of a mapping are
    fn column(name: &str) -> Option<ColumnSource> {
        Some(ColumnSource::Column(name.to_owned()))
    }

    #[test]
    fn what_a_mapping_does_not_name_is_the_standard_column_or_nothing() {
        let mapping = contract::Columns {
            id: column("post_id"),
            r#type: Some(ColumnSource::Value("post".to_owned())),
            ..contract::Columns::default()
        };
        let types = [
            ("post_id", "int4"),
            ("payload", "jsonb"),
            ("subject", "text"),
        ];
        let columns = columns(Some(mapping), &types);
        assert_eq!(columns.row(), "\"post_id\"");
        assert_eq!(columns.id(), "\"post_id\"::bigint");
        assert_eq!(columns.source(Field::Subject), column("subject"));
        assert_eq!(columns.source(Field::Traceparent), None);
        // An order must not be lost because nobody said which column it follows.
        assert_eq!(columns.source(Field::Key), column("key"));
        assert!(columns.event_id().starts_with("overlay("));
    }

    #[test]
    fn a_row_whose_id_is_no_number_has_no_order() {
        assert!(!columns(None, &[("id", "uuid")]).ordered());
        assert!(columns(None, &[("id", "int8")]).ordered());
        assert!(columns(None, &[]).ordered(), "the table is missing");
    }

    #[test]
    fn values_and_paths_are_quoted() {
        let mapping = contract::Columns {
            key: Some(ColumnSource::JsonPath("$.o'clock".to_owned())),
            r#type: Some(ColumnSource::Value("it's".to_owned())),
            ..contract::Columns::default()
        };
        let columns = columns(Some(mapping), &[("payload", "jsonb")]);
        assert!(columns.key().contains("'$.o''clock'::jsonpath"));
        assert!(columns.stored().contains("'it''s'::text"));
    }
}
