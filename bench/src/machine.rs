//! Where and when a figure was measured: the header of every table and of every file of raw results.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::Common;

/// Names and values, in the order in which they are shown.
pub type Facts = Vec<(&'static str, String)>;

/// The facts known when a run begins. [`load`] adds the load at its end.
pub fn facts(common: &Common, covey: &Path) -> Facts {
    vec![
        ("date", today()),
        ("host", host()),
        ("kernel", said("uname", &["-srm"])),
        ("cpu", cpu()),
        ("memory", memory()),
        ("commit", said("git", &["describe", "--always", "--dirty", "--abbrev=12"])),
        ("version", said(&covey.to_string_lossy(), &["--version"])),
        ("rounds", common.rounds().to_string()),
        ("sizes", if common.quick { "quick" } else { "full" }.to_owned()),
        ("transport", common.transport.to_string()),
        ("mount options", common.options.clone().unwrap_or_else(|| "none".to_owned())),
        ("load at start", load()),
    ]
}

/// The system's load averages.
pub fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// The machine's name.
pub fn host() -> String {
    said("uname", &["-n"])
}

/// The date, as 2026-11-20 (UTC).
pub fn today() -> String {
    date(base::time::now().seconds())
}

/// A program's standard output, or "unknown".
pub fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

/// The machine's processors: number and model.
fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, name)| name)
        .collect();
    format!("{} x {}", models.len(), models.first().unwrap_or(&"unknown"))
}

fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("unknown");
    total.trim().to_owned()
}

/// The date of a time in seconds since 1970, as 2026-11-20 (proleptic Gregorian, UTC).
fn date(seconds: i64) -> String {
    // If years begin in March, the leap day is the last day. 400 years are always 146,097 days.
    let days = seconds.div_euclid(86_400) + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{of_month:02}", year + era * 400 + next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_at_their_edges() {
        for (seconds, wanted) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_132_800, "2026-11-20"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(date(seconds), wanted);
        }
    }
}
