//! The row of a database's claim, and what it means beside the newest claim of the origin. No I/O.
//!
//! | the database's row | the origin's newest claim | the database is | answer |
//! |---|---|---|---|
//! | none | none, or of a folder that gave the names away | | the first claim |
//! | none, or another claim | of a database | | refused: an older copy, or another one holds the names |
//! | any | of a folder that writes | | refused: a folder took the volume over |
//! | this claim | the same | the one that made it | it holds |
//! | this claim | the same | the same one behind a fail-over | moved: nodes that saw it go on |
//! | this claim | the same | another one | refused: a copy |

use base::Timestamp;
use blob::claim::{Claim, Kind, Token};
use meta::engine::database::Incarnation;
use meta::store::Value;

use super::super::making::hex;

/// So many claims that were asked for are remembered.
const ASKED: usize = 8;

/// What the database remembers of its claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// The number of the last claim. 0: there is none yet.
    pub epoch: u64,
    /// The token of the last claim.
    pub token: Token,
    /// Tokens of claims that were asked for, and that the origin may have.
    pub asked: Vec<Token>,
    /// The database that made it.
    pub timeline: u32,
    pub place: String,
}

impl Row {
    pub fn encode(&self) -> Value {
        let asked: Vec<String> = self.asked.iter().map(|token| hex(token)).collect();
        let Row { epoch, token, timeline, place, .. } = self;
        format!("1\n{epoch}\n{}\n{}\n{timeline}\n{place}\n", hex(token), asked.join(",")).into_bytes().into()
    }

    /// `None`: a newer program wrote it, or it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Row> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        lines.next().filter(|version| *version == "1")?;
        let epoch = lines.next()?.parse().ok()?;
        let token = unhex(lines.next()?)?;
        let asked =
            lines.next()?.split(',').filter(|text| !text.is_empty()).map(unhex).collect::<Option<_>>()?;
        let timeline = lines.next()?.parse().ok()?;
        Some(Row { epoch, token, asked, timeline, place: lines.next()?.to_owned() })
    }

    /// The row before one more claim is made.
    pub fn asking(&self, token: Token, here: &Incarnation) -> Row {
        let mut asked = self.asked.clone();
        asked.push(token);
        asked.drain(..asked.len().saturating_sub(ASKED));
        Row { asked, timeline: here.timeline, place: here.place.clone(), ..self.clone() }
    }

    /// The row after it was made.
    pub fn made(self, epoch: u64, token: Token) -> Row {
        Row { epoch, token, asked: Vec::new(), ..self }
    }

    /// Whether a claim is one of this row's.
    pub fn knows(&self, claim: &Claim) -> bool {
        (claim.epoch, claim.token) == (self.epoch, self.token) || self.asked.contains(&claim.token)
    }

    /// Whether this database made the row.
    pub fn is_of(&self, here: &Incarnation) -> bool {
        (self.timeline, self.place.as_str()) == (here.timeline, here.place.as_str())
    }
}

fn unhex(text: &str) -> Option<Token> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| number.to_be_bytes())
}

/// Why a database may not write to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The database holds a copy of the names.
    Copy(Timestamp),
    /// The database holds an earlier state of the names, or another database has claimed the origin.
    Older { place: String, since: Timestamp },
    /// A folder has taken the volume over.
    Folder(String),
    /// The origin is another volume's.
    OtherVolume,
    /// The origin does not have the claim of the row.
    Gone,
    /// The newest claim cannot be read.
    Unread,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |moment: &Timestamp| api::text::utc(moment.seconds());
        match self {
            Refusal::Copy(since) => write!(
                f,
                "it is a copy of the database that holds the names of this volume (since {}), or that database moved",
                at(since)
            ),
            Refusal::Older { place, since } => write!(
                f,
                "it is older than the database that holds the names of this volume ({place}, since {}): it was restored from a backup",
                at(since)
            ),
            Refusal::Folder(place) => write!(f, "the volume was taken over by the folder {place}"),
            Refusal::OtherVolume => f.write_str("the origin is another volume's"),
            Refusal::Gone => {
                f.write_str("the origin has lost its claims: it was emptied, or put back from a backup")
            }
            Refusal::Unread => {
                f.write_str("the newest claim in the origin is damaged, or a newer covey wrote it")
            }
        }
    }
}

/// What a database may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// To make the first claim of a database.
    First,
    /// All. With a claim that the row only asked for.
    Holds,
    /// The database is the claimed one behind a fail-over. Nodes that used it before go on, and make a new
    /// claim.
    Moved,
    /// Nothing but to be read.
    Refused(Refusal),
}

/// What a database with this row may do. `newest`: the newest claim, or that it cannot be read.
pub(super) fn judge(
    volume: [u8; 16],
    row: Option<&Row>,
    newest: Option<Result<&Claim, ()>>,
    here: &Incarnation,
) -> Standing {
    let newest = match newest {
        Some(Err(())) => return Standing::Refused(Refusal::Unread),
        Some(Ok(claim)) if claim.volume != volume => return Standing::Refused(Refusal::OtherVolume),
        Some(Ok(claim)) => Some(claim),
        None => None,
    };
    let held = row.filter(|row| row.epoch > 0);
    match (row, newest) {
        (_, None) if held.is_none() => Standing::First,
        (_, None) => Standing::Refused(Refusal::Gone),
        (Some(row), Some(newest)) if row.knows(newest) => match row.is_of(here) {
            true => Standing::Holds,
            false if row.place == here.place && row.timeline < here.timeline => Standing::Moved,
            false => Standing::Refused(Refusal::Copy(newest.moment)),
        },
        (_, Some(newest)) => match newest.kind {
            Kind::Database => {
                Standing::Refused(Refusal::Older { place: newest.place.clone(), since: newest.moment })
            }
            Kind::Promoted | Kind::Closed if held.is_none() => Standing::First,
            // An older program restored the volume, and made no claim for the database.
            Kind::Restore if held.is_none() => Standing::First,
            _ => Standing::Refused(Refusal::Folder(newest.place.clone())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(place: &str, timeline: u32) -> Incarnation {
        Incarnation { place: place.to_owned(), timeline, began: 7 }
    }

    fn claim(epoch: u64, token: u8, kind: Kind) -> Claim {
        Claim {
            epoch,
            volume: [1; 16],
            token: [token; 16],
            after: None,
            folder: [0; 16],
            kind,
            moment: Timestamp(0),
            place: "db".to_owned(),
        }
    }

    fn judged(row: Option<&Row>, newest: Option<&Claim>, here: &Incarnation) -> Standing {
        judge([1; 16], row, newest.map(Ok), here)
    }

    #[test]
    fn rows_come_back() {
        let row =
            Row::default().asking([7; 16], &here("a b", 3)).made(9, [8; 16]).asking([1; 16], &here("c", 4));
        assert_eq!(Row::decode(&row.encode()), Some(row.clone()));
        assert_eq!((row.epoch, row.token, row.asked.len(), row.place.as_str()), (9, [8; 16], 1, "c"));
        for bad in ["", "2\n1\n", "1\nx\n", "1\n1\n00\n\n1\np\n"] {
            assert_eq!(Row::decode(bad.as_bytes()), None, "{bad:?}");
        }
        let many = (0..20).fold(row, |row, n| row.asking([n; 16], &here("c", 4)));
        assert_eq!((many.asked.len(), many.asked[7]), (ASKED, [19; 16]));
    }

    #[test]
    fn a_database_holds_the_claim_that_it_made() {
        let held = Row::default().asking([5; 16], &here("a", 1)).made(4, [5; 16]);
        let newest = claim(4, 5, Kind::Database);
        assert_eq!(judged(Some(&held), Some(&newest), &here("a", 1)), Standing::Holds);
        let asked = held.asking([6; 16], &here("a", 1));
        assert_eq!(judged(Some(&asked), Some(&claim(5, 6, Kind::Database)), &here("a", 1)), Standing::Holds);
        assert_eq!(judged(Some(&held), Some(&newest), &here("a", 2)), Standing::Moved);
        let other = judged(Some(&held), Some(&newest), &here("b", 1));
        assert!(matches!(other, Standing::Refused(Refusal::Copy(_))), "{other:?}");
        let back = judged(Some(&asked), Some(&newest), &here("a", 0));
        assert!(matches!(back, Standing::Refused(Refusal::Copy(_))), "{back:?}");
    }

    #[test]
    fn an_earlier_state_is_refused() {
        let held = Row::default().asking([5; 16], &here("a", 1)).made(4, [5; 16]);
        for row in [None, Some(&held)] {
            let standing = judged(row, Some(&claim(6, 9, Kind::Database)), &here("a", 1));
            assert!(matches!(standing, Standing::Refused(Refusal::Older { .. })), "{standing:?}");
        }
        for kind in [Kind::Open, Kind::Renewed, Kind::TakeOver] {
            let standing = judged(Some(&held), Some(&claim(6, 9, kind)), &here("a", 1));
            assert_eq!(standing, Standing::Refused(Refusal::Folder("db".to_owned())));
        }
        assert_eq!(judged(Some(&held), None, &here("a", 1)), Standing::Refused(Refusal::Gone));
        let other = Claim { volume: [2; 16], ..claim(4, 5, Kind::Database) };
        assert_eq!(judged(Some(&held), Some(&other), &here("a", 1)), Standing::Refused(Refusal::OtherVolume));
        let unread = judge([1; 16], Some(&held), Some(Err(())), &here("a", 1));
        assert_eq!(unread, Standing::Refused(Refusal::Unread));
    }

    #[test]
    fn the_first_claim_follows_none_or_that_of_a_folder_that_gave_the_names_away() {
        let begun = Row::default().asking([5; 16], &here("a", 1));
        for row in [None, Some(&begun)] {
            assert_eq!(judged(row, None, &here("a", 1)), Standing::First);
            for kind in [Kind::Promoted, Kind::Closed, Kind::Restore] {
                assert_eq!(judged(row, Some(&claim(3, 1, kind)), &here("a", 1)), Standing::First);
            }
            let standing = judged(row, Some(&claim(3, 1, Kind::Open)), &here("a", 1));
            assert!(matches!(standing, Standing::Refused(Refusal::Folder(_))), "{standing:?}");
        }
    }
}
