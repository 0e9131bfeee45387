//! A configuration directory that changes the way the kubelet changes a projected volume.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const DATA_LINK: &str = "..data";
const NEW_DATA_LINK: &str = "..data_tmp";

/// A folder whose files are links into the generation that `..data` points to.
#[derive(Debug)]
pub(super) struct ConfigDir {
    path: PathBuf,
    generation: u32,
}

impl ConfigDir {
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        Ok(Self {
            path,
            generation: 0,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces all files at once: a reader that goes through `..data` sees the old ones or the new ones.
    pub(super) fn replace(&mut self, files: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
        let data = self.path.join(DATA_LINK);
        let before = fs::read_link(&data).ok();
        self.generation += 1;
        let name = format!("..2026_01_01_00_00_00.{:09}", self.generation);
        let generation = self.path.join(&name);
        fs::create_dir(&generation)?;
        for (file, contents) in files {
            fs::write(generation.join(file), contents)?;
        }
        let new = self.path.join(NEW_DATA_LINK);
        symlink(&name, &new)?;
        fs::rename(&new, &data)?;
        for file in files.keys() {
            match symlink(Path::new(DATA_LINK).join(file), self.path.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        if let Some(before) = before {
            let before = self.path.join(before);
            for entry in fs::read_dir(&before)? {
                let name = entry?.file_name();
                if !files.contains_key(&*name.to_string_lossy()) {
                    fs::remove_file(self.path.join(name))?;
                }
            }
            fs::remove_dir_all(before)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        entries
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_replacement_shows_the_new_files_only() {
        let path = std::env::temp_dir().join(format!("config-{:016x}", rand::random::<u64>()));
        let mut dir = ConfigDir::new(path.clone()).unwrap();
        dir.replace(&files(&[("config.yaml", "1"), ("old", "x")]))
            .unwrap();
        dir.replace(&files(&[("config.yaml", "2"), ("new", "y")]))
            .unwrap();
        assert_eq!(fs::read_to_string(path.join("config.yaml")).unwrap(), "2");
        assert_eq!(fs::read_to_string(path.join("new")).unwrap(), "y");
        let mut names: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "..2026_01_01_00_00_00.000000002",
                "..data",
                "config.yaml",
                "new"
            ]
        );
        fs::remove_dir_all(path).unwrap();
    }
}
