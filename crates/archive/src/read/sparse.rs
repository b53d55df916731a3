//! Where the data of a file with holes lies. There are four dialects: GNU's old `S` header with ranges in it
//! and in the blocks after it, pax 0.0 (a record for each number), 0.1 (one record with all numbers) and 1.0
//! (the numbers as lines at the start of the data).

use std::io::{self, Read};

use super::records::{RANGES_MAX, Records, too_many_ranges};
use super::{cut, damaged, number, unsigned};
use crate::BLOCK;

type Ranges = Vec<(u64, u64)>;

fn bad() -> io::Error {
    damaged("the map of a file with holes is damaged")
}

/// GNU's old form: four ranges in the header, and 21 in each block after it as long as a flag says that
/// another follows.
pub(super) fn old(block: &[u8; BLOCK], inner: &mut impl Read) -> io::Result<Ranges> {
    let mut ranges = Vec::new();
    let mut read = |bytes: &[u8]| -> io::Result<()> {
        for pair in bytes.chunks_exact(24).filter(|pair| pair[0] != 0) {
            ranges.push((unsigned(&pair[..12])?, unsigned(&pair[12..])?));
        }
        if ranges.len() > RANGES_MAX { Err(too_many_ranges()) } else { Ok(()) }
    };
    read(&block[386..482])?;
    let mut more = block[482] != 0;
    // A bound, so that blocks without ranges cannot continue for ever.
    let mut blocks = 0;
    while more {
        blocks += 1;
        if blocks > RANGES_MAX {
            return Err(too_many_ranges());
        }
        let mut block = [0; BLOCK];
        inner.read_exact(&mut block).map_err(cut)?;
        read(&block[..504])?;
        more = block[504] != 0;
    }
    Ok(ranges)
}

/// pax 1.0: a count and then pairs, each number on a line, padded to whole blocks. `left` is the number of
/// bytes of the member that are still to come.
pub(super) fn in_data(inner: &mut impl Read, left: &mut u64) -> io::Result<Ranges> {
    let mut numbers: Vec<u64> = Vec::new();
    let mut line = Vec::new();
    let mut wanted = 1;
    while numbers.len() < wanted {
        let mut block = [0; BLOCK];
        inner.read_exact(&mut block).map_err(cut)?;
        *left = left.checked_sub(BLOCK as u64).ok_or_else(bad)?;
        for byte in block {
            match byte {
                b'\n' => numbers.push(number(&std::mem::take(&mut line)).ok_or_else(bad)?),
                byte if line.len() < 20 => line.push(byte),
                _ => return Err(bad()),
            }
            if let ([count], b'\n') = (numbers.as_slice(), byte) {
                let count = usize::try_from(*count).ok().filter(|&count| count <= RANGES_MAX);
                wanted = count.ok_or_else(too_many_ranges)? * 2 + 1;
            }
            if numbers.len() == wanted {
                break;
            }
        }
    }
    Ok(pairs(&numbers[1..]))
}

/// pax 0.1 (`GNU.sparse.map`) and 0.0.
pub(super) fn in_records(records: &Records) -> io::Result<Ranges> {
    let Some(map) = records.get("GNU.sparse.map") else { return Ok(records.ranges().to_vec()) };
    let mut numbers = Vec::new();
    for text in map.split(|&byte| byte == b',').filter(|text| !text.is_empty()) {
        if numbers.len() >= RANGES_MAX * 2 {
            return Err(too_many_ranges());
        }
        numbers.push(number(text).ok_or_else(bad)?);
    }
    Ok(pairs(&numbers))
}

fn pairs(numbers: &[u64]) -> Ranges {
    numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}
