//! The tables of manifests/sql.

use crate::markdown::{code, page as start, table};
use crate::read;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A table as its script creates it.
#[derive(Debug)]
pub(crate) struct Table {
    /// Name; of the outbox what the script's variable says.
    pub(crate) name: String,
    comment: String,
    /// Name, type with constraints, comment.
    pub(crate) columns: Vec<[String; 3]>,
}

/// The page.
pub(crate) fn page() -> anyhow::Result<String> {
    let mut page = start(
        "Database",
        "What manifests/sql creates: the outbox that applications insert into, and schema `fanout`, in which relays remember \
         how far they are. A DBA runs the scripts; relays check and never create. Everything in schema `fanout` belongs to \
         the relays: reading is safe, writing while a relay runs is not.",
    );
    for table_of in tables()? {
        write!(page, "\n## {}\n\n", table_of.name)?;
        if !table_of.comment.is_empty() {
            write!(page, "{}\n\n", table_of.comment)?;
        }
        let rows = table_of
            .columns
            .into_iter()
            .map(|[name, kind, comment]| [code(&name), code(&kind), comment]);
        page.push_str(&table(["Column", "Type", "Meaning"], rows));
    }
    Ok(page)
}

/// The tables of all scripts.
pub(crate) fn tables() -> anyhow::Result<Vec<Table>> {
    let mut all = Vec::new();
    for file in [
        "manifests/sql/10-outbox.sql",
        "manifests/sql/outbox-lease.sql",
        "manifests/sql/00-fanout.sql",
    ] {
        let tables = parse(&read(file)?);
        all.extend(tables.into_iter().map(|table| {
            if file.ends_with("outbox-lease.sql") {
                let name = "The outbox of claim mode `Lease` (`public.outbox_lease` unless named otherwise)";
                return Table {
                    name: name.to_owned(),
                    ..table
                };
            }
            table
        }));
    }
    Ok(all)
}

fn parse(sql: &str) -> Vec<Table> {
    let comments: BTreeMap<String, String> = sql.lines().filter_map(comment).collect();
    let comment = |of: &str| comments.get(of).cloned().unwrap_or_default();
    let mut tables = Vec::new();
    let mut lines = sql.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line
            .strip_prefix("create table ")
            .and_then(|rest| rest.strip_suffix(" ("))
        else {
            continue;
        };
        let mut columns = Vec::new();
        for line in lines.by_ref() {
            let line = line.trim();
            let (definition, _) = line.split_once(" --").unwrap_or((line, ""));
            let ends = definition.ends_with(';')
                || definition.ends_with("))")
                || definition.starts_with("with ");
            let definition = definition.trim().trim_end_matches([',', ';']);
            let (column, kind) = definition.split_once(' ').unwrap_or((definition, ""));
            let is_column = column
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                && !["primary", "unique", "check", "with"].contains(&column)
                && !kind.is_empty();
            if is_column {
                let kind = kind.trim();
                // The last column of a table ends with the parenthesis of the table.
                let open = kind.matches('(').count();
                let kind = if kind.matches(')').count() > open {
                    kind.strip_suffix(')').unwrap_or(kind)
                } else {
                    kind
                };
                let of = format!("{name}.{column}");
                columns.push([column.to_owned(), kind.to_owned(), comment(&of)]);
            }
            if ends {
                break;
            }
        }
        let shown = name.replace(
            ":table",
            "The outbox (`public.outbox` unless named otherwise)",
        );
        tables.push(Table {
            name: shown,
            comment: comment(name),
            columns,
        });
    }
    tables
}

/// `comment on table|column NAME is 'TEXT';`
fn comment(line: &str) -> Option<(String, String)> {
    let rest = line.strip_prefix("comment on ")?;
    let rest = rest
        .strip_prefix("table ")
        .or_else(|| rest.strip_prefix("column "))?;
    let (name, text) = rest.split_once(" is '")?;
    let text = text.strip_suffix("';")?.replace("''", "'");
    Some((name.to_owned(), text))
}
