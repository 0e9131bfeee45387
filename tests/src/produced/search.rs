//! Searches what was produced for planted secrets, in every form in which a program might print one.

use super::{MARK, VALUES};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The forms to search for, for the searching program.
const PATTERNS: &str = ".patterns";
/// Shorter pieces of an encoding would be found anywhere.
const SHORTEST: usize = 10;

/// Where a secret was found. Does not hold the secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// File and line.
    pub place: String,
    /// Which secret, in which form.
    pub what: String,
}

/// Searches all files in `dir`.
///
/// # Errors
/// The folder can't be searched.
pub fn search(dir: &Path) -> anyhow::Result<Vec<Found>> {
    let values = fs::read_to_string(dir.join(VALUES)).unwrap_or_default();
    let mut patterns = BTreeMap::new();
    for (form, text) in forms(MARK.as_bytes()) {
        patterns.insert(text, format!("a planted secret, {form}"));
    }
    for (number, value) in values.lines().enumerate() {
        for (form, text) in forms(value.as_bytes()) {
            let what = format!("the secret in line {} of {VALUES}, {form}", number + 1);
            patterns.entry(text).or_insert(what);
        }
    }
    let list = patterns.keys().fold(String::new(), |mut list, pattern| {
        list.push_str(pattern);
        list.push('\n');
        list
    });
    let file = dir.join(PATTERNS);
    fs::write(&file, list)?;
    let output = Command::new("grep")
        .args(["--recursive", "--text", "--line-number", "--only-matching"])
        .args(["--fixed-strings", "--null", "--file"])
        .arg(&file)
        .args([VALUES, PATTERNS].map(|own| format!("--exclude={own}")))
        .arg(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .context("grep")?;
    anyhow::ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "grep: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<Found> = text
        .lines()
        .map(|line| {
            let (file, rest) = line.split_once('\0').unwrap_or_default();
            let (number, pattern) = rest.split_once(':').unwrap_or_default();
            Found {
                place: format!("{file}:{number}"),
                what: patterns.get(pattern).cloned().unwrap_or_default(),
            }
        })
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// The forms of `value` by name.
pub fn forms(value: &[u8]) -> Vec<(&'static str, String)> {
    let plain = String::from_utf8_lossy(value).into_owned();
    let mut forms = vec![("as it is", plain.clone())];
    let encoded = url::form_urlencoded::byte_serialize(value).collect::<String>();
    if encoded != plain {
        forms.push(("percent-encoded", encoded.replace('+', "%20")));
        forms.push(("percent-encoded", encoded));
    }
    for core in base64_cores(value) {
        for twice in base64_cores(core.as_bytes()) {
            forms.push(("in base64 of base64", twice));
        }
        forms.push(("in base64", core.replace('+', "-").replace('/', "_")));
        forms.push(("in base64", core));
    }
    for (separator, name) in [("", "in hexadecimal"), (" ", "in hexadecimal")] {
        let bytes: Vec<String> = value.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = bytes.join(separator);
        forms.push((name, text.to_uppercase()));
        forms.push((name, text));
    }
    for separator in [", ", ","] {
        let bytes: Vec<String> = value.iter().map(u8::to_string).collect();
        forms.push(("as a list of bytes", bytes.join(separator)));
    }
    let escaped = value.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "\\x{byte:02x}");
        text
    });
    forms.push(("as escapes", escaped));
    forms.retain(|(_, text)| text.len() >= SHORTEST.min(value.len()) && !text.contains('\n'));
    forms
}

/// What the base64 of any text that contains `value` contains: one piece for each place at which it may begin.
fn base64_cores(value: &[u8]) -> Vec<String> {
    (0..3)
        .map(|before| {
            let mut text = vec![0; before];
            text.extend_from_slice(value);
            let encoded = STANDARD_NO_PAD.encode(&text);
            // Characters that also depend on what comes before or behind are left out.
            let start = (before * 8).div_ceil(6);
            let end = text.len() * 8 / 6;
            encoded.get(start..end).unwrap_or_default().to_owned()
        })
        .filter(|core| core.len() >= SHORTEST)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    fn folder(files: &[(&str, &[u8])]) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("produced-{:016x}", rand::random::<u64>()));
        fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        dir
    }

    fn found(files: &[(&str, &[u8])]) -> Vec<String> {
        let dir = folder(files);
        let found = search(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let place = |found: Found| {
            let name = found
                .place
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            format!("{name} {}", found.what)
        };
        found.into_iter().map(place).collect()
    }

    #[test]
    fn a_secret_is_found_in_every_form_and_its_place_is_said() {
        let secret = format!("pg-{MARK}-1");
        let planted: Vec<(&str, String)> = vec![
            ("as it is", secret.clone()),
            ("in base64", STANDARD.encode(&secret)),
            ("in base64", STANDARD.encode(format!("a{secret}"))),
            ("in base64", URL_SAFE.encode(format!("ab{secret}"))),
            (
                "in base64 of base64",
                STANDARD.encode(format!("whsec_{}", STANDARD.encode(&secret))),
            ),
            ("as a list of bytes", format!("{:?}", secret.as_bytes())),
            (
                "as a list of bytes",
                format!("{:?}", secret.as_bytes()).replace(' ', ""),
            ),
            (
                "in hexadecimal",
                secret
                    .bytes()
                    .fold(String::new(), |hex, byte| format!("{hex}{byte:02X}")),
            ),
        ];
        for (form, text) in planted {
            let log = format!("one line\nanother: {text} and more\n");
            let expected = format!("log:2 a planted secret, {form}");
            assert_eq!(found(&[("log", log.as_bytes())]), [expected], "{text}");
        }
    }

    #[test]
    fn a_value_without_the_mark_is_found_when_it_was_noted() {
        let files: [(&str, &[u8]); 3] = [
            (VALUES, b"kept key of a server\n"),
            (
                "one.status",
                b"\xff\0{\"message\": \"kept%20key%20of%20a%20server\"}",
            ),
            ("other", b"nothing"),
        ];
        let expected = "one.status:1 the secret in line 1 of .values, percent-encoded";
        assert_eq!(found(&files), [expected]);
    }

    #[test]
    fn nothing_is_found_where_nothing_was_planted() {
        let text = b"Planted Secret; plantedsecret; UGxhbnQ=; 80, 108, 97";
        assert_eq!(found(&[("log", text)]), [""; 0]);
    }
}
