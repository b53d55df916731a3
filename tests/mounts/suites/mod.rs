//! Third-party test suites, run on a mount. None of them is part of this repository: each is used from where
//! the environment says it is (`PJDFSTEST`, `POSIXTEST`, `XFSTESTS`).

mod pjdfstest;
mod posixtest;
mod xfstests;
