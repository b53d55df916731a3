//! The one door for "this cannot happen".
//!
//! `unwrap` and `expect` are refused by lint in the rest of the tree, because they are so easily used on what *can*
//! happen: input from a disk, a network or a user. [`Must::must`] takes the sentence that explains why it cannot.

/// Takes the value out, or panics with the reason why that was thought impossible.
pub trait Must<T> {
    /// The value. `why` says why it is always there; it is what a person reads if it is not.
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
