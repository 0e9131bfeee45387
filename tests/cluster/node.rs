//! The local cluster: started if it does not run, and then stopped again at the end.

use crate::command::output;
use fanout_tests::produced;
use fanout_tests::services::dirs::{self, tests_dir};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The running cluster.
#[derive(Debug)]
pub(crate) struct Node {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    started_here: bool,
    /// Held until this is dropped; lib.sh knows it too.
    _alone: File,
}

impl Node {
    /// Uses the cluster that runs, or starts one.
    pub(crate) fn start() -> Self {
        let alone = use_alone();
        let runs = script("kubeconfig.sh")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success();
        let kubeconfig = PathBuf::from(output(&mut script("up.sh")).trim());
        let binaries = PathBuf::from(output(script("build.sh").arg("kube")).trim());
        Self {
            kubeconfig,
            kubectl: binaries.join("kubectl"),
            started_here: !runs,
            _alone: alone,
        }
    }

    pub(crate) fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
    }

    pub(crate) fn helm(&self) -> Command {
        self.helm_of(&mut script("helm.sh"))
    }

    /// The oldest one that the chart supports.
    pub(crate) fn old_helm(&self) -> Command {
        self.helm_of(script("helm.sh").arg("old"))
    }

    fn helm_of(&self, script: &mut Command) -> Command {
        let mut command = Command::new(output(script).trim());
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.started_here {
            let status = script("down.sh").status();
            assert!(
                status.is_ok_and(|status| status.success()) || std::thread::panicking(),
                "the cluster could not be stopped"
            );
        }
    }
}

/// Waits until nobody else uses the cluster: a demo and this test would exchange each other's operator.
fn use_alone() -> File {
    let locks = dirs::cache().join("locks");
    fs::create_dir_all(&locks).unwrap();
    let file = File::create(locks.join("cluster-use")).unwrap();
    if file.try_lock().is_err() {
        eprintln!("waiting for another run that uses the local cluster");
        file.lock().unwrap();
    }
    file
}

fn script(name: &str) -> Command {
    Command::new(tests_dir().join("cluster").join(name))
}

/// Packs an image and makes it known to the cluster; returns its name.
pub(crate) fn load_image(name: &str) -> String {
    let mut pack = Command::new(tests_dir().join("images/pack.sh"));
    pack.arg(name);
    if matches!(name, "product" | "demo") {
        // The folder of the programs that cargo built together with this test.
        pack.arg(
            PathBuf::from(env!("CARGO_BIN_EXE_fanout-demo"))
                .parent()
                .unwrap(),
        );
    }
    import_image(&output(&mut pack))
}

/// Makes an image known to the cluster, given what pack.sh printed; returns its name.
pub(crate) fn import_image(packed: &str) -> String {
    let (reference, archive) = packed.trim().split_once(' ').unwrap();
    library("import_image", &[archive]);
    reference.to_owned()
}

/// Gives an image of the cluster another name, which is returned.
pub(crate) fn tag_image(image: &str, name: &str) -> String {
    ctr(&["images", "tag", "--force", image, name]);
    name.to_owned()
}

/// Stops (`pause`) or resumes every process of a container, as the runtime does it.
pub(crate) fn container(action: &str, id: &str) {
    ctr(&["tasks", action, id]);
}

/// Calls the runtime's own tool.
fn ctr(arguments: &[&str]) {
    let program = "ctr --address /run/node/containerd.sock --namespace k8s.io";
    let all: Vec<&str> = program
        .split(' ')
        .chain(arguments.iter().copied())
        .collect();
    library("in_node", &all);
}

/// Mounts of every process on the node that runs the program `path` of an image, as its /proc shows them.
pub(crate) fn mounts_of(path: &str) -> Vec<String> {
    let script = r#"for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe" 2>/dev/null)" = "$0" ] || continue
        printf 'process\n'
        cat "$process/mountinfo"
    done"#;
    let found = library("in_node", &["bash", "-c", script, path]);
    found
        .split("process\n")
        .skip(1)
        .map(str::to_owned)
        .collect()
}

/// Keeps the logs of the node's own parts, the audit log among them.
pub(crate) fn keep_logs() {
    let folder = library("eval", &["printf %s \"$state/run/log\""]);
    for entry in fs::read_dir(folder.trim()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        produced::keep(&format!("cluster-{name}"), &fs::read(&path).unwrap());
    }
}

/// Calls a function of lib.sh and returns what it prints.
fn library(function: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("bash");
    command
        .args(["-euc", r#". "$0"; "$@""#])
        .arg(tests_dir().join("cluster/lib.sh"))
        .arg(function)
        .args(arguments);
    output(&mut command)
}
