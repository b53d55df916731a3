//! The database of a shared volume.

use std::path::Path;

use api::error::Result;
use node::shared::listed;

use super::{Check, Level};

/// What is found at the address of a shared volume.
pub fn checks(address: &Path) -> Result<Vec<Check>> {
    let found = listed::check(&address.to_string_lossy())?;
    Ok(found
        .into_iter()
        .map(|found| Check { name: found.what, level: level(&found), found: found.line, mend: None })
        .collect())
}

fn level(found: &listed::Checked) -> Level {
    match found.level {
        listed::Level::Good => Level::Ok,
        listed::Level::Warning => Level::Note,
        listed::Level::Bad => Level::Wrong,
    }
}
