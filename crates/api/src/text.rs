//! Numbers, moments and names as people read them, in a table, a log or a message.

use std::borrow::Cow;

/// Bytes with a binary unit: `17 B`, `1.5 KiB`, `20.0 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with commas: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time span: `0.4 s`, `35 s`, `4 min 5 s`, `3 h 2 min`, `5 d 1 h`.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..10 => format!("{:.1} s", seconds.max(0.0)),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// Reads a time span of whole units: `90s`, `30m`, `12h`, `7d`, `2w`. A bare number is in seconds. None if it
/// is something else, nothing, or more than a hundred years.
pub fn parse_span(text: &str) -> Option<std::time::Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    let seconds = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=3_155_760_000).contains(&seconds).then(|| std::time::Duration::from_secs(seconds))
}

/// A moment as `2026-11-20T11:30:00Z`. `seconds` counts from 1970.
pub fn utc(seconds: i64) -> String {
    // SAFETY: `tm` holds numbers and a pointer that gmtime_r sets, and all zeros are a valid value of it.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers point to live values of the right types. The call keeps neither.
    if unsafe { libc::gmtime_r(&seconds, &mut parts) }.is_null() {
        return format!("{seconds} s");
    }
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec
    )
}

/// Seconds until now. 0 for a moment in the future.
pub fn seconds_since(since: base::Timestamp) -> u64 {
    u64::try_from(base::time::now().seconds() - since.seconds()).unwrap_or(0)
}

/// Whether a text may have several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// No. A line end in the text comes from a name, and would make one line look like two.
    One,
    /// Yes.
    Many,
}

/// A text that is safe to print. Control characters are escaped. So are characters that change the writing
/// direction, because with them one name can look like another.
pub fn shown(text: &str, lines: Lines) -> Cow<'_, str> {
    let is_plain = |c: char| match c {
        '\n' => lines == Lines::Many,
        '\u{200e}'
        | '\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{2028}'
        | '\u{2029}' => false,
        c => !c.is_control(),
    };
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_plain(c) => out.push(c),
            '\n' | '\r' | '\t' => out.extend(c.escape_default()),
            c if u32::from(c) < 0x100 => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1024), bytes(1536), bytes(20 << 30)],
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "20.0 GiB"]
        );
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB", "never 1024.0 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(
            [count(0), count(999), count(1_000), count(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [span(0.42), span(35.4), span(245.0), span(10_920.0)],
            ["0.4 s", "35 s", "4 min 5 s", "3 h 2 min"]
        );
    }

    #[test]
    fn moments_read_well() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    /// The name of a file that was left out could clear the reader's screen.
    #[test]
    fn regression_names_do_not_speak_to_the_terminal() {
        let one = |text| shown(text, Lines::One).into_owned();
        assert_eq!(one("a \u{e9} \u{65e5}"), "a \u{e9} \u{65e5}");
        assert_eq!(one("\x1b[2J\x07\x7f\u{9b}31m"), "\\x1b[2J\\x07\\x7f\\x9b31m");
        assert_eq!(one("a\nb\r\t"), "a\\nb\\r\\t");
        assert_eq!(one("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
        assert_eq!(shown("a\nb\x1b", Lines::Many), "a\nb\\x1b");
    }
}
