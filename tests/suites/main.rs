//! Test suites of others, run on a mount. None of them is part of this repository: each is taken from where the
//! environment says it is (`PJDFSTEST`, `POSIXTEST`, `XFSTESTS`).

mod pjdfstest;
mod posixtest;
mod xfstests;
