//! What the kernel says about a process.

use std::fs;

/// The highest memory use of a process so far, in KiB (`VmHWM`).
pub fn peak_rss_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

/// The current memory use of a process, in KiB (`VmRSS`).
pub fn rss_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

fn status_kib(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("0");
    line.split_whitespace().next().unwrap_or("0").parse().unwrap()
}

/// Bytes that a process caused to be written to disks (`write_bytes` of its io file), if that may be read.
pub fn bytes_written(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    Some(value("write_bytes:")? - value("cancelled_write_bytes:").unwrap_or(0))
}

/// Whether a path is a mountpoint of a FUSE filesystem.
pub fn is_fuse_mount(path: &std::path::Path) -> bool {
    // Other mounts of the machine may have names that are not UTF-8.
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let wanted = path.to_string_lossy();
    String::from_utf8_lossy(&table).lines().any(|line| {
        let (head, tail) = line.split_once(" - ").unwrap_or((line, ""));
        head.split(' ').nth(4) == Some(&*wanted) && tail.starts_with("fuse")
    })
}

/// Where each thread of a process stands: its state, the call that it makes, and, for root, where in the
/// kernel it waits. For the message of a test that waited for it in vain.
pub fn stands(pid: u32) -> String {
    let mut text = format!("process {pid}:");
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return format!("{text} is gone") };
    for task in tasks.flatten().map(|task| task.path()) {
        let of = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned();
        let status = of("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default().trim();
        text.push_str(&format!("\n  {}: {state}, call {}, {}", of("comm"), of("syscall"), of("wchan")));
        of("stack").lines().for_each(|line| text.push_str(&format!("\n    {line}")));
    }
    text
}
