//! What a store answers, as callers see it: objects, refusals, and the mistakes behind them.

use base::Timestamp;

use crate::OriginError;

/// The user's mistake behind a refusal, as far as it can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The store does not know the access key.
    AccessKey,
    /// The secret does not belong to the access key.
    Secret,
    /// No keys were found anywhere.
    NoKeys,
    /// A temporary token has expired.
    Expired,
    /// The key is known but lacks the right.
    Denied,
    /// There is no such bucket.
    Bucket,
    /// The bucket is in another region.
    Region,
    /// Nothing answers at the endpoint.
    Endpoint,
    /// The TLS handshake fails.
    Tls,
    /// What answers is not an object store.
    NotAStore,
    /// The clock of this machine is wrong.
    Clock,
    /// The place holds something else.
    Taken,
    /// There is no origin at the place.
    NotAnOrigin,
    /// The store is full.
    Full,
    /// No mistake: the store is busy or unavailable.
    Busy,
    /// Any other refusal.
    Other,
}

/// A right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To get objects.
    Read,
    /// To put them.
    Write,
    /// To delete them.
    Remove,
    /// To list them.
    List,
}

/// All rights, with their names in a status.
pub const ACTS: [(Right, &str); 4] =
    [(Right::Read, "reads"), (Right::Write, "writes"), (Right::Remove, "deletes"), (Right::List, "listings")];

/// Something that the store refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The refused right; none: everything, because of the credentials or the clock.
    pub act: Option<Right>,
    /// The mistake behind it.
    pub mistake: Mistake,
    /// One line with the reason and what to do.
    pub why: String,
    /// When it began.
    pub since: Timestamp,
}

impl Refusal {
    /// What is refused, in a word: `everything`, `reads`, `writes`, `deletes`, `listings`.
    pub fn what(&self) -> &'static str {
        let named = ACTS.iter().find(|(act, _)| Some(*act) == self.act);
        named.map_or("everything", |(_, name)| name)
    }

    /// The cause, in a word: `credentials`, `clock`, `rights`.
    pub fn cause(&self) -> &'static str {
        match self.mistake {
            Mistake::Clock => "clock",
            Mistake::Denied => "rights",
            _ => "credentials",
        }
    }
}

/// An object, as the store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The key, without the prefix that was listed.
    pub key: String,
    /// The object's size in bytes.
    pub size: u64,
    /// The object's ETag without quotes. Empty if the store lists none.
    pub etag: String,
    /// When it was last modified.
    pub modified: Timestamp,
}

/// Why an object was not read.
#[derive(Debug)]
pub enum Unread {
    /// The object is another version than the listed one, or was removed.
    Changed,
    /// The store refuses this one: it is archived, or the keys may not read it. The error says it in full.
    Denied(OriginError),
    /// The object cannot be read, for this reason.
    Object(String),
    /// No object can be read at the moment.
    Store(OriginError),
}
