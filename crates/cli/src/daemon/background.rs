//! A mount in the background. The program starts itself again in a new session. The parent waits on a pipe
//! until the child reports "ready" or a failure.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Failure, Result};
use node::again::Every;
use node::frozen::Named;
use node::opened::Source;
use node::running::{Mounted, Plan, Transport};
use node::volume_dir::private_folder;
use node::{log, mounts, signals};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tree::root::hex;

use crate::args;
use crate::beside::Beside;
use crate::term::Term;

/// What a background mount reports to the waiting parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum News {
    /// The mount is up.
    Ready(Mounted),
    /// The mount failed.
    Failed(Failure),
}

/// The pipe to the parent of a background mount.
pub struct Parent(pub(super) PipeWriter);

/// Runs a command that [`in_background`] may have started. A failure is reported to the parent.
pub fn with_parent(fd: Option<i32>, work: impl FnOnce(Option<Parent>) -> Result<u8>) -> Result<u8> {
    let Some(fd) = fd else {
        return work(None);
    };
    // SAFETY: fcntl(2) takes a number. It returns an error if the descriptor is not open.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(
            Failure::usage("--ready-fd is for covey's own use").next("start a background mount with -d")
        );
    }
    // SAFETY: the descriptor is open, and the parent passed it to this process, which alone owns it.
    let pipe = PipeWriter::from(unsafe { OwnedFd::from_raw_fd(fd) });
    log::with_time();
    let Ok(copy) = pipe.try_clone() else {
        return Err(Failure::new("io", "no descriptor is left").next("ulimit -n 65536"));
    };
    let outcome = work(Some(Parent(pipe)));
    if let Err(failure) = &outcome {
        tell(copy, &News::Failed(failure.clone()));
    }
    outcome
}

/// Sends news to the parent. A parent that has exited is ignored.
pub(super) fn tell(mut pipe: PipeWriter, news: &News) {
    let line = serde_json::to_string(news).unwrap_or_default() + "\n";
    let _ = pipe.write_all(line.as_bytes());
}

/// Mounts in the background. Returns when the mount answers, or with the failure.
pub fn in_background(plan: &Plan, beside: &Beside, term: Term) -> Result<u8> {
    let cannot = |error: io::Error| Failure::io("cannot start the background process", &error);
    let (news, theirs) = io::pipe().map_err(cannot)?;
    let number = theirs.as_raw_fd();
    let log_path = plan.source.log();
    let output = || -> Result<Stdio> {
        match &log_path {
            Some(path) => {
                path.parent().map_or(Ok(()), private_folder)?;
                Ok(log::open(path).map_err(|error| Failure::io("cannot open the log", &error))?.into())
            }
            None => Ok(Stdio::null()),
        }
    };
    let mut command = command(plan, plan.take_over)?;
    command.args(beside.s3.to_args()?);
    command.args(beside.ui.to_args()?);
    command.args(["--ready-fd", &number.to_string()]);
    command.stdin(Stdio::null()).stdout(output()?).stderr(output()?).current_dir("/");
    // SAFETY: between fork and exec only setsid and fcntl are called, and both are async-signal-safe. The
    // descriptor is open, since `theirs` lives until after spawn.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            match libc::fcntl(number, libc::F_SETFD, 0) {
                0.. => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    // Now, so that all threads inherit it. The child begins with none blocked.
    signals::block();
    let mut child = command.spawn().map_err(cannot)?;
    drop(theirs);
    let asked = pass_signals_on(child.id())?;
    let mut line = String::new();
    let _ = BufReader::new(news).read_line(&mut line);
    if asked.load(Ordering::Acquire) {
        let _ = child.wait();
        let failure = Failure::new("interrupted", "interrupted")
            .why(format!("{} is not mounted", plan.source.name().display()));
        return Err(Failure { status: 130, ..failure.next("start it again") });
    }
    match serde_json::from_str(&line) {
        Ok(News::Ready(mounted)) => {
            term.result(&mounted, || {
                let (volume, place, pid) = (&mounted.volume, mounted.mountpoint.display(), mounted.pid);
                let first =
                    format!("Mounted {volume} at {place} (process {pid}). Unmount: covey umount {place}");
                mounted.remarks.iter().fold(first, |lines, remark| lines + "\n  " + remark)
            });
            Ok(0)
        }
        Ok(News::Failed(failure)) => Err(failure),
        Err(_) => {
            let how = child.wait().map_err(cannot)?;
            let failure =
                Failure::new("io", "the background process ended before it had mounted").why(how.to_string());
            let Some(path) = log_path else { return Err(failure) };
            let failure = log::tail(&path, 3).into_iter().fold(failure, Failure::why);
            Err(failure.next(format!("look at {}", path.display())))
        }
    }
}

/// Tells the background process to end when a signal arrives. What it has mounted by then, it unmounts.
/// Returns whether one has arrived.
fn pass_signals_on(child: u32) -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let arrived = asked.clone();
    let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return Ok(asked) };
    let work = move || {
        signals::next();
        arrived.store(true, Ordering::Release);
        let _ = kill_process(child, Signal::TERM);
    };
    base::thread::spawn("covey-signals", work)
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    Ok(asked)
}

/// Mounts again in this process, whose mount has ended: what it was mounted from may be another kind of
/// volume now. Returns only if that fails.
pub(super) fn again(plan: &Plan, beside: &Beside, in_background: bool) -> Failure {
    let words = || -> Result<Command> {
        // The origin was taken over before, if it was.
        let mut command = command(plan, false)?;
        command.args(beside.s3.to_args()?);
        command.args(beside.ui.to_args()?);
        if in_background {
            // The parent has ended. Without one, this would count as in the foreground.
            let nothing = File::options().write(true).open("/dev/null");
            let nothing = nothing.map_err(|error| Failure::io("cannot open /dev/null", &error))?;
            let number = OwnedFd::from(nothing).into_raw_fd();
            // SAFETY: the descriptor is open, and nothing else has it.
            unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
            command.args(["--ready-fd", &number.to_string()]);
        }
        Ok(command)
    };
    match words() {
        Ok(mut command) => Failure::io("cannot mount again", &command.exec()),
        Err(failure) => failure,
    }
}

/// The command line of this program for the same mount.
fn command(plan: &Plan, take_over: bool) -> Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    // The arguments already hold the values of the configuration and the environment.
    command.env("COVEY_CONFIG", "").env_remove(args::ENVIRONMENT);
    let (level, format) = log::configured();
    command.args(["--log-level", level.word(), "--log-format", format.word()]);
    command.arg("mount").arg(plan.source.name()).arg(mounts::absolute(&plan.mountpoint)?);
    command.arg("-o").arg(plan.options.to_words());
    let Transport { kind, readers, yields } = &plan.transport;
    command.args(["--transport", &kind.to_string(), "--readers", &readers.to_string()]);
    command.args(["--yield", if *yields { "on" } else { "off" }]);
    if let Some(metrics) = &plan.shown.metrics {
        command.args(["--metrics", metrics]);
    }
    if plan.shown.metrics_public {
        command.arg("--metrics-public");
    }
    if let Some(counting) = plan.shown.heat {
        command.arg(format!("--heat={counting}"));
    }
    command.args(every_words(&plan.every));
    command.args(take_over.then_some("--take-over"));
    match &plan.source {
        Source::Published(tree) => drop(command.args(tree_words(tree))),
        Source::Shared(_, fleet) => drop(command.args(args::fleet::to_args(fleet))),
        _ => {}
    }
    command.args(["--trace-rate", &plan.shown.trace_rate.to_string()]);
    Ok(command)
}

/// The arguments for periodic publishing.
fn every_words(every: &Every) -> Vec<String> {
    let Some(time) = every.publish_every else { return Vec::new() };
    let seconds = format!("{}s", time.as_secs());
    let last = format!("{}s", every.publish_last.as_secs());
    let arguments = ["--publish-every", &seconds, "--publish-as", &every.publish_as, "--publish-last", &last];
    arguments.map(str::to_owned).to_vec()
}

/// The arguments for a published tree, in addition to its name.
fn tree_words(tree: &Named) -> Vec<OsString> {
    let mut words: Vec<OsString> = tree.fleet.as_deref().map(args::fleet::to_args).unwrap_or_default();
    words.extend(tree.follow.map(|every| format!("--follow={}", every.0.as_secs_f64()).into()));
    words.extend(tree.keeps.then(|| "--keep-removed".into()));
    words.extend(tree.older.then(|| "--accept-older".into()));
    let mut add = |option: &str, value: Option<OsString>| {
        words.extend(value.into_iter().flat_map(|value| [OsString::from(option), value]));
    };
    add("--endpoint", tree.home.endpoint.clone().map(Into::into));
    add("--region", tree.home.region.clone().map(Into::into));
    add("--cache", tree.cache.clone().map(Into::into));
    add("--key", tree.key.as_ref().map(|key| hex(key).into()));
    words
}
