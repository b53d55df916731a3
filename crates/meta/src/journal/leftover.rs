//! The log's files as a journal finds them when it is opened: the segments that an earlier process left.
//!
//! There are two ways to read them. [`Leftover::walk`] follows the *chain*: record after record, as long as
//! each is where it should be. [`Leftover::scan`] looks at every byte that the chain did not reach, for
//! records that were written after the chain's end. Those distinguish a torn tail from damage.
//!
//! A segment is identified by its first record, which carries segment and sequence number. The header is
//! needed only while there is no record. So a header that is damaged, or that a power cut lost, costs
//! nothing.

use super::disk::{LogDisk, LogFile};
use super::format::{self, FoundHeader, Kind, Place, RECORD_HEADER, SEGMENT_HEADER, SegmentHeader};
use super::io_error;
use super::log::{Slot, slot_number};
use crate::store::StoreError;

/// A scan skips this many bytes of zeros at once.
const ZERO_STEP: usize = 4096;
static ZEROS: [u8; ZERO_STEP] = [0; ZERO_STEP];

/// A file with records to read.
struct Segment {
    slot: Slot,
    /// The place of its first record.
    place: Place,
}

/// See the module.
pub(super) struct Leftover {
    /// In the order of their records.
    segments: Vec<Segment>,
    /// Files without a first record.
    unused: Vec<Slot>,
    log_id: [u8; 16],
    /// Segments with a lower number are finished.
    floor: u64,
    /// Higher than the number of every segment found.
    next_segment: u64,
}

/// Where and why a walk ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walked {
    /// The first record that was not read.
    pub(super) next: u64,
    /// Why it could not be read: set if part of it is there, or if a later segment exists.
    pub(super) why: Option<String>,
    /// File and offset where it should be; none if the log has no records.
    pub(super) at: Option<(String, u64)>,
    /// For each file that was read, how many bytes were understood.
    pub(super) understood: Vec<(String, usize)>,
}

impl Leftover {
    /// Reads every file of the folder. Segments below number `floor` and those of another log are finished.
    pub(super) fn find(disk: &dyn LogDisk, log_id: [u8; 16], floor: u64) -> Result<Leftover, StoreError> {
        let (segments, unused) = (Vec::new(), Vec::new());
        let mut leftover = Leftover { segments, unused, log_id, floor, next_segment: floor.max(1) };
        for name in disk.list().map_err(io_error)?.into_iter().filter(|name| slot_number(name).is_some()) {
            let file = disk.open(&name).map_err(io_error)?;
            let slot = Slot { name, file };
            match leftover.first_record(&slot)? {
                Some(place) => leftover.segments.push(Segment { slot, place }),
                None => leftover.unused.push(slot),
            }
        }
        leftover.segments.sort_by_key(|segment| (segment.place.seq, segment.place.segment));
        Ok(leftover)
    }

    /// The place of the first record of a file; none if there is nothing to read in it.
    fn first_record(&mut self, slot: &Slot) -> Result<Option<Place>, StoreError> {
        let bytes = read_all(&*slot.file)?;
        let Some(records) = bytes.get(SEGMENT_HEADER as usize..) else { return Ok(None) };
        let header = match SegmentHeader::decode(&bytes) {
            FoundHeader::Unknown(version) => {
                return Err(StoreError::Unavailable(format!(
                    "the log has format {version} and this program knows {}; use the version of covey that wrote it, or a newer one",
                    format::VERSION
                )));
            }
            // A log of another database: for example, of the volume that this one was cloned from.
            FoundHeader::Good(header) if header.log_id != self.log_id => return Ok(None),
            FoundHeader::Good(header) => Some(header),
            FoundHeader::None => None,
        };
        if let Some(header) = &header {
            self.next_segment = self.next_segment.max(header.segment + 1);
        }
        let Some((segment, seq)) = format::peek(records) else { return Ok(None) };
        if segment < self.floor || header.is_some_and(|header| header.segment > segment) {
            return Ok(None);
        }
        // The segment's own header gives the version. A header that is older, or damaged, says nothing about
        // this record.
        let header_key = header.filter(|header| header.segment == segment).map(|header| header.key());
        let keys = header_key.map_or_else(|| self.keys().to_vec(), |key| vec![key]);
        let places = keys.into_iter().map(|key| Place { segment, seq, key });
        let found = places.into_iter().find(|place| is_record(records, *place));
        if found.is_some() {
            self.next_segment = self.next_segment.max(segment + 1);
        }
        Ok(found)
    }

    fn keys(&self) -> [u32; 2] {
        [format::log_key(format::VERSION, &self.log_id), format::log_key(1, &self.log_id)]
    }

    /// A number for the next segment.
    pub(super) fn next_segment(&self) -> u64 {
        self.next_segment
    }

    /// Calls `each` with the records after number `applied`, in order, until it returns false.
    pub(super) fn walk(
        &self,
        applied: u64,
        mut each: impl FnMut(u64, Kind, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<Walked, StoreError> {
        let skipped = self.segments.iter().take_while(|segment| segment.place.seq <= applied + 1).count();
        let mut walked = Walked { next: applied + 1, ..Walked::default() };
        for (index, Segment { slot, place }) in
            self.segments.iter().enumerate().skip(skipped.saturating_sub(1))
        {
            let first = index + 1 == skipped;
            if place.seq > walked.next {
                walked.why = Some(format!("record {} is missing", walked.next));
                return Ok(walked);
            }
            if place.seq < walked.next && !first {
                continue;
            }
            let bytes = read_all(&*slot.file)?;
            let (mut at, mut place) = (SEGMENT_HEADER as usize, *place);
            let found = loop {
                match format::find(&bytes[at..], place) {
                    format::Found::Record(kind, payload) => {
                        if place.seq > applied && !each(place.seq, kind, payload)? {
                            break None;
                        }
                        at += RECORD_HEADER + payload.len();
                        place.seq += 1;
                    }
                    other => break Some(other == format::Found::Torn),
                }
            };
            walked.next = walked.next.max(place.seq);
            walked.at = Some((slot.name.clone(), at as u64));
            walked.understood.push((slot.name.clone(), at));
            match found {
                Some(false) => {}
                Some(true) => {
                    walked.why = Some(format!("record {} is torn", place.seq));
                    return Ok(walked);
                }
                None => return Ok(walked),
            }
        }
        Ok(walked)
    }

    /// Calls `each` with every record after number `applied` that the walk did not reach, in the order in
    /// which they lie in the files. Also raises [`Leftover::next_segment`] above their segments.
    pub(super) fn scan(
        &mut self,
        applied: u64,
        walked: &Walked,
        mut each: impl FnMut(u64, Kind, &[u8]),
    ) -> Result<(), StoreError> {
        let (keys, floor) = (self.keys(), self.floor);
        let mut next_segment = self.next_segment;
        for slot in self.segments.iter().map(|segment| &segment.slot).chain(&self.unused) {
            let understood = walked.understood.iter().find(|(name, _)| *name == slot.name);
            let mut at = understood.map_or(SEGMENT_HEADER as usize, |(_, end)| *end);
            let bytes = read_all(&*slot.file)?;
            while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= RECORD_HEADER) {
                if rest.starts_with(&ZEROS) {
                    // A record may begin in the last zeros.
                    at += ZERO_STEP - RECORD_HEADER;
                    continue;
                }
                let behind =
                    |(segment, seq): &(u64, u64)| *segment >= floor && *seq >= walked.next.max(applied + 1);
                let place = format::peek(rest).filter(behind).and_then(|(segment, seq)| {
                    let places = keys.map(|key| Place { segment, seq, key });
                    places.into_iter().find(|place| is_record(rest, *place))
                });
                match place.map(|place| (place, format::find(rest, place))) {
                    Some((place, format::Found::Record(kind, payload))) => {
                        next_segment = next_segment.max(place.segment + 1);
                        each(place.seq, kind, payload);
                        at += RECORD_HEADER + payload.len();
                    }
                    _ => at += 1,
                }
            }
        }
        self.next_segment = next_segment;
        Ok(())
    }

    /// All files, for the new log.
    pub(super) fn into_slots(self) -> Vec<Slot> {
        self.unused.into_iter().chain(self.segments.into_iter().map(|segment| segment.slot)).collect()
    }
}

fn is_record(bytes: &[u8], place: Place) -> bool {
    matches!(format::find(bytes, place), format::Found::Record(..))
}

fn read_all(file: &dyn LogFile) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes).map_err(io_error)?;
    Ok(bytes)
}
