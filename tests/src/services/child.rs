//! Child processes that never outlive this one, even when it is killed.
//!
//! The kernel signals a child when the *thread* that started it ends, and a changed user id resets that wish. So one
//! thread that never ends starts all children, through `setpriv`, which changes the user first and wishes last.

use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

pub use rustix::process::Signal;

use crate::{Deadline, produced};

/// What to start.
#[derive(Clone, Debug)]
pub struct Spec {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    user: Option<&'static str>,
    death_signal: &'static str,
    dir: PathBuf,
    log: PathBuf,
}

impl Spec {
    /// `program`, run in `dir`, standard output and error appended to the file `log`.
    pub fn new(program: impl Into<OsString>, dir: &Path, log: &Path) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            user: None,
            death_signal: "KILL",
            dir: dir.to_owned(),
            log: log.to_owned(),
        }
    }

    /// Further arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// An environment variable beside those of this process.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Environment variables beside those of this process.
    #[must_use]
    pub fn envs(mut self, variables: &[(&'static str, OsString)]) -> Self {
        self.env.extend_from_slice(variables);
        self
    }

    /// Run as this user when the current one is root.
    #[must_use]
    pub fn user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    /// Signal (name without SIG) the child gets when this process ends; `KILL` unless set.
    #[must_use]
    pub fn death_signal(mut self, signal: &'static str) -> Self {
        self.death_signal = signal;
        self
    }

    /// Starts it.
    pub fn spawn(self) -> anyhow::Result<Process> {
        let program = self.program.to_string_lossy().into_owned();
        let log = self.log.clone();
        let child = start(self).with_context(|| program.clone())?;
        Ok(Process {
            pid: rustix::process::Pid::from_child(&child),
            child: Mutex::new(child),
            program,
            log,
            kept: AtomicBool::new(false),
        })
    }

    fn command(self) -> anyhow::Result<Command> {
        let log = produced::open_log(&self.log)?;
        let mut command = as_user(self.user);
        command
            .args(["--pdeathsig", self.death_signal, "--"])
            .arg(&self.program)
            .args(&self.args)
            .envs(self.env)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }
}

/// `setpriv` that becomes `user` when the current one is root; the caller adds the program and its arguments.
pub fn as_user(user: Option<&str>) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user.filter(|_| super::is_root()) {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command
}

fn start(spec: Spec) -> anyhow::Result<Child> {
    type Order = (Spec, mpsc::Sender<anyhow::Result<Child>>);
    static STARTER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("starter".to_owned())
            .spawn(move || {
                for (spec, answer) in orders {
                    let child = spec.command().and_then(|mut command| Ok(command.spawn()?));
                    // Whoever ordered waits for the answer.
                    answer.send(child).ok();
                }
            })
            .expect("a thread can be started");
        Mutex::new(sender)
    });
    let (answer, started) = mpsc::channel();
    STARTER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((spec, answer))
        .expect("the starter never ends");
    started.recv().expect("the starter answers")
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    pid: rustix::process::Pid,
    child: Mutex<Child>,
    program: String,
    log: PathBuf,
    /// True once its arguments and environment were kept.
    kept: AtomicBool,
}

impl Process {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, when it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .try_wait()
            .expect("a child can be waited for")
    }

    /// Sends a signal; nothing happens when it has ended.
    pub fn signal(&self, signal: Signal) {
        // Not reaped yet, so the id is still its own.
        if self.ended().is_none() {
            if !self.kept.swap(true, Ordering::Relaxed) {
                produced::keep_start(&self.program, self.pid());
            }
            rustix::process::kill_process(self.pid, signal).ok();
        }
    }

    /// Waits until it has ended.
    pub fn wait(&self, limit: Duration) -> anyhow::Result<ExitStatus> {
        Deadline::after(limit).poll(&format!("{} ends", self.program), || Ok(self.ended()))
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.wait(Duration::from_secs(30))
            .expect("the kernel ends a killed process")
    }

    /// Everything it wrote.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// An error that ends in the last lines it wrote, once it has ended although it should run.
    pub fn ensure_running(&self) -> anyhow::Result<()> {
        let Some(status) = self.ended() else {
            return Ok(());
        };
        anyhow::bail!(
            "{} ended: {status}\n{}",
            self.program,
            tail(&self.log(), 30)
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
