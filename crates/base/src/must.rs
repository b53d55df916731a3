//! The only way to say "this cannot happen".
//!
//! Lints refuse `unwrap` and `expect` in the rest of the tree, because they are easily used on what *can*
//! happen: input from a disk, a network or a user. [`Must::must`] takes a sentence that explains why it
//! cannot.

/// Takes the value out, or panics with the reason why a value was thought to be certain.
pub trait Must<T> {
    /// The value. `why` says why it is always there. A user reads it if it is not.
    fn must(self, why: &'static str) -> T;
}

impl<T> Must<T> for Option<T> {
    #[track_caller]
    fn must(self, why: &'static str) -> T {
        match self {
            Some(value) => value,
            None => panic!("impossible: {why}"),
        }
    }
}

impl<T, E: std::fmt::Debug> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self, why: &'static str) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("impossible: {why}: {error:?}"),
        }
    }
}
