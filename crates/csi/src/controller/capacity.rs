//! Sizes: what a call asks for, and quotas that hold a folder to it.

use std::path::Path;

use api::answers::QuotaUse;
use api::control::{ControlAddress, NewLimit, Request};
use serde::de::DeserializeOwned;
use tonic::Status;

use crate::proto::CapacityRange;
use crate::refuse::{self, Answer};

/// The size that a call asks for, in bytes. 0: not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// At least so much.
    pub least: i64,
    /// At most so much.
    pub most: i64,
}

impl Size {
    /// Reads the range of a call.
    pub fn of(range: Option<&CapacityRange>) -> Answer<Size> {
        let range = range.copied().unwrap_or_default();
        let CapacityRange { required_bytes: least, limit_bytes: most } = range;
        if least < 0 || most < 0 || most > 0 && least > most {
            return Err(refuse::out_of_range(
                format!("no size is at least {least} and at most {most} bytes"),
                "send required_bytes up to limit_bytes",
            ));
        }
        Ok(Size { least, most })
    }

    /// The limit for a new volume. 0: none.
    pub fn wanted(self) -> i64 {
        if self.least > 0 { self.least } else { self.most }
    }

    /// Whether a volume with this limit is such a size. 0 is a volume without a limit.
    pub fn is_met_by(self, capacity: i64) -> bool {
        let is_enough = capacity == 0 || capacity >= self.least;
        is_enough && (self.most == 0 || capacity != 0 && capacity <= self.most)
    }
}

/// Asks the daemon of a mount. Paths of a request are those in the volume: one mount is at many places.
pub fn ask<T: DeserializeOwned>(mount: &Path, request: &Request) -> Answer<T> {
    let gone = || Status::unavailable(format!("the mount at {} has gone; next: try again", mount.display()));
    let mounted = fuse::mount::find(mount).ok_or_else(gone)?;
    let address = ControlAddress::of_source(Path::new(&mounted.source));
    node::control::ask(&address, request, &mut |_| ())
        .map_err(|failure| refuse::failed(&failure, failure.line()))
}

/// Limits a folder of the volume at a mount.
pub fn limit(mount: &Path, inner: &Path, bytes: i64) -> Answer<()> {
    let bytes = NewLimit::Is(bytes.unsigned_abs());
    let request = Request::SetQuota { path: inner.into(), bytes, files: NewLimit::Keep };
    ask::<QuotaUse>(mount, &request).map(drop)
}

/// The limit of a folder: the one of its own quota. 0: none.
pub fn limit_of(mount: &Path, inner: &Path) -> Answer<i64> {
    let quotas: Vec<QuotaUse> = ask(mount, &Request::Quotas { path: inner.into() })?;
    let shown = Path::new("/").join(inner);
    let own = quotas.iter().find(|quota| quota.path.as_deref().is_some_and(|path| Path::new(path) == shown));
    let limit = own.filter(|quota| quota.state == "set").and_then(|quota| quota.bytes_limit);
    Ok(limit.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
}

/// Raises a limit, and returns what it is then. A smaller size changes nothing.
pub fn grow(mount: &Path, inner: &Path, size: Size) -> Answer<i64> {
    let before = limit_of(mount, inner)?;
    if before != 0 && size.least > before {
        limit(mount, inner, size.least)?;
        return Ok(size.least);
    }
    if !size.is_met_by(before) {
        return Err(refuse::out_of_range(
            format!("the volume has {before} bytes, and sizes only grow"),
            "ask for a size that is larger, with a limit_bytes that allows it",
        ));
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_with_what_is_there() {
        let size = |least, most| Size::of(Some(&CapacityRange { required_bytes: least, limit_bytes: most }));
        for (least, most) in [(-1, 0), (0, -1), (2, 1)] {
            assert_eq!(size(least, most).unwrap_err().code(), tonic::Code::OutOfRange);
        }
        assert_eq!(size(0, 7).unwrap().wanted(), 7);
        for (least, most, capacity, met) in [
            (0, 0, 0, true),
            (5, 0, 5, true),
            (5, 0, 4, false),
            (5, 0, 0, true),
            (0, 5, 6, false),
            (0, 5, 0, false),
            (5, 9, 7, true),
        ] {
            assert_eq!(size(least, most).unwrap().is_met_by(capacity), met, "{least} {most} {capacity}");
        }
        assert_eq!(Size::of(None).unwrap().wanted(), 0);
    }
}
