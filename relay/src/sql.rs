//! SQL text: the one place that quotes names and literals.
//!
//! Every statement of the relay goes to the server by the simple protocol, as text with its values quoted in, also on a
//! direct connection: one round trip, one plan made for the values at hand (never a generic one), and nothing prepared,
//! so that a pooler in transaction mode serves it like the server itself.

use std::fmt::Write as _;

/// `text` as a string literal, safe under either setting of `standard_conforming_strings`.
///
/// `text` must not contain NUL: nothing that was read from PostgreSQL does, and [`Table::parse`] and
/// [`crate::claim::Outbox::new`] refuse it in configuration.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') {
        format!(" E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// `name` as a quoted identifier.
pub fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `ids` as an array of bigint.
pub fn bigint_array(ids: &[i64]) -> String {
    // Eight digits and a comma is what a long-lived table has.
    let mut text = String::with_capacity(24 + ids.len() * 9);
    text.push_str("'{");
    for (index, id) in ids.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{id}");
    }
    text.push_str("}'::bigint[]");
    text
}

/// `texts` as PostgreSQL writes an array of text, not yet quoted.
pub fn text_array(texts: &[String]) -> String {
    let elements: Vec<String> = texts
        .iter()
        .map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
        .collect();
    format!("{{{}}}", elements.join(","))
}

/// Name of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Schema, not quoted.
    pub schema: String,
    /// Table, not quoted.
    pub name: String,
}

impl Table {
    /// Reads `schema.table`; names are taken as they are, in upper and lower case. `None` where it has no such form.
    pub fn parse(text: &str) -> Option<Self> {
        let (schema, name) = text.split_once('.')?;
        let legal = |part: &str| !part.is_empty() && !part.contains('\0');
        (legal(schema) && legal(name)).then(|| Self {
            schema: schema.to_owned(),
            name: name.to_owned(),
        })
    }

    /// `"schema"."table"`.
    pub fn quoted(&self) -> String {
        format!("{}.{}", ident(&self.schema), ident(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_names_are_quoted() {
        assert_eq!(literal("posts"), "'posts'");
        assert_eq!(literal("o'clock"), "'o''clock'");
        assert_eq!(literal(r"a\'b"), r" E'a\\''b'");
        assert_eq!(ident(r#"we"ird"#), r#""we""ird""#);
        assert_eq!(bigint_array(&[1, -2]), "'{1,-2}'::bigint[]");
        let texts = ["a,b".to_owned(), r#"c"\d"#.to_owned()];
        assert_eq!(text_array(&texts), r#"{"a,b","c\"\\d"}"#);
    }

    #[test]
    fn a_table_needs_a_schema() {
        let table = Table::parse("public.out.box").unwrap();
        assert_eq!(table.quoted(), r#""public"."out.box""#);
        assert_eq!(Table::parse("outbox"), None);
        assert_eq!(Table::parse("public."), None);
        assert_eq!(Table::parse("public.a\0b"), None);
    }
}
