//! `corpus:SEED,N,SIZE`: deterministic random files from memory, served like a volume.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::error::{Failure, Result};
use api::status::{Mode, Status};
use api::text::bytes;
use corpus::{Corpus, MakeError, Spec};
use fs::api::Filesystem;

use crate::memory::Memory;

/// A mounted corpus.
pub struct Served {
    name: String,
    corpus: Arc<Corpus>,
    opened: Instant,
}

impl Served {
    /// Generates all of its files.
    pub fn make(spec: Spec) -> Result<Served> {
        let gid = rustix::process::getegid().as_raw();
        let room = cache::memory_room().map_err(|error| {
            Failure::new("io", "cannot tell how much memory is free").why(error.to_string())
        })?;
        let corpus =
            Corpus::make(spec, (api::caller::euid(), gid), room.available, &crate::signals::is_waiting);
        Ok(Served {
            name: format!("{spec}{}{:016x}", api::source::MARK, base::random::u64()),
            corpus: Arc::new(corpus.map_err(|error| refused(spec, &error))?),
            opened: base::time::monotonic(),
        })
    }

    /// Returns the mount's source: the spec, and a part that no other mount has.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// What it was derived from.
    pub fn spec(&self) -> Spec {
        self.corpus.spec()
    }

    /// The filesystem for a transport.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.corpus.clone()
    }

    /// How long it has been open.
    pub fn age(&self) -> Duration {
        base::time::monotonic() - self.opened
    }

    /// All figures.
    pub fn status(&self) -> Status {
        let (spec, memory) = (self.corpus.spec(), Memory::now());
        Status {
            origin: spec.to_string(),
            files: spec.count + 1,
            bytes: spec.bytes(),
            stored_bytes: spec.bytes(),
            memory_bytes: memory.now,
            memory_peak_bytes: memory.peak,
            ..Status::empty(self.name(), Mode::Frozen)
        }
    }
}

fn refused(spec: Spec, error: &MakeError) -> Failure {
    let failure = match error {
        MakeError::NoRoom { needed, available } => {
            Failure::new("no-memory", format!("{spec} does not fit into memory")).why(format!(
                "it takes {}, and {} are to be had (a sixteenth is left to others)",
                bytes(*needed),
                bytes(*available)
            ))
        }
        MakeError::Stopped => {
            let failure = Failure::new("interrupted", format!("{spec} was not mounted"))
                .why("it was stopped while its files were being derived")
                .next("mount it again; fewer or smaller files are quicker");
            return Failure { status: 130, ..failure };
        }
        other => Failure::new("no-memory", format!("{spec} cannot be made")).why(other.to_string()),
    };
    failure.next("ask for fewer or smaller files: corpus:SEED,N,SIZE")
}

#[cfg(test)]
mod tests {
    #[test]
    fn commands_know_a_corpus_by_the_word_it_begins_with() {
        assert_eq!(api::source::CORPUS, corpus::spec::PREFIX);
    }
}
