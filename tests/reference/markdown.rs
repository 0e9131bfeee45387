//! Markdown: the note on top of each page, and tables.

/// First lines of a generated page.
pub(crate) fn page(title: &str, text: &str) -> String {
    format!("<!-- Made from the code by `make generate`. Do not edit. -->\n\n# {title}\n\n{text}\n")
}

/// A table with `columns` and its `rows`.
pub(crate) fn table<const N: usize>(
    columns: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(columns.map(str::to_owned));
    text.push_str(&line(columns.map(|_| "---".to_owned())));
    for row in rows {
        text.push_str(&line(row.map(|cell| escape(&cell))));
    }
    text
}

/// A bar would end the cell, also inside code; a line break the row; and `<name>` is no HTML.
fn escape(cell: &str) -> String {
    let cell = cell.split_whitespace().collect::<Vec<_>>().join(" ");
    let cell = cell.replace('|', "\\|");
    let mut text = String::new();
    for (number, part) in cell.split('`').enumerate() {
        let in_code = number % 2 == 1;
        if number > 0 {
            text.push('`');
        }
        text.push_str(&if in_code {
            part.to_owned()
        } else {
            part.replace('<', "&lt;")
        });
    }
    text
}

/// `text` as code; nothing where it is empty.
pub(crate) fn code(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("`{text}`")
    }
}

/// The parts that are there, as one text.
pub(crate) fn join(parts: impl IntoIterator<Item = String>, separator: &str) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(separator)
}
