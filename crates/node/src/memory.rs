//! This process's memory: how much it holds, and returning what it does not use.

/// The memory of this process, in bytes.
pub struct Memory {
    /// Held now.
    pub now: u64,
    /// The most ever held.
    pub peak: u64,
}

impl Memory {
    /// Reads the kernel's figures.
    pub fn now() -> Memory {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
        };
        Memory { now: field("VmRSS:"), peak: field("VmHWM:") }
    }
}

/// Returns memory to the system that was freed and lies unused in the C library's heap.
///
/// The library itself returns only memory at the end of a heap. Metadata is allocated and freed in small
/// pieces. After a tree is removed, its pages would stay in this process for good, below the few pieces that
/// are still in use.
#[derive(Default)]
pub struct Trimmer {
    /// Unused bytes at the last attempt that could not be returned, or that are used again since.
    stuck: usize,
}

impl Trimmer {
    /// At least this much must be unused before it is worth searching the heap.
    const WORTH: usize = 8 << 20;

    /// A trimmer that has not run yet.
    pub fn new() -> Trimmer {
        Trimmer::default()
    }

    /// Call it from time to time, from a thread on which nothing waits. Returns whether memory was returned.
    pub fn tick(&mut self) -> bool {
        blob::stock::tidy();
        let unused = unused_heap();
        self.stuck = self.stuck.min(unused);
        if unused - self.stuck < Self::WORTH {
            return false;
        }
        trim_heap();
        self.stuck = unused_heap();
        true
    }
}

/// Free bytes of the heap, including those whose pages were already returned.
#[cfg(target_env = "gnu")]
fn unused_heap() -> usize {
    // SAFETY: mallinfo2(3) takes nothing and locks the data that it reads.
    unsafe { libc::mallinfo2() }.fordblks
}

#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn unused_heap() -> usize {
    0
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn freed_pieces_between_pieces_in_use_go_back() {
        let held = || Memory::now().now;
        let mut trimmer = Trimmer::new();
        trimmer.tick();
        let mut pieces: Vec<Vec<u8>> = (0..400_000).map(|_| vec![1; 200]).collect();
        let full = held();
        // Keep one in a thousand.
        pieces =
            pieces.into_iter().enumerate().filter(|(at, _)| at % 1000 == 0).map(|(_, piece)| piece).collect();
        assert!(trimmer.tick(), "80 MB were freed");
        assert!(held() + (40 << 20) < full, "{} of {full} are still held", held());
        assert_eq!(pieces.len(), 400);
    }
}
