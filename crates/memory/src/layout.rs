//! The regions of a clone, cut into blocks: what is read and put in its place at a time.
//!
//! A block has 64 KiB, or one page where pages are larger. The last block of a region may be shorter. Blocks
//! are numbered through all regions in the order of the addresses. A run is some blocks of one region, one
//! after the other: they follow each other in the VMM's memory and in the file.

use std::ops::Range;

use crate::handshake::Region;

/// Bytes of a block. A fault costs the kernel and the server a few microseconds, and this many bytes cost
/// about ten. Larger blocks take memory for bytes that are never touched.
pub const BLOCK: u64 = 64 << 10;

/// Blocks of a clone.
#[derive(Debug)]
pub struct Layout {
    areas: Vec<Area>,
    blocks: usize,
}

#[derive(Debug)]
struct Area {
    region: Region,
    block: u64,
    /// The number of its first block.
    first: usize,
    /// The number after its last block.
    end: usize,
}

/// Some blocks, and where their bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The numbers of the blocks.
    pub blocks: Range<usize>,
    /// The first address, in the VMM.
    pub address: u64,
    /// Where they begin in the file.
    pub offset: u64,
    /// Bytes: whole pages.
    pub len: u64,
    /// Bytes of a page.
    pub page: u64,
}

impl Layout {
    /// Of regions that passed [`crate::handshake::check`].
    pub fn new(regions: &[Region]) -> Layout {
        let mut blocks = 0;
        let areas = regions.iter().map(|&region| {
            let (block, first) = (BLOCK.max(region.page), blocks);
            blocks += region.size.div_ceil(block) as usize;
            Area { region, block, first, end: blocks }
        });
        let areas = areas.collect();
        Layout { areas, blocks }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.areas.iter().map(|area| area.region.size).sum()
    }

    /// The number of regions.
    pub fn regions(&self) -> usize {
        self.areas.len()
    }

    /// The block at an address.
    pub fn at(&self, address: u64) -> Option<usize> {
        let at = self.areas.partition_point(|area| area.region.base <= address).checked_sub(1)?;
        let area = &self.areas[at];
        let within = address - area.region.base;
        (within < area.region.size).then(|| area.first + (within / area.block) as usize)
    }

    fn area(&self, block: usize) -> &Area {
        &self.areas[self.areas.partition_point(|area| area.end <= block)]
    }

    /// The blocks of the same region.
    pub fn neighbours(&self, block: usize) -> Range<usize> {
        let area = self.area(block);
        area.first..area.end
    }

    /// Bytes of a whole block of the same region.
    pub fn block_len(&self, block: usize) -> u64 {
        self.area(block).block
    }

    /// Where blocks are. All of them are of one region, and there is at least one.
    pub fn run(&self, blocks: Range<usize>) -> Run {
        let area = self.area(blocks.start);
        let from = (blocks.start - area.first) as u64 * area.block;
        let to = ((blocks.end - area.first) as u64 * area.block).min(area.region.size);
        let Region { base, offset, page, .. } = area.region;
        Run { blocks, address: base + from, offset: offset + from, len: to - from, page }
    }

    /// The one page at an address, as a part of its block.
    pub fn page(&self, block: usize, address: u64) -> Run {
        let Region { base, offset, page, .. } = self.area(block).region;
        let within = (address - base) / page * page;
        Run { blocks: block..block, address: base + within, offset: offset + within, len: page, page }
    }

    /// The blocks that hold a range of the file, for each region that has bytes of it.
    pub fn of_file(&self, offset: u64, len: u64) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for area in &self.areas {
            let Region { offset: begin, size, .. } = area.region;
            let (from, to) = (offset.max(begin), offset.saturating_add(len).min(begin + size));
            if from < to {
                let block = |byte: u64| area.first + ((byte - begin) / area.block) as usize;
                found.push(block(from)..block(to - 1) + 1);
            }
        }
        found
    }

    /// All blocks, region by region.
    pub fn all(&self) -> Vec<Range<usize>> {
        self.areas.iter().map(|area| area.first..area.end).collect()
    }

    /// The pages of a range of addresses, as numbers of bits of a map over all pages of 4 KiB.
    pub fn bits(&self, from: u64, to: u64) -> Vec<Range<usize>> {
        let mut before = 0;
        let mut found = Vec::new();
        for area in &self.areas {
            let Region { base, size, .. } = area.region;
            let (from, to) = (from.max(base), to.min(base + size));
            if from < to {
                let bit = |address: u64| before + ((address - base) / 4096) as usize;
                found.push(bit(from)..bit(to - 1) + 1);
            }
            before += (size / 4096) as usize;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn layout() -> Layout {
        Layout::new(&[
            Region { base: 16 * MIB, size: MIB + 8192, offset: 4 * MIB, page: 4096 },
            Region { base: 32 * MIB, size: 4 * MIB, offset: 0, page: 2 * MIB },
        ])
    }

    #[test]
    fn every_address_has_its_block_and_every_block_its_bytes() {
        let layout = layout();
        assert_eq!((layout.blocks(), layout.bytes(), layout.regions()), (19, 5 * MIB + 8192, 2));
        let cases = [
            (16 * MIB - 1, None),
            (16 * MIB, Some(0)),
            (16 * MIB + BLOCK, Some(1)),
            (17 * MIB + 8191, Some(16)),
            (17 * MIB + 8192, None),
            (32 * MIB, Some(17)),
            (36 * MIB - 1, Some(18)),
            (36 * MIB, None),
            (0, None),
            (u64::MAX, None),
        ];
        for (address, block) in cases {
            assert_eq!(layout.at(address), block, "{address:#x}");
        }
        let tail = Run {
            blocks: 15..17,
            address: 17 * MIB - BLOCK,
            offset: 5 * MIB - BLOCK,
            len: BLOCK + 8192,
            page: 4096,
        };
        assert_eq!(layout.run(15..17), tail);
        assert_eq!(layout.run(18..19).offset, 2 * MIB);
        let page = layout.page(16, 17 * MIB + 5000);
        assert_eq!((page.address, page.offset, page.len), (17 * MIB + 4096, 5 * MIB + 4096, 4096));
        assert_eq!(layout.page(17, 33 * MIB).address, 32 * MIB);
        for block in 0..layout.blocks() {
            let run = layout.run(block..block + 1);
            assert_eq!(layout.at(run.address), Some(block));
            assert_eq!(layout.of_file(run.offset, run.len).first(), Some(&(block..block + 1)));
        }
    }

    #[test]
    fn ranges_of_the_file_and_of_addresses_are_clipped() {
        let layout = layout();
        assert_eq!(layout.of_file(0, u64::MAX), [0..17, 17..19]);
        assert_eq!(layout.of_file(6 * MIB, MIB), Vec::<Range<usize>>::new());
        assert_eq!(layout.of_file(5 * MIB + 8191, 1).first(), Some(&(16..17)));
        assert_eq!(layout.bits(0, u64::MAX), [0..258, 258..1282]);
        assert_eq!(layout.bits(17 * MIB, 32 * MIB + 1), [256..258, 258..259]);
        assert_eq!(layout.bits(20 * MIB, 21 * MIB), Vec::<Range<usize>>::new());
    }
}
