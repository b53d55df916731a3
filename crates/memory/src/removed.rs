//! The pages that a clone gave back, by a balloon for instance. They hold zeros from then on, whatever the
//! snapshot holds.

use std::ops::Range;

/// One bit for each page of 4 KiB. It takes no memory before the first page is given back.
#[derive(Debug, Default)]
pub struct Removed {
    words: Vec<u64>,
}

impl Removed {
    /// Marks pages. `pages`: how many there are at all.
    pub fn mark(&mut self, range: Range<usize>, pages: usize) {
        if self.words.is_empty() {
            self.words = vec![0; pages.div_ceil(64)];
        }
        for page in range {
            if let Some(word) = self.words.get_mut(page / 64) {
                *word |= 1 << (page % 64);
            }
        }
    }

    /// Whether a page was given back.
    pub fn has(&self, page: usize) -> bool {
        self.words.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Whether no page was given back at all.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_marked_one_by_one() {
        let mut removed = Removed::default();
        assert!(removed.is_empty() && !removed.has(0) && !removed.has(usize::MAX));
        removed.mark(60..70, 100);
        removed.mark(99..120, 100);
        let marked: Vec<usize> = (0..200).filter(|&page| removed.has(page)).collect();
        // A map has whole words.
        assert_eq!(marked, (60..70).chain(99..120).collect::<Vec<_>>());
        assert!(!removed.is_empty());
    }
}
