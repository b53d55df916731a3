//! The newest claim of an origin.

use blob::claim::{Claim, FOLDER, Wrong};
use blob::{BlobError, Origin};

/// A claim as it was read.
pub type Read = Result<Claim, Wrong>;

/// What an origin has of claims.
#[derive(Debug, Default)]
pub struct Claims {
    /// The number of the oldest one.
    pub oldest: Option<u64>,
    /// The newest one, with its number.
    pub newest: Option<(u64, Read)>,
}

/// Looks for the newest claim. A listing may be slightly stale, so claims after its last one are looked up.
///
/// # Errors
/// The origin's errors. `Unavailable` if it lists a claim that it does not have.
pub fn newest(origin: &dyn Origin) -> Result<Claims, BlobError> {
    let mut listed: Vec<u64> =
        origin.records(FOLDER)?.iter().filter_map(|name| Claim::epoch_of(name)).collect();
    listed.sort_unstable();
    let mut oldest = listed.first().copied();
    // A claim missing from the listing would never be removed, and the order of removal would break.
    while let Some(before) = oldest.and_then(|oldest| oldest.checked_sub(1)) {
        if origin.record(&Claim::name(before))?.is_none() {
            break;
        }
        oldest = Some(before);
    }
    let mut epoch = listed.last().copied().unwrap_or(0);
    let mut found = if epoch == 0 { None } else { at(origin, epoch)? };
    if epoch > 0 && found.is_none() {
        // Never taken for "no claims": then any folder could write.
        let what = format!("the origin lists the claim {epoch} and does not have it; try again");
        return Err(BlobError::Unavailable(what));
    }
    while let Some(next) = at(origin, epoch + 1)? {
        (epoch, found) = (epoch + 1, Some(next));
    }
    Ok(Claims { oldest, newest: found.map(|claim| (epoch, claim)) })
}

/// The claim with this number, if there is one.
///
/// # Errors
/// The origin's errors.
pub fn at(origin: &dyn Origin, epoch: u64) -> Result<Option<Read>, BlobError> {
    let Some(record) = origin.record(&Claim::name(epoch))? else { return Ok(None) };
    Ok(Some(match Claim::decode(&record) {
        Ok(claim) if claim.epoch != epoch => Err(Wrong::Damaged),
        claim => claim,
    }))
}
