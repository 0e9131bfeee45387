//! The Markdown pages of the repository, and the commands in them.

use crate::services::dirs;
use std::path::PathBuf;

/// Folders with pages.
const FOLDERS: [&str; 5] = ["", "docs", "docs/runbooks", "docs/reference", "docs/adr"];

/// A page.
#[derive(Clone, Debug)]
pub struct Document {
    /// Path in the repository.
    pub path: String,
    /// Text.
    pub text: String,
}

/// The repository.
pub fn root() -> PathBuf {
    dirs::tests_dir().join("..")
}

/// Every page that people read, by path.
pub fn documents() -> Vec<Document> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str());
            let is_page = path.extension().is_some_and(|it| it == "md");
            let Some(name) = name.filter(|_| is_page) else {
                continue;
            };
            all.push(Document {
                path: format!("{folder}/{name}")
                    .trim_start_matches('/')
                    .to_owned(),
                text: std::fs::read_to_string(&path).expect("a readable page"),
            });
        }
    }
    all.sort_by(|one, two| one.path.cmp(&two.path));
    all
}

impl Document {
    /// The fenced blocks of `language`.
    pub fn blocks(&self, language: &str) -> Vec<String> {
        let start = format!("```{language}");
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().map(str::trim_start);
        while let Some(line) = lines.next() {
            if line == start {
                let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
                blocks.push(block.join("\n"));
            }
        }
        blocks
    }

    /// The shell commands, one a line, without what is given to them as a document.
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for block in self.blocks("sh") {
            let mut lines = block.lines();
            while let Some(line) = lines.next() {
                commands.push(line.to_owned());
                if let Some((_, end)) = line.split_once("<<'") {
                    let end = end.trim_end_matches('\'');
                    for _ in lines.by_ref().take_while(|line| *line != end) {}
                }
            }
        }
        commands
    }
}
