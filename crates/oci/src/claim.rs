//! The claim of an import or a removal on a folder of images, which also counts on other machines.
//!
//! A lock of flock(2) holds on one machine, unless the volume is mounted with `-o locks=fleet`. What has a
//! name is there at once for all nodes of a shared volume, and a name is made once. So the claim is a name:
//!
//! ```text
//!   .import-by            a symbolic link, whose target says which process has the folder
//!   .import-by-HEX        one process at a time replaces the claim of a process that has ended
//! ```
//!
//! A link is made with its text in one step, and both are metadata. Its time is moved on every [`REFRESH`]. A
//! claim whose process is gone from this machine, or whose time stands still for [`STALE`], is replaced. The
//! clocks of the machines must agree within some minutes for that. A process that lost its claim all the
//! same, because it was stopped for so long, finds that out before it names anything ([`Claim::check`]).

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use api::error::{Failure, Result};
use base::Timestamp;
use base::lock::FileLock;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::place::Place;

/// The claim's name.
const NAME: &str = ".import-by";
/// How often its time is moved on.
const REFRESH: Duration = Duration::from_secs(30);
/// After so many seconds without a sign, another process takes the folder.
const STALE: i64 = 600;
/// Other processes may come and go at the same moment.
const TRIES: usize = 5;

/// A claim that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// What it says.
    pub text: String,
    /// When its process last gave a sign.
    pub at: Timestamp,
}

/// Which process has a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// The machine's name, for people.
    host: String,
    /// The run of its kernel.
    boot: String,
    /// The name space of its numbers of processes.
    pids: PathBuf,
    /// The number of the process, and when it began.
    pid: u32,
    begun: Option<u64>,
    /// Tells claims of one process apart.
    id: String,
}

/// When a process began, in ticks since the machine did. None if there is no such process.
fn begun(pid: u32) -> std::io::Result<Option<u64>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    // The name, in brackets, may hold anything.
    let field = text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse().ok());
    field.map(Some).ok_or_else(|| ErrorKind::InvalidData.into())
}

impl Owner {
    /// Returns this process as an owner.
    fn me() -> Owner {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pid = std::process::id();
        Owner {
            host: text("/proc/sys/kernel/hostname"),
            boot: text("/proc/sys/kernel/random/boot_id"),
            pids: fs::read_link("/proc/self/ns/pid").unwrap_or_default(),
            pid,
            begun: begun(pid).ok().flatten(),
            id: format!("{:016x}", base::random::u64()),
        }
    }

    /// Whether it is a process of this machine that has ended.
    fn has_ended(&self, me: &Owner) -> bool {
        let is_here = !me.boot.is_empty() && (&self.boot, &self.pids) == (&me.boot, &me.pids);
        is_here && self.begun.is_some() && begun(self.pid).is_ok_and(|begun| begun != self.begun)
    }
}

/// A folder of images that this process alone changes, until this is dropped.
pub struct Claim {
    place: Box<dyn Place + Send>,
    text: String,
    /// Ends the thread, which gives signs.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The lock, on this machine.
    _lock: Option<FileLock>,
}

impl Claim {
    /// Takes a folder, which is there.
    ///
    /// # Errors
    /// Another import or removal has it.
    pub(crate) fn take<P: Place + Clone + Send + 'static>(
        place: &P,
        lock: Option<FileLock>,
    ) -> Result<Claim> {
        Claim::take_as(place, lock, &Owner::me())
    }

    fn take_as<P: Place + Clone + Send + 'static>(
        place: &P,
        lock: Option<FileLock>,
        me: &Owner,
    ) -> Result<Claim> {
        let text = serde_json::to_string(me)
            .map_err(|error| Failure::new("io", "cannot write the claim").why(error.to_string()))?;
        let mut met = None;
        for _ in 0..TRIES {
            if place.claim(Path::new(NAME), &text)? {
                return Claim::begin(place, lock, text);
            }
            met = place.claimed(Path::new(NAME))?;
            let Some(there) = &met else { continue };
            if !is_over(there, me) {
                break;
            }
            if replace(place, there, &text, me)? {
                return Claim::begin(place, lock, text);
            }
        }
        Err(in_use(met))
    }

    fn begin<P: Place + Clone + Send + 'static>(
        place: &P,
        lock: Option<FileLock>,
        text: String,
    ) -> Result<Claim> {
        let (end, ended) = channel::<()>();
        let theirs = place.clone();
        let mut claim =
            Claim { place: Box::new(place.clone()), text, end: Some(end), thread: None, _lock: lock };
        let work = move || {
            while ended.recv_timeout(REFRESH) == Err(RecvTimeoutError::Timeout) {
                // One that fails is followed by others, and the claim is looked at before it counts.
                let _ = theirs.touch(Path::new(NAME), base::time::now());
            }
        };
        let spawned = base::thread::spawn("covey-images", work);
        claim.thread = Some(spawned.map_err(|error| Failure::io("cannot start a thread", &error))?);
        Ok(claim)
    }

    /// Whether this process still has the folder.
    ///
    /// # Errors
    /// It has not, or that cannot be seen.
    pub fn check(&self) -> Result<()> {
        match self.place.claimed(Path::new(NAME))? {
            Some(there) if there.text == self.text => Ok(()),
            _ => Err(Failure::new("in-use", "another process took the folder of images over")
                .why(format!("this one gave no sign for {} minutes", STALE / 60))
                .next("start it again")),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.check().is_ok() {
            // One that stays is that of a process that has ended.
            let _ = self.place.remove(Path::new(NAME));
        }
    }
}

/// Whether the process of a claim has ended, or gave no sign for long.
fn is_over(there: &Claimed, me: &Owner) -> bool {
    let owner = serde_json::from_str::<Owner>(&there.text);
    let silent = base::time::now().seconds().saturating_sub(there.at.seconds());
    silent > STALE || owner.is_ok_and(|owner| owner.has_ended(me))
}

/// Replaces a claim that is over. Only one process at a time does that with the same claim, or the second one
/// would replace that of the first one.
fn replace(place: &dyn Place, over: &Claimed, text: &str, me: &Owner) -> Result<bool> {
    let turn = PathBuf::from(format!("{NAME}-{}", &Digest::of(over.text.as_bytes()).hex()[..16]));
    if !place.claim(&turn, text)? {
        return Ok(false);
    }
    let replaced = || {
        let is_same = place.claimed(Path::new(NAME))?.is_some_and(|there| there.text == over.text);
        let new = PathBuf::from(format!("{NAME}-new-{}", me.id));
        if !is_same || !place.claim(&new, text)? {
            return Ok(false);
        }
        place.rename(&new, Path::new(NAME)).map(|()| true)
    };
    let replaced = replaced();
    place.remove(&turn)?;
    replaced
}

fn in_use(met: Option<Claimed>) -> Failure {
    let failure = Failure::new("in-use", "another import into this folder, or a removal from it, runs");
    let owner = met.and_then(|there| {
        let silent = base::time::now().seconds().saturating_sub(there.at.seconds());
        serde_json::from_str::<Owner>(&there.text).ok().map(|owner| (owner, silent.max(0)))
    });
    let failure = match owner {
        Some((Owner { host, pid, .. }, silent)) => {
            failure.why(format!("process {pid} of {host} gave a sign {silent} s ago"))
        }
        None => failure,
    };
    failure.next("wait until it has ended, then start this one again").next(format!(
        "if it was killed: wait {} minutes after its last sign, or remove {NAME}* in the folder",
        STALE / 60
    ))
}

#[cfg(test)]
mod tests;
