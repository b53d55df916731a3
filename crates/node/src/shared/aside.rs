//! Files whose bytes are lost with the disk of a node are renamed. A program finds out at once that they are
//! gone, instead of in the middle of a read, and a person sees which they are. What is left of them can be
//! read.
//!
//! Nobody but the user knows that a disk is lost: a node that is away may come back with it. So the nodes are
//! named by their numbers.

use std::collections::HashSet;
use std::sync::Arc;

use api::error::{Failure, Result};
use base::{Ino, PackNo};
use engines::Address;
use meta::plan::op::RenameMode;
use meta::plan::{Ctx, Op, Refusal};
use meta::store::StoreError;
use meta::{MetaStore, Names, NamesError};

use super::repairing::Hold;
use super::setup_failure;

/// What the name of such a file ends with.
pub const SUFFIX: &str = ".covey-lost";
/// The longest name, in bytes.
const NAME_MAX: usize = 255;
/// How many names are tried for a file.
const TRIES: u32 = 100;
/// Rows that are read at a time.
const BATCH: usize = 256;

/// What became of the files of some packs.
#[derive(Debug, Default)]
pub struct Aside {
    /// How many files were renamed.
    pub renamed: u64,
    /// Packs with files that have several names, or none. They stay as they are.
    pub left: HashSet<PackNo>,
}

/// Whether a file was renamed by this.
pub fn is_aside(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind(SUFFIX).is_some_and(|at| {
        let rest = &name[at + SUFFIX.len()..];
        rest.is_empty() || rest.strip_prefix('.').is_some_and(|n| n.parse::<u32>().is_ok())
    })
}

/// Renames the files that have bytes in these packs.
///
/// # Errors
/// `in-use` if a node has the volume mounted. Otherwise the address is wrong, or the database cannot be used.
pub fn set_aside(address: &str, packs: &[PackNo]) -> Result<Aside> {
    let target = Address::parse(address).map_err(setup_failure)?;
    let database = target.open().map_err(setup_failure)?;
    let rows: Arc<dyn MetaStore> = database.clone();
    let hold = Hold::take(database)?;
    hold.wait_until_alone()?;
    let (names, mut aside, mut seen) = (Names::new(rows), Aside::default(), HashSet::new());
    for pack in packs {
        let mut from = (Ino(0), 0);
        loop {
            let users = names.pack_users(*pack, from, BATCH).map_err(failed)?;
            let Some((last, _)) = users.last() else { break };
            from = (Ino(last.0 + 1), 0);
            for (ino, _) in &users {
                if !seen.insert(*ino) {
                    continue;
                }
                hold.keep()?;
                match rename(&names, *ino)? {
                    true => aside.renamed += 1,
                    false => _ = aside.left.insert(*pack),
                }
            }
        }
    }
    Ok(aside)
}

/// Renames a file that has one name. False: it has several, or none.
fn rename(names: &Names, ino: Ino) -> Result<bool> {
    let Some(record) = names.inode(ino).map_err(failed)? else { return Ok(true) };
    if record.parent == Ino(0) {
        return Ok(false);
    }
    let Some(name) = name_in(names, record.parent, ino).map_err(failed)? else { return Ok(false) };
    if is_aside(&String::from_utf8_lossy(&name)) {
        return Ok(true);
    }
    let ctx = Ctx { now: base::time::now(), uid: 0, gid: 0 };
    for n in 0..TRIES {
        let end = if n == 0 { SUFFIX.to_owned() } else { format!("{SUFFIX}.{n}") };
        let to_name = [&name[..name.len().min(NAME_MAX - end.len())], end.as_bytes()].concat();
        let (parent, mode) = (record.parent, RenameMode::NoReplace);
        let op = Op::Rename { parent, name: &name, to: parent, to_name: &to_name, mode };
        match names.run(&op, &ctx) {
            Ok(_) => return Ok(true),
            Err(NamesError::Refused(Refusal::Exists)) => {}
            Err(NamesError::Store(error)) => return Err(failed(error)),
            Err(error) => {
                let what = format!("{} cannot be renamed", String::from_utf8_lossy(&name));
                return Err(Failure::new("damaged", what).why(error.to_string()));
            }
        }
    }
    Ok(false)
}

fn name_in(names: &Names, dir: Ino, ino: Ino) -> std::result::Result<Option<Box<[u8]>>, StoreError> {
    let mut position = 0;
    loop {
        let listed = names.readdir(dir, position, BATCH)?;
        let Some(last) = listed.last() else { return Ok(None) };
        position = last.position + 1;
        if let Some(found) = listed.into_iter().find(|entry| entry.dentry.ino == ino) {
            return Ok(Some(found.name));
        }
    }
}

fn failed(error: StoreError) -> Failure {
    setup_failure(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_is_known_by_its_name() {
        for (path, is) in [
            ("/dir/file.covey-lost", true),
            ("/dir/file.covey-lost.12", true),
            ("/dir.covey-lost/file", false),
            ("/dir/file.covey-lost.txt", false),
            ("/dir/file", false),
        ] {
            assert_eq!(is_aside(path), is, "{path}");
        }
    }
}
