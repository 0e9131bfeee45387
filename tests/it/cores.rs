//! What is in a process's memory stays there, also when it is aborted.

use fanout_tests::process::{Consumer, Relay, program};
use fanout_tests::services::child::{Process, Signal, Spec};
use fanout_tests::{Sandbox, eventually};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_program_leaves_no_core() {
    // Programs inherit this: they may write cores unless they forbid it themselves.
    let most = getrlimit(Resource::Core).maximum;
    setrlimit(
        Resource::Core,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
    .unwrap();
    let sandbox = Sandbox::new("cores").await;
    let relay = Relay::start(&sandbox, "relay", &sandbox.relay_config()).await;
    let consumer = Consumer::start(&sandbox, "pool-0", &sandbox.consumer_config(Vec::new())).await;
    let operator = operator(&sandbox).await;
    for pid in [relay.pid(), consumer.pid(), operator.pid()] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let cores = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"))
            .unwrap();
        let words: Vec<&str> = cores.split_whitespace().skip(4).collect();
        assert_eq!(words, ["0", "0", "bytes"]);
    }

    relay.signal(Signal::ABORT);
    consumer.signal(Signal::ABORT);
    operator.signal(Signal::ABORT);
    for ended in [&|| relay.ended(), &|| consumer.ended(), &|| {
        operator.ended()
    }] as [&dyn Fn() -> Option<std::process::ExitStatus>; 3]
    {
        let status = eventually(LIMIT, "it ends", async || ended().ok_or("it runs")).await;
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}");
        assert!(!status.core_dumped(), "{status}");
    }
}

/// An operator that waits for an API server which is not there.
async fn operator(sandbox: &Sandbox) -> Process {
    let kubeconfig = sandbox.dir().join("kubeconfig");
    let text = "
apiVersion: v1
kind: Config
current-context: none
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
";
    std::fs::write(&kubeconfig, text).unwrap();
    let admin = sandbox.dir().join("operator-admin-addr");
    let process = Spec::new("env", sandbox.dir(), &sandbox.dir().join("operator.log"))
        .args([format!("KUBECONFIG={}", kubeconfig.display())])
        .args([program("fanout-operator")])
        .args([
            "--namespace=none",
            "--instance=cores",
            "--worker-image=none",
        ])
        .args(["--admin-addr=127.0.0.1:0"])
        .args([format!("--admin-addr-file={}", admin.display())])
        .spawn()
        .unwrap();
    eventually(LIMIT, "the operator runs", async || {
        process.ensure_running()?;
        anyhow::Ok(std::fs::metadata(&admin)?)
    })
    .await;
    process
}
