//! Measures another process, and ends one.

use std::fs;
use std::process::Child;
use std::time::Duration;

use base::time::monotonic;
use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

/// Processor time that a process and its children used so far, in seconds; 0 if it does not exist.
pub fn cpu_seconds(pid: u32) -> f64 {
    let mut ticks = 0.0;
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may contain spaces. User and system time are the 12th and 13th words after
        // it.
        let words: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let word = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
        ticks += word(11) + word(12);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        left.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// This process's processor time so far, in seconds.
pub fn own_cpu_seconds() -> f64 {
    cpu_clock(rustix::time::ClockId::ProcessCPUTime)
}

/// Processor time of this thread so far.
pub fn thread_cpu_seconds() -> f64 {
    cpu_clock(rustix::time::ClockId::ThreadCPUTime)
}

fn cpu_clock(which: rustix::time::ClockId) -> f64 {
    let clock = rustix::time::clock_gettime(which);
    clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9
}

/// A process's memory, in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The size of its address space.
    pub virtual_mib: f64,
    /// The current resident memory.
    pub resident_mib: f64,
    /// The highest resident memory since [`forget_peak`].
    pub peak_mib: f64,
}

/// The memory of a process, as the kernel counts it.
pub fn memory(pid: u32) -> Memory {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
    };
    Memory { virtual_mib: field("VmSize:"), resident_mib: field("VmRSS:"), peak_mib: field("VmHWM:") }
}

/// Resets a process's peak.
pub fn forget_peak(pid: u32) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Whether the process ends by itself in this time.
///
/// # Errors
/// Waiting for it failed.
pub fn ends_within(child: &mut Child, at_most: Duration) -> Result<bool> {
    let begun = monotonic();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > at_most {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

/// Ends a process: with SIGTERM first, then with SIGKILL.
pub fn end(child: &mut Child) {
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if !matches!(ends_within(child, Duration::from_secs(10)), Ok(true)) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_ends_when_asked() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let memory = memory(std::process::id());
        assert!(memory.virtual_mib > memory.resident_mib && memory.resident_mib > 0.1, "{memory:?}");
        assert!(!ends_within(&mut child, Duration::from_millis(5)).unwrap());
        let begun = monotonic();
        end(&mut child);
        assert!(begun.elapsed() < Duration::from_secs(9));
        assert!(cpu_seconds(child.id()).abs() < 0.001);
    }
}
