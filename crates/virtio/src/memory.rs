//! The guest's memory, mapped into this process.
//!
//! The VMM gives files with memory, each with two addresses: the guest's (which descriptors use) and its own
//! (which it uses for the rings). A change of the memory makes a new [`Memory`]. Requests that are being
//! served keep the one they began with.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// The mapped memory of a guest.
pub type Memory = GuestMemoryMmap<()>;

/// The most regions: what QEMU can have.
pub const REGIONS_MOST: usize = 509;

/// One range, with both addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    guest: u64,
    vmm: u64,
    len: u64,
}

/// All memory that the VMM has given.
#[derive(Default)]
pub struct Table {
    ranges: Vec<Range>,
    memory: Arc<Memory>,
}

impl Table {
    /// The memory as it is now.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Takes these regions in place of all others.
    ///
    /// # Errors
    /// A file cannot be mapped, regions overlap, or there are too many. Nothing has changed then.
    pub fn replace(&mut self, regions: &[VhostUserMemoryRegion], files: Vec<File>) -> io::Result<()> {
        if regions.len() != files.len() {
            return Err(io::Error::other("it gives another number of files than of regions"));
        }
        let mut new = Table::default();
        for (region, file) in regions.iter().zip(files) {
            new.add(region, file)?;
        }
        *self = new;
        Ok(())
    }

    /// Adds a region.
    ///
    /// # Errors
    /// As [`Table::replace`].
    pub fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> io::Result<()> {
        if self.ranges.len() >= REGIONS_MOST {
            return Err(io::Error::other(format!("it has more than {REGIONS_MOST} regions")));
        }
        let len = usize::try_from(region.memory_size).map_err(io::Error::other)?;
        let (found, end) = (file.metadata()?, region.mmap_offset.saturating_add(region.memory_size));
        // Memory behind a file's end can be mapped, and kills the process that touches it.
        if found.is_file() && found.len() < end {
            return Err(io::Error::other("a region is larger than its file"));
        }
        let from = FileOffset::new(file, region.mmap_offset);
        let mapped = GuestRegionMmap::from_range(GuestAddress(region.guest_phys_addr), len, Some(from));
        let mapped = Arc::new(mapped.map_err(io::Error::other)?);
        self.memory = Arc::new(self.memory.insert_region(mapped).map_err(io::Error::other)?);
        let (guest, vmm) = (region.guest_phys_addr, region.user_addr);
        self.ranges.push(Range { guest, vmm, len: region.memory_size });
        Ok(())
    }

    /// Removes a region.
    ///
    /// # Errors
    /// There is no such region.
    pub fn remove(&mut self, region: &VhostUserMemoryRegion) -> io::Result<()> {
        let start = GuestAddress(region.guest_phys_addr);
        let removed = self.memory.remove_region(start, region.memory_size);
        self.memory = Arc::new(removed.map_err(io::Error::other)?.0);
        self.ranges.retain(|range| range.guest != region.guest_phys_addr);
        Ok(())
    }

    /// The guest's address of what has this address in the VMM.
    pub fn guest_address(&self, vmm: u64) -> Option<u64> {
        let range =
            self.ranges.iter().find(|range| vmm.checked_sub(range.vmm).is_some_and(|at| at < range.len));
        range.map(|range| range.guest + (vmm - range.vmm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn addresses_of_the_vmm_become_the_guests() {
        let region = |guest, vmm, offset| VhostUserMemoryRegion::new(guest, 0x1000, vmm, offset);
        let mut table = Table::default();
        table.replace(&[region(0, 0x7000_0000, 0)], vec![file(0x1000)]).unwrap();
        table.add(&region(0x1_0000, 0x7100_0000, 0x1000), file(0x2000)).unwrap();
        for (vmm, guest) in [
            (0x7000_0000, Some(0)),
            (0x7000_0fff, Some(0xfff)),
            (0x7000_1000, None),
            (0x6fff_ffff, None),
            (0x7100_0010, Some(0x1_0010)),
            (u64::MAX, None),
        ] {
            assert_eq!(table.guest_address(vmm), guest, "{vmm:x}");
        }
        let before = table.memory();
        assert!(table.add(&region(0x800, 0, 0), file(0x1000)).is_err(), "it overlaps");
        assert!(table.add(&region(0x9_0000, 0, 0), file(0xfff)).is_err(), "the file is too short");
        assert!(table.replace(&[region(0, 0, 0)], Vec::new()).is_err());
        assert!(Arc::ptr_eq(&before, &table.memory()), "nothing changed");
        table.remove(&region(0, 0, 0)).unwrap();
        assert!(table.remove(&region(0, 0, 0)).is_err() && table.guest_address(0x7000_0000).is_none());
        assert_eq!(table.guest_address(0x7100_0000), Some(0x1_0000));
    }

    /// Each region takes a descriptor and a mapping of the server, and a VMM could add them without end.
    #[test]
    fn regression_the_number_of_regions_has_a_bound() {
        let region = |at: u64| VhostUserMemoryRegion::new(at * 0x1000, 0x1000, at * 0x1000, 0);
        let (mut table, file) = (Table::default(), file(0x1000));
        for at in 0..REGIONS_MOST as u64 {
            table.add(&region(at), file.try_clone().unwrap()).unwrap();
        }
        let next = region(REGIONS_MOST as u64);
        assert!(table.add(&next, file.try_clone().unwrap()).is_err());
        table.remove(&region(7)).unwrap();
        table.add(&next, file).unwrap();
    }
}
