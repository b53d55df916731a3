//! How a call is refused: with a code of gRPC that says to the orchestrator whether to try again, and a
//! message that says to a person what to do next.

use api::error::Failure;
use tonic::{Code, Status};

/// The outcome of a call.
pub type Answer<T> = Result<T, Status>;

fn status(code: Code, what: impl Into<String>, next: &str) -> Status {
    let what = what.into();
    Status::new(code, if next.is_empty() { what } else { format!("{what}; next: {next}") })
}

/// The caller's mistake: the same call cannot succeed.
pub fn invalid(what: impl Into<String>, next: &str) -> Status {
    status(Code::InvalidArgument, what, next)
}

/// The thing is not there.
pub fn not_found(what: impl Into<String>, next: &str) -> Status {
    status(Code::NotFound, what, next)
}

/// The name or the place is taken by something else.
pub fn exists(what: impl Into<String>, next: &str) -> Status {
    status(Code::AlreadyExists, what, next)
}

/// The sizes cannot be had.
pub fn out_of_range(what: impl Into<String>, next: &str) -> Status {
    status(Code::OutOfRange, what, next)
}

/// Something else has to happen first.
pub fn precondition(what: impl Into<String>, next: &str) -> Status {
    status(Code::FailedPrecondition, what, next)
}

/// Try again later.
pub fn aborted(what: impl Into<String>) -> Status {
    status(Code::Aborted, what, "wait, and send the call again")
}

/// A system call failed.
pub fn io(what: impl Into<String>, error: &std::io::Error) -> Status {
    let full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
    let code = if full { Code::ResourceExhausted } else { Code::Internal };
    Status::new(code, Failure::io(what, error).line())
}

/// A failure of a command or of a daemon. Its text has no secrets: [`crate::secrets::Secrets::clean`].
pub fn failed(failure: &Failure, text: String) -> Status {
    let code = match failure.code.as_ref() {
        _ if failure.status == 2 => Code::InvalidArgument,
        "usage" => Code::InvalidArgument,
        "not-found" | "not-published" => Code::NotFound,
        "disk-full" => Code::ResourceExhausted,
        "no-database" | "no-origin" | "not-uploaded" | "silent" | "in-use" | "busy" => Code::Unavailable,
        "timeout" => Code::DeadlineExceeded,
        _ => Code::Internal,
    };
    Status::new(code, text)
}
