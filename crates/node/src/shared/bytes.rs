//! Whether the bytes that the names of a shared volume refer to are anywhere: in the origin, or on a node
//! that has the volume mounted.

use std::collections::HashMap;
use std::sync::Arc;

use ::fs::fsck::{Finding, users};
use ::fs::shared::owner;
use api::error::{Failure, Result};
use base::{BlobId, PackNo};
use blob::Origin;
use engines::Address;
use meta::engine::database::SessionRow;
use meta::store::StoreError;
use meta::{MetaStore, Names, PackRow};
use origin::Access;

use super::{making, setup_failure, setup_failure_at};
use crate::refused::open_failure;

/// Rows of packs that are read at a time.
const BATCH: usize = 1024;

/// What a look for bytes went through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    /// Blobs that the names need.
    pub blobs: u64,
    /// Bytes of the blobs that the names need.
    pub bytes: u64,
    /// Packs that are on a node that has the volume mounted, and not in the origin yet.
    pub on_nodes: u64,
}

struct Look<'a> {
    names: Names,
    origin: Arc<dyn Origin>,
    /// What the origin has, with sizes.
    there: HashMap<BlobId, u64>,
    sessions: Vec<SessionRow>,
    looked: Looked,
    found: &'a mut dyn FnMut(Finding),
}

/// Looks for the bytes of a volume, by the names of its blobs. Its nodes keep working.
///
/// # Errors
/// The address is wrong, or the database or the origin cannot be used.
pub fn look(address: &str, found: &mut dyn FnMut(Finding)) -> Result<Looked> {
    let target = Address::parse(address).map_err(setup_failure)?;
    let database = target.open().map_err(setup_failure_at(&target))?;
    let rows: Arc<dyn MetaStore> = database.clone();
    let missing = || Failure::new("damaged", "the volume does not say where its blobs are");
    let home = making::home_of(&rows)?.ok_or_else(missing)?;
    let origin = crate::origins::open_origin(&home, Access::ReadOnly)?;
    let mut there = HashMap::new();
    let listed = origin.list(&mut |blob, size| {
        there.insert(blob, size);
        true
    });
    listed.map_err(|error| {
        Failure::new("origin-away", format!("{} cannot be listed", home.origin)).why(error.to_string())
    })?;
    let sessions = database.sessions().map_err(|error| setup_failure(error.into()))?;
    let names = Names::new(rows);
    let mut look = Look { names, origin, there, sessions, looked: Looked::default(), found };
    look.packs().map_err(|error| open_failure(address.as_ref(), ::fs::OpenError::Store(error)))?;
    Ok(look.looked)
}

impl Look<'_> {
    fn packs(&mut self) -> std::result::Result<(), StoreError> {
        let mut from = PackNo(0);
        loop {
            let rows = self.names.packs(from, BATCH)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            from = PackNo(last.0 + 1);
            for (pack, row) in rows {
                self.pack(pack, &row)?;
            }
        }
    }

    fn pack(&mut self, pack: PackNo, row: &PackRow) -> std::result::Result<(), StoreError> {
        let blob = match row {
            PackRow::Condemned { .. } => return Ok(()),
            PackRow::Open => None,
            PackRow::Sealed { blob, size } => {
                self.looked.blobs += 1;
                self.looked.bytes += u64::from(*size);
                if self.there.contains_key(blob) {
                    return Ok(());
                }
                Some(*blob)
            }
        };
        if self.names.pack_live(pack).unwrap_or(1) == 0 {
            return Ok(());
        }
        let node = owner(pack);
        let session = self.sessions.iter().find(|session| session.number == i64::from(node));
        if session.is_some_and(|session| session.alive) {
            self.looked.on_nodes += 1;
            return Ok(());
        }
        let host = session.map(|session| session.host.clone());
        // It may have been sealed, uploaded or removed since the origin was listed.
        let now = self.names.packs(pack, 1)?;
        let now = now.first().filter(|(no, _)| *no == pack).map(|(_, row)| *row);
        if now != Some(*row) || blob.is_some_and(|blob| matches!(self.origin.size(&blob), Ok(Some(_)))) {
            return Ok(());
        }
        let files = users(&self.names, pack).unwrap_or_default();
        if !files.is_empty() {
            (self.found)(Finding::OnAbsentNode { pack, node, host, files });
        }
        Ok(())
    }
}
