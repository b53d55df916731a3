//! What a VMM says when it connects: the regions of its memory, as JSON.
//!
//! ```json
//! [{"base_host_virt_addr": 140737018572800, "size": 268435456, "offset": 0, "page_size": 4096}]
//! ```
//!
//! Each region is a range of the VMM's addresses, and the offset in the snapshot file at which its bytes
//! begin. Older releases of Firecracker call the last member `page_size_kib`, although it holds bytes; a VMM
//! that takes that name by its word sends 4 or 2048. Still older ones have no such member. Other members are
//! ignored.

use serde::Deserialize;

/// The most regions of a clone.
pub const REGIONS_MOST: usize = 1024;
/// The longest message, in bytes.
pub const MESSAGE_MOST: usize = 256 << 10;
/// The smallest page.
pub const PAGE_MIN: u64 = 4096;
/// The largest page: a huge page of x86-64 and of ARM64.
pub const PAGE_MAX: u64 = 2 << 20;
/// Addresses end here: no process has higher ones.
const ADDRESS_MOST: u64 = 1 << 57;

/// A range of the memory of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first address, in the VMM.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// Where its bytes begin in the snapshot file.
    pub offset: u64,
    /// Bytes of a page.
    pub page: u64,
}

#[derive(Deserialize)]
struct Said {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    page_size_kib: Option<u64>,
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The message is no JSON of that form.
    #[error("what it sent is no list of regions: {0}")]
    Form(String),
    /// The message does not end.
    #[error("what it sent is longer than {MESSAGE_MOST} bytes")]
    Long,
    /// There is nothing to serve.
    #[error("it names no region")]
    Empty,
    /// Too many.
    #[error("it names {0} regions, and {REGIONS_MOST} are the most")]
    Many(usize),
    /// A page size that is no power of two, or out of bounds.
    #[error("region {0}: pages of {1} bytes; they can have {PAGE_MIN} to {PAGE_MAX}, a power of two")]
    Page(usize, u64),
    /// Not whole pages.
    #[error("region {0}: its address and size must be whole pages of {1} bytes, and its size not 0")]
    Ragged(usize, u64),
    /// Addresses that no process has.
    #[error("region {0}: it ends after the last address")]
    Address(usize),
    /// Outside of the file.
    #[error("region {region}: bytes {offset} to {end}, and the snapshot has {len}: it is another snapshot's")]
    Outside {
        /// The number of the region, from 0.
        region: usize,
        /// Where it begins in the file.
        offset: u64,
        /// Where it would end.
        end: u128,
        /// The length of the file.
        len: u64,
    },
    /// Two regions have a byte in common.
    #[error("the regions at addresses {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
    /// Two regions have a byte of the file in common.
    #[error("two regions have byte {0} of the snapshot")]
    Twice(u64),
}

/// Decodes what has arrived so far. `None`: more must come.
///
/// # Errors
/// It cannot become a message.
pub fn decode(bytes: &[u8]) -> Result<Option<Vec<Region>>, Refused> {
    let said: Vec<Said> = match serde_json::from_slice(bytes) {
        Ok(said) => said,
        Err(error) if error.is_eof() && bytes.len() < MESSAGE_MOST => return Ok(None),
        Err(error) if error.is_eof() => return Err(Refused::Long),
        Err(error) => return Err(Refused::Form(error.to_string())),
    };
    Ok(Some(said.iter().map(Said::region).collect()))
}

impl Said {
    fn region(&self) -> Region {
        let page = match (self.page_size, self.page_size_kib) {
            (Some(page), _) => page,
            (None, Some(kib)) if kib < PAGE_MIN => kib.saturating_mul(1024),
            (None, Some(page)) => page,
            (None, None) => PAGE_MIN,
        };
        Region { base: self.base_host_virt_addr, size: self.size, offset: self.offset, page }
    }
}

/// Checks regions against the length of the snapshot file. Returns them in the order of their addresses.
///
/// # Errors
/// They make no sense, alone or together.
pub fn check(mut regions: Vec<Region>, len: u64) -> Result<Vec<Region>, Refused> {
    if regions.is_empty() {
        return Err(Refused::Empty);
    }
    if regions.len() > REGIONS_MOST {
        return Err(Refused::Many(regions.len()));
    }
    for (number, region) in regions.iter().enumerate() {
        check_one(number, region, len)?;
    }
    // No sum overflows from here on.
    regions.sort_by_key(|region| region.offset);
    for pair in regions.windows(2) {
        if pair[0].offset + pair[0].size > pair[1].offset {
            return Err(Refused::Twice(pair[1].offset));
        }
    }
    regions.sort_by_key(|region| region.base);
    for pair in regions.windows(2) {
        if pair[0].base + pair[0].size > pair[1].base {
            return Err(Refused::Overlap(pair[0].base, pair[1].base));
        }
    }
    Ok(regions)
}

fn check_one(number: usize, region: &Region, len: u64) -> Result<(), Refused> {
    let Region { base, size, offset, page } = *region;
    if !page.is_power_of_two() || !(PAGE_MIN..=PAGE_MAX).contains(&page) {
        return Err(Refused::Page(number, page));
    }
    if size == 0 || !size.is_multiple_of(page) || !base.is_multiple_of(page) {
        return Err(Refused::Ragged(number, page));
    }
    if base.checked_add(size).is_none_or(|end| end > ADDRESS_MOST) {
        return Err(Refused::Address(number));
    }
    if offset.checked_add(size).is_none_or(|end| end > len) {
        let end = u128::from(offset) + u128::from(size);
        return Err(Refused::Outside { region: number, offset, end, len });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn read(text: &str) -> Result<Option<Vec<Region>>, Refused> {
        decode(text.as_bytes())
    }

    #[test]
    fn every_spelling_of_the_page_size_is_understood() {
        let cases = [
            ("", PAGE_MIN),
            (r#","page_size":4096"#, 4096),
            (r#","page_size":2097152,"page_size_kib":4096"#, 2 * MIB),
            (r#","page_size_kib":4096"#, 4096),
            (r#","page_size_kib":2097152"#, 2 * MIB),
            (r#","page_size_kib":4"#, 4096),
            (r#","page_size_kib":2048,"later":[{"x":null}]"#, 2 * MIB),
        ];
        for (member, page) in cases {
            let text = format!(r#"[{{"base_host_virt_addr":4194304,"size":2097152,"offset":0{member}}}]"#);
            let region = Region { base: 4 * MIB, size: 2 * MIB, offset: 0, page };
            assert_eq!(read(&text), Ok(Some(vec![region])), "{member}");
        }
    }

    #[test]
    fn a_message_may_come_in_pieces() {
        let text = r#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":4096}]"#;
        for end in 0..text.len() {
            assert_eq!(read(&text[..end]), Ok(None), "{end}");
        }
        assert!(read(text).unwrap().is_some());
        let endless = vec![b'['; MESSAGE_MOST];
        assert!(decode(&endless).is_err());
        let spaces = vec![b' '; MESSAGE_MOST];
        assert_eq!(decode(&spaces), Err(Refused::Long));
    }

    #[test]
    fn what_is_no_list_of_regions_is_refused_with_the_place() {
        for text in ["{}", "7", "null", "[7]", "x", "\0", r#"[{"size":1}]"#, r#"[]x"#, r#"[{"size":-1}]"#] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("list of regions") && error.contains("column"), "{text}: {error}");
        }
    }

    #[test]
    fn regions_that_lie_are_refused() {
        let good = Region { base: 16 * MIB, size: 4 * MIB, offset: 0, page: 4096 };
        let check = |regions: &[Region]| super::check(regions.to_vec(), 8 * MIB);
        assert_eq!(check(&[]), Err(Refused::Empty));
        assert_eq!(check(&[good; REGIONS_MOST + 1]), Err(Refused::Many(REGIONS_MOST + 1)));
        for page in [0, 1, 512, 4097, 12_288, 4 * MIB] {
            assert_eq!(check(&[Region { page, ..good }]), Err(Refused::Page(0, page)));
        }
        for lie in [
            Region { size: 0, ..good },
            Region { size: 4097, ..good },
            Region { base: 1, ..good },
            Region { base: 17 * MIB, page: 2 * MIB, ..good },
        ] {
            assert_eq!(check(&[lie]), Err(Refused::Ragged(0, lie.page)));
        }
        let high = Region { base: u64::MAX - 4095, ..good };
        assert_eq!(check(&[good, high]), Err(Refused::Address(1)));
        for lie in [Region { offset: 4 * MIB + 1, ..good }, Region { offset: u64::MAX, ..good }] {
            let refused = check(&[lie]).unwrap_err();
            assert!(refused.to_string().contains("another snapshot's"), "{refused}");
        }
        let next = Region { base: 20 * MIB, offset: 4 * MIB, ..good };
        assert_eq!(check(&[next, good]).unwrap(), [good, next]);
        let over = Region { base: 20 * MIB - 4096, ..next };
        assert_eq!(check(&[over, good]), Err(Refused::Overlap(good.base, over.base)));
        let twice = Region { offset: 4 * MIB - 1, ..next };
        assert_eq!(check(&[twice, good]), Err(Refused::Twice(twice.offset)));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }

        /// Regions that pass the check can be added up, and have no byte in common.
        #[test]
        fn what_passes_the_check_is_sound(
            raw in proptest::collection::vec((any::<u8>(), 0_u64..5, any::<u8>(), 11_u32..23), 0..6),
            len in 0_u64..(40 * MIB),
        ) {
            let region = |(base, size, offset, page): (u8, u64, u8, u32)| Region {
                base: u64::from(base) * MIB / 2, size: size * MIB, offset: u64::from(offset) * MIB / 4,
                page: 1 << page,
            };
            if let Ok(regions) = check(raw.into_iter().map(region).collect(), len) {
                prop_assert!(regions.iter().all(|region| region.offset + region.size <= len));
                prop_assert!(regions.iter().map(|region| region.size).sum::<u64>() <= len);
                prop_assert!(regions.windows(2).all(|pair| pair[0].base + pair[0].size <= pair[1].base));
            }
        }
    }
}
