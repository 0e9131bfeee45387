//! The documentation says what the code does: nothing is missing in it, and nothing in it is gone from the code.

use crate::{conditions, database, metrics, pages, read};
use fanout_contract::reason::SourceError;
use fanout_crds::condition::reason::{Course, REASONS, find};
use fanout_crds::condition::{CONDITIONS, SOURCE_REACHABLE};
use fanout_tests::documents::{Document, documents, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const RUNBOOKS: &str = "docs/runbooks";

#[test]
fn the_reference_is_what_the_code_says() {
    for page in pages().unwrap() {
        let file = format!("docs/reference/{}", page.file);
        let found = read(&file).unwrap_or_default();
        assert!(
            found == page.text,
            "{file} is not what the code says: run `make generate`"
        );
    }
    let written: BTreeSet<String> = pages()
        .unwrap()
        .iter()
        .map(|page| page.file.to_owned())
        .collect();
    assert_eq!(
        files("docs/reference"),
        written,
        "every page of docs/reference is generated"
    );
}

#[test]
fn every_metric_has_a_series_so_that_its_labels_are_known() {
    for (program, text) in [
        ("operator", fanout_operator::sample_metrics()),
        ("relay", fanout_relay::stats::sample_metrics()),
        ("consumers", fanout_consumers::sample_metrics()),
    ] {
        let families = metrics::families(&text.unwrap());
        assert!(families.len() > 5, "{program}: {families:?}");
        for family in families {
            assert!(
                family.samples > 0,
                "{program}: {} has no series",
                family.name
            );
        }
    }
}

#[test]
fn every_error_of_an_outbox_is_a_reason_and_stalls_where_a_human_must_mend_it() {
    let classes = variants::<SourceError>();
    assert!(classes.len() > 10, "{classes:?}");
    for class in classes {
        let name = format!("{class:?}");
        let reason = find(&name).unwrap_or_else(|| panic!("{name} is no reason"));
        assert!(reason.conditions.contains(&SOURCE_REACHABLE), "{name}");
        assert_eq!(reason.needs_human(), class.needs_human(), "{name}");
    }
}

#[test]
fn reasons_are_named_once_and_stand_on_conditions_that_exist() {
    let mut names = BTreeSet::new();
    for reason in REASONS {
        assert!(names.insert(reason.name), "{} twice", reason.name);
        for condition in reason.conditions {
            assert!(
                CONDITIONS.iter().any(|known| known.name == *condition),
                "{condition} of {}",
                reason.name
            );
        }
        assert!(
            !reason.needs_human() || reason.course == Course::Lasting,
            "{} stalls, so it needs a runbook",
            reason.name
        );
    }
}

#[test]
fn every_lasting_reason_has_a_runbook_and_every_runbook_a_reason() {
    let reasons = REASONS
        .iter()
        .filter(|reason| reason.course == Course::Lasting)
        .map(|reason| reason.name);
    let events = conditions::OTHERS.iter().map(|event| event.reason);
    let wanted: BTreeSet<String> = reasons
        .chain(events)
        .map(|reason| format!("{reason}.md"))
        .collect();
    let mut found = files(RUNBOOKS);
    assert!(found.remove("README.md"));
    assert_eq!(found, wanted);
    for file in found {
        let path = format!("{RUNBOOKS}/{file}");
        let text = read(&path).unwrap();
        let title = format!("# {}\n", file.trim_end_matches(".md"));
        assert!(text.starts_with(&title), "{file}: the title is the reason");
        for section in ["**Seen:**", "**Meanwhile:**", "## Check\n", "## Mend\n"] {
            assert!(text.contains(section), "{file} lacks {section}");
        }
        let page = Document { path, text };
        assert!(
            !page.commands().is_empty(),
            "{file} has no command to check with"
        );
    }
}

#[test]
fn commands_in_the_documentation_are_commands_on_fields_that_exist() {
    let schemas = fanout_crds::crds().map(|crd| {
        let crd = serde_json::to_value(&crd).unwrap();
        let plural = crd["spec"]["names"]["plural"].as_str().unwrap().to_owned();
        let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        (format!("{plural}.fanout.dev"), schema)
    });
    let mut commands = 0;
    for page in documents() {
        for block in page.blocks("sh") {
            parses(&page.path, &block);
        }
        for command in page.commands() {
            commands += 1;
            check_command(&page.path, &command, &schemas);
        }
    }
    assert!(commands > 50, "only {commands} commands");
}

#[test]
fn the_check_of_fields_finds_a_field_that_does_not_exist() {
    let [_, subscription] = fanout_crds::crds();
    let crd = serde_json::to_value(&subscription).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let missing = |command: &str| missing_fields(command, schema);
    assert_eq!(
        missing("get -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].reason}'"),
        Vec::<String>::new()
    );
    assert_eq!(
        missing("get -o jsonpath='{.status.depth} {.status.deep}'"),
        [".status.deep"]
    );
    assert_eq!(
        missing("get -o jsonpath='{.spec.sink.webhook.uri}'"),
        [".spec.sink.webhook.uri"]
    );
}

#[test]
fn links_lead_to_files() {
    for page in documents() {
        let path = root().join(&page.path);
        let folder = path.parent().unwrap();
        // What stands in code is no link, whatever it looks like.
        let prose: String = page.text.split('`').step_by(2).collect();
        for link in prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let (path, _) = link.split_once('#').unwrap_or((link, ""));
            if path.is_empty() || path.contains("://") {
                continue;
            }
            assert!(folder.join(path).exists(), "{}: {link}", page.path);
        }
    }
}

#[test]
fn conditions_that_pages_name_with_a_reason_can_have_it() {
    let mut found = 0;
    for page in documents() {
        for quoted in page.text.split('`').skip(1).step_by(2) {
            let Some((condition, reason)) = ["=True/", "=False/", "=Unknown/"]
                .into_iter()
                .find_map(|value| quoted.split_once(value))
            else {
                continue;
            };
            let known = find(reason).is_some_and(|it| it.conditions.contains(&condition));
            assert!(known, "{}: {quoted}", page.path);
            found += 1;
        }
    }
    assert!(found > 1, "{found}");
}

#[test]
fn tables_of_the_scripts_are_read_whole() {
    let tables = database::tables().unwrap();
    let columns = |name: &str| -> Vec<String> {
        let table = tables.iter().find(|table| table.name.contains(name));
        let columns = &table.unwrap_or_else(|| panic!("{name}")).columns;
        columns.iter().map(|[name, ..]| name.clone()).collect()
    };
    assert_eq!(
        columns("fanout.leases"),
        ["range_id", "owner", "term", "expires_at"]
    );
    assert_eq!(columns("public.outbox").len(), 13);
    assert_eq!(columns("fanout.members"), ["topic_id", "owner", "seen_at"]);
    assert_eq!(columns("fanout.parked").last().unwrap(), "parked_at");
}

#[test]
fn every_event_is_documented() {
    let mut made = 0;
    let mut text = String::new();
    for file in rust_files("operator/src") {
        let source = std::fs::read_to_string(&file).unwrap();
        made += source.matches("secondary: ").count();
        text.push_str(&source);
    }
    // One is made of each condition's change.
    assert_eq!(
        made,
        1 + conditions::OTHERS.len(),
        "events made in operator/src"
    );
    text.push_str(&read("crds/src/deletion.rs").unwrap());
    text.push_str(&read("crds/src/scaling.rs").unwrap());
    for event in conditions::OTHERS {
        assert!(
            text.contains(&format!("{:?}", event.reason)),
            "{}",
            event.reason
        );
    }
}

#[test]
fn every_key_of_ours_is_documented() {
    let known = crate::constants::keys().unwrap();
    for folder in [
        "operator/src",
        "relay/src",
        "consumers/src",
        "runtime/src",
        "crds/src",
        "contract/src",
    ] {
        for file in rust_files(folder) {
            let source = std::fs::read_to_string(&file).unwrap();
            for key in source.split("\"fanout.dev/").skip(1) {
                let key: String = key
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                    .collect();
                let key = format!("fanout.dev/{key}");
                // A bare prefix is no key, and a version is none either.
                if key == "fanout.dev/" || key.starts_with("fanout.dev/v1") {
                    continue;
                }
                assert!(
                    known.iter().any(|constant| constant.value == key),
                    "{key} in {} has no constant in contract/src/names.rs",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn the_page_of_conditions_has_every_reason() {
    let page = conditions::page();
    for reason in REASONS {
        assert!(page.contains(reason.name), "{}", reason.name);
    }
}

/// The members of a closed set: what its decoder says that it expected.
fn variants<T: serde::de::DeserializeOwned>() -> Vec<T> {
    let error = serde_json::from_str::<T>("\"?\"").err().unwrap();
    error
        .to_string()
        .split('`')
        .skip(3)
        .step_by(2)
        .map(|name| serde_json::from_value(Value::String(name.to_owned())).unwrap())
        .collect()
}

/// The Rust sources below a folder of the repository.
fn rust_files(folder: &str) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Names of the files in a folder.
fn files(folder: &str) -> BTreeSet<String> {
    std::fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn parses(file: &str, script: &str) {
    let mut bash = Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success(), "{file}: {script}");
}

fn check_command(file: &str, command: &str, schemas: &[(String, Value)]) {
    const PROGRAMS: &[&str] = &[
        "kubectl",
        "helm",
        "psql",
        "curl",
        "kafka-topics.sh",
        "kafka-configs.sh",
        "kafka-acls.sh",
        "kafka-consumer-groups.sh",
        "kafka-console-consumer.sh",
        "kafka-broker-api-versions.sh",
        "openssl",
    ];
    let program = command.split_whitespace().next().unwrap_or_default();
    if program.is_empty() || program.starts_with('#') {
        return;
    }
    assert!(PROGRAMS.contains(&program), "{file}: {command}");
    for wrong in [
        "subscriptions ",
        "subscription ",
        "fanouttopics ",
        "fanouttopic ",
    ] {
        assert!(
            !command.contains(&format!(" {wrong}")),
            "{file}: other products have such kinds too, write them in full: {command}"
        );
    }
    for (plural, schema) in schemas {
        if command.contains(plural.as_str()) {
            let missing = missing_fields(command, schema);
            assert!(missing.is_empty(), "{file}: {missing:?} in {command}");
        }
    }
}

/// Paths below `.spec`, `.status` and `.metadata` in `command` that the schema lacks.
fn missing_fields(command: &str, schema: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        for (at, _) in command.match_indices(&format!(".{part}.")) {
            let (_, rest) = command.split_at(at);
            let path = path(rest);
            let mut node = schema;
            for name in path.iter().map(String::as_str) {
                if node["items"].is_object() {
                    node = &node["items"];
                }
                node = &node["properties"][name];
            }
            if node.is_null() {
                missing.push(format!(".{}", path.join(".")));
            }
        }
    }
    missing
}

/// The names of a JSON path, without what stands in brackets.
fn path(text: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut depth = 0;
    for character in text.chars().skip(1) {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ if depth > 0 => {}
            '.' => names.push(String::new()),
            _ if character.is_ascii_alphanumeric() => {
                if let Some(name) = names.last_mut() {
                    name.push(character);
                }
            }
            _ => break,
        }
    }
    names.retain(|name| !name.is_empty());
    names
}
