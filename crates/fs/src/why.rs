//! Why a call failed, for a caller in this process.
//!
//! A kernel takes only an error number, so the reason is a line in the log. A caller in this process can pass
//! the reason on. It asks for it with [`asked`], and the log gets no line then. As a deadline, the question
//! goes with the thread: the calls have no argument for it.

use std::cell::RefCell;

use blob::BlobError;
use meta::plan::Refusal;
use meta::store::StoreError;

use crate::errno::Error;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The reason, for a person.
    pub text: String,
    /// Names or bytes could not be reached. They may be later.
    pub is_away: bool,
}

impl Why {
    /// `None` for an error whose number says everything.
    fn of(error: &Error) -> Option<Why> {
        let is_away = match error {
            Error::Errno(_) | Error::Store(StoreError::Waits) => return None,
            Error::Refused(refusal) if *refusal != Refusal::Damaged => return None,
            Error::Store(StoreError::Unavailable(_)) | Error::Blob(BlobError::Unavailable(_)) => true,
            Error::Refused(_) | Error::Store(_) | Error::Blob(_) => false,
        };
        Some(Why { text: error.to_string(), is_away })
    }
}

thread_local! {
    /// The outer option: whether a caller asks.
    static ASKED: RefCell<Option<Option<Why>>> = const { RefCell::new(None) };
}

struct Restore(Option<Option<Why>>);

impl Drop for Restore {
    fn drop(&mut self) {
        ASKED.replace(self.0.take());
    }
}

/// Runs calls on this thread. Returns their result, and why the last one failed, if one did and its error
/// number does not say everything.
pub fn asked<T>(work: impl FnOnce() -> T) -> (T, Option<Why>) {
    // Restores also if the work panics, because the thread may continue with other work.
    let _restore = Restore(ASKED.replace(Some(None)));
    let done = work();
    (done, ASKED.take().flatten())
}

/// Gives the reason to the caller of this thread. False if it does not ask.
pub(crate) fn give(error: &Error) -> bool {
    ASKED.with_borrow_mut(|asked| asked.as_mut().map(|why| *why = Why::of(error)).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn a_reason_goes_to_the_caller_that_asks() {
        let away = || Error::Blob(BlobError::Unavailable("the store is silent".to_owned()));
        assert!(!give(&away()), "nobody asks");
        let (given, why) = asked(|| give(&away()));
        assert!(given);
        assert_eq!(why, Some(Why { text: "the store is silent".to_owned(), is_away: true }));
        assert!(!give(&away()), "nobody asks any more");
        let after = asked(|| (give(&away()), give(&Errno::ENOENT.into())));
        assert_eq!(after, ((true, true), None), "the last failure counts, and its number says everything");
        let inside = asked(|| (give(&away()), asked(|| give(&BlobError::Full.into()))));
        let (((_, (_, inner)), outer), full) = (inside, BlobError::Full.to_string());
        assert_eq!(inner, Some(Why { text: full, is_away: false }));
        assert!(outer.is_some_and(|why| why.is_away), "a question inside another has its own answer");
        assert!(std::panic::catch_unwind(|| asked(|| panic!("as work might"))).is_err() && !give(&away()));
    }
}
