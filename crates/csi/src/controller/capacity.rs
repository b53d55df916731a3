//! Sizes: what a call asks for, and quotas that hold a folder to it.

use std::path::Path;
use std::time::Duration;

use api::answers::QuotaUse;

use crate::program;
use crate::proto::CapacityRange;
use crate::refuse::{self, Answer};
use crate::secrets::Secrets;

/// The longest time to set a quota. What is there is counted first.
const COUNTING: Duration = Duration::from_secs(600);

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

/// Limits a folder on a mount, or the volume in a folder.
pub fn limit(folder: &Path, bytes: i64) -> Answer<()> {
    let bytes = bytes.to_string();
    let args = [
        "quota".as_ref(),
        "set".as_ref(),
        "--bytes".as_ref(),
        bytes.as_ref(),
        "--".as_ref(),
        folder.as_os_str(),
    ];
    program::run(&args, &Secrets::default(), COUNTING).map(drop).map_err(|failed| failed.status)
}

/// The limit of a folder on a mount: the one of its own quota. 0: none. `shown`: its path in the volume.
pub fn limit_of(folder: &Path) -> Answer<i64> {
    let args = ["quota".as_ref(), "ls".as_ref(), "--".as_ref(), folder.as_os_str()];
    let list = program::run(&args, &Secrets::default(), COUNTING).map_err(|failed| failed.status)?;
    let quotas: Vec<QuotaUse> = serde_json::from_value(list).unwrap_or_default();
    let text = folder.to_string_lossy();
    let own = quotas.iter().find(|quota| {
        quota.path.as_deref().is_some_and(|path| path.trim_end_matches('/') == text.trim_end_matches('/'))
    });
    let limit = own.filter(|quota| quota.state == "set").and_then(|quota| quota.bytes_limit);
    Ok(limit.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
}

/// Raises a limit, and returns what it is then. A smaller size changes nothing.
pub fn grow(folder: &Path, before: i64, size: Size) -> Answer<i64> {
    if before != 0 && size.least > before {
        limit(folder, size.least)?;
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
