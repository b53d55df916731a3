//! What the whole-program tests share: a volume, a mount, and the promise to clean up.
