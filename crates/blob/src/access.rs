//! How a program reads a file, if a user or the program has declared it.

/// What is known in advance about how a file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it is detected from the reads.
    #[default]
    Normal,
    /// Small pieces at random places: nothing is prefetched, and only what is read is fetched.
    Random,
    /// From beginning to end: everything is prefetched from the first read on.
    Stream,
}

impl Access {
    /// The access of that name.
    pub fn named(name: &[u8]) -> Option<Access> {
        [Access::Normal, Access::Random, Access::Stream]
            .into_iter()
            .find(|access| access.name().as_bytes() == name)
    }

    /// Returns the name of the access, as mount options and attributes spell it.
    pub fn name(self) -> &'static str {
        match self {
            Access::Normal => "normal",
            Access::Random => "random",
            Access::Stream => "stream",
        }
    }
}
