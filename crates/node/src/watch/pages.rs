//! The pages of the kernel's trace buffers, as `trace_pipe_raw` gives them.
//!
//! ```text
//!   page:   time 8 │ length of what follows 8 (upper bits are flags) │ events
//!   event:  kind 5 bits, time since the previous event 27 bits │ ...
//!     1..=28  data of kind x 4 bytes          0   length of data + 4 in 4 bytes, then data
//!     29      padding                         30  27 more bits of time in the next 4 bytes
//!                                             31  absolute time, likewise
//! ```
//!
//! Numbers are in the machine's byte order. Invalid data ends the page: the kernel is trusted to tell the
//! truth, but not to keep this layout forever.

/// Calls `each` with the time of every event of a page, in nanoseconds, and its data.
pub fn events(page: &[u8], each: &mut dyn FnMut(u64, &[u8])) {
    let (Some(mut time), Some(len)) = (number(page, 0), number(page, 8)) else { return };
    let len = (len as usize & 0xf_ffff).min(page.len().saturating_sub(16));
    let mut rest = &page[16..16 + len];
    while let Some(head) = word(rest, 0) {
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        let next = word(rest, 4).unwrap_or(0);
        let (from, size) = match kind {
            0 => (8, (next as usize).saturating_add(4)),
            1..=28 => (4, 4 + kind as usize * 4),
            29 if delta == 0 => return,
            29 => (4, (next as usize).saturating_add(4)),
            _ => (4, 8),
        };
        match kind {
            30 => time = time.wrapping_add(delta + (u64::from(next) << 27)),
            // The upper five bits of the page's time apply to these events, too.
            31 => time = (time & (0x1f << 59)) | (delta + (u64::from(next) << 27)),
            _ => time = time.wrapping_add(delta),
        }
        let Some(data) = rest.get(from..size) else { return };
        if kind <= 28 {
            each(time, data);
        }
        rest = &rest[size..];
    }
}

/// The four bytes at an offset, as a number.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The eight bytes at an offset, as a number.
pub fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(time: u64, words: &[u32]) -> Vec<u8> {
        let mut page = time.to_ne_bytes().to_vec();
        page.extend((words.len() as u64 * 4).to_ne_bytes());
        page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        page
    }

    fn seen(page: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        events(page, &mut |time, data| all.push((time, data.to_vec())));
        all
    }

    #[test]
    fn every_kind_of_event_is_read() {
        let head = |kind: u32, delta: u32| kind | delta << 5;
        let words = [
            head(2, 10),
            0x1111_1111,
            0x2222_2222, // two words of data at 1,010
            head(30, 1),
            2, // 2 << 27 + 1 later
            head(0, 5),
            8,
            0x3333_3333, // one word of data, the long way
            head(29, 3),
            4, // padding
            head(31, 7),
            1, // from now on at 1 << 27 + 7
            head(1, 1),
            0x4444_4444,
            head(29, 0),
            99,
        ];
        let later = 1_010 + (2 << 27) + 1 + 5;
        assert_eq!(
            seen(&page(1_000, &words)),
            [
                (1_010, [[0x11; 4], [0x22; 4]].concat()),
                (later, vec![0x33; 4]),
                ((1 << 27) + 8, vec![0x44; 4])
            ]
        );
    }

    #[test]
    fn nonsense_ends_the_page_and_nothing_else() {
        for words in [&[][..], &[0], &[0, u32::MAX, 1], &[28 | 32], &[29 | 32, u32::MAX]] {
            assert!(seen(&page(1, words)).is_empty(), "{words:?}");
        }
        let whole = page(1, &[1 | 32, 7, 1 | 32, 8]);
        (0..whole.len()).for_each(|len| assert!(seen(&whole[..len]).len() < 2));
    }
}
