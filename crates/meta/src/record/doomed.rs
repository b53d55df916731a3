//! The row of a blob of a shared volume that is being deleted.

use super::{BadRecord, Fields};
use crate::store::Value;

/// The session that deletes a blob of a shared volume. No row may refer to the blob while this row is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoomedRow {
    /// The number of the session's node.
    pub node: u32,
    /// The session's epoch.
    pub epoch: u64,
}

impl DoomedRow {
    const VERSION: u8 = 1;

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = [Self::VERSION; 13];
        out[1..5].copy_from_slice(&self.node.to_be_bytes());
        out[5..].copy_from_slice(&self.epoch.to_be_bytes());
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`DoomedRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<DoomedRow, BadRecord> {
        let mut fields = Fields::of("blob that is being deleted", bytes, 13)?;
        let version = fields.u8();
        let row = DoomedRow { node: fields.u32(), epoch: fields.u64() };
        fields.good(version == Self::VERSION, row)
    }
}
