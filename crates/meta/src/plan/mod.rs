//! What an operation on names means. Pure: no I/O, no clock, no randomness, so that it can be model-checked.
//!
//! [`plan`] looks at the rows it is given. It answers which rows it must see first, or why the operation is refused, or
//! one commit that does it, with what the caller will want to know. The same plan runs over every engine.
//!
//! [`op`] holds the operations; one file per family plans them.

pub mod op;

pub use op::{Change, Op, Refusal};
