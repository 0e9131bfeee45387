//! The commands in the documentation work on what they are meant for.

use fanout_tests::Sandbox;
use fanout_tests::documents::documents;
use fanout_tests::services::{api_server, postgres, run};
use std::process::Command;

/// Statements run as they stand, on the tables of `manifests/sql`.
#[tokio::test]
async fn every_statement_in_the_documentation_runs() {
    let sandbox = Sandbox::new("runbooks").await;
    let mut statements = 0;
    for page in documents() {
        // The README's example goes with tables of an application.
        if page.path == "README.md" {
            continue;
        }
        for sql in page.blocks("sql") {
            // No process of another test may be the example's; and what is missing in a runbook is not missing here.
            let sql = sql.replace("4711", "0");
            let before = if sql.contains("add constraint outbox_xid") {
                "alter table public.outbox drop constraint if exists outbox_xid;\n"
            } else {
                ""
            };
            postgres()
                .psql(&sandbox.database, &format!("{before}{sql}"), &[])
                .unwrap_or_else(|error| panic!("{}: {sql}\n{error:#}", page.path));
            statements += 1;
        }
    }
    assert!(statements > 10, "only {statements}");
}

/// Commands on objects of both kinds are run by the real `kubectl`; those that write, without effect.
#[tokio::test]
async fn every_kubectl_command_on_our_kinds_runs() {
    let server = api_server();
    let namespace = server.namespace("runbooks").await;
    let samples = fanout_tests::documents::root().join("manifests/samples");
    run(server
        .kubectl()
        .args(["apply", "--server-side", "-f"])
        .arg(in_namespace(&samples, &namespace)))
    .unwrap();
    let mut commands = 0;
    for page in documents() {
        for command in page.commands() {
            let Some(command) = runnable(&command, &namespace) else {
                continue;
            };
            let kubectl = server.kubectl();
            let program: Vec<String> = std::iter::once(kubectl.get_program())
                .chain(kubectl.get_args())
                .map(|word| format!("'{}'", word.display()))
                .collect();
            let script = format!("kubectl() {{ {} \"$@\"; }}\n{command}", program.join(" "));
            let mut shell = Command::new("bash");
            shell.args(["-euc", &script]);
            shell.envs(
                kubectl
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
            run(&mut shell).unwrap_or_else(|error| panic!("{}: {command}\n{error:#}", page.path));
            commands += 1;
        }
    }
    assert!(commands > 30, "only {commands}");
}

/// The samples with another namespace, in a folder of their own.
fn in_namespace(samples: &std::path::Path, namespace: &str) -> std::path::PathBuf {
    let folder = fanout_tests::services::dirs::run().join(namespace);
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(samples).unwrap() {
        let entry = entry.unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let text = text.replace("namespace: social", &format!("namespace: {namespace}"));
        std::fs::write(folder.join(entry.file_name()), text).unwrap();
    }
    folder
}

/// `command` in `namespace`, where it reads or changes objects that the samples have.
fn runnable(command: &str, namespace: &str) -> Option<String> {
    let mut words = command.split_whitespace();
    let verb = words
        .next()
        .filter(|program| *program == "kubectl")
        .and_then(|_| words.next())?;
    if !command.contains(".fanout.dev") || command.contains(" crd ") || command.contains('>') {
        return None;
    }
    let command = command.replace("-n social", &format!("-n {namespace}"));
    match verb {
        "get" => Some(command),
        "annotate" | "patch" | "label" => Some(format!("{command} --dry-run=server")),
        "delete" if !command.contains("--all") => Some(format!("{command} --dry-run=server")),
        _ => None,
    }
}
