//! Encoding and decoding a page; the essay of the parent module draws the format.

use base::PackNo;

use super::{BadPage, Extent, ExtentPage};

const VERSION: u8 = 1;
/// An extent takes at least one byte for each of its four numbers.
const EXTENT_MIN: usize = 4;

impl ExtentPage {
    /// The page as bytes. The same page always gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + self.extents.len() * 10);
        self.encode_into(&mut out);
        out
    }

    /// Appends what [`ExtentPage::encode`] gives.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.extents.len() as u64);
        let (mut end, mut pack) = (0, 0);
        for extent in &self.extents {
            put_varint(out, u64::from(extent.at - end));
            put_varint(out, u64::from(extent.len));
            put_varint(out, zigzag(extent.pack.0.wrapping_sub(pack)));
            put_varint(out, u64::from(extent.offset));
            (end, pack) = (extent.end(), extent.pack.0);
        }
    }

    /// Reads what [`ExtentPage::encode`] wrote.
    ///
    /// # Errors
    /// [`BadPage`] for every other sequence of bytes.
    pub fn decode(bytes: &[u8]) -> Result<ExtentPage, BadPage> {
        let (&version, mut rest) = bytes.split_first().ok_or(BadPage("it is empty"))?;
        if version != VERSION {
            return Err(BadPage("its version is not one this program knows"));
        }
        let count = take_varint(&mut rest)?;
        // So that a damaged count cannot allocate more memory than the bytes could fill.
        if count > (rest.len() / EXTENT_MIN) as u64 {
            return Err(BadPage("it is cut short"));
        }
        let mut extents: Vec<Extent> = Vec::with_capacity(count as usize);
        let (mut end, mut pack) = (0u32, 0u64);
        for _ in 0..count {
            let gap = take_u32(&mut rest)?;
            let len = take_u32(&mut rest)?;
            pack = pack.wrapping_add(unzigzag(take_varint(&mut rest)?));
            let offset = take_u32(&mut rest)?;
            let at = end.checked_add(gap).ok_or(BadPage("an extent lies past its end"))?;
            let extent = Extent { at, len, pack: PackNo(pack), offset };
            if !extent.is_sound() {
                return Err(BadPage(
                    "an extent is empty, or reaches past the end of the page or of its pack",
                ));
            }
            if extents.last().is_some_and(|before| before.continues_in(&extent)) {
                return Err(BadPage("two extents should be one"));
            }
            end = extent.end();
            extents.push(extent);
        }
        if !rest.is_empty() {
            return Err(BadPage("bytes follow its last extent"));
        }
        Ok(ExtentPage { extents })
    }
}

/// Differences of either sign become small numbers.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64) >> 63) as u64
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, BadPage> {
    let mut value = 0u64;
    for (i, &byte) in rest.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit; a last byte of 0 means that a shorter form exists.
        if i == 9 && bits > 1 || i > 0 && byte == 0 {
            return Err(BadPage("a number is not in its shortest form"));
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            *rest = &rest[i + 1..];
            return Ok(value);
        }
    }
    Err(BadPage("it is cut short"))
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, BadPage> {
    u32::try_from(take_varint(rest)?).map_err(|_| BadPage("a number is too large"))
}
