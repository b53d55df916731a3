//! Scripts that run in a guest, one at a time.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a script may take if the test says nothing.
const USUAL: Duration = Duration::from_secs(120);

/// The guest's second serial port.
pub struct Console {
    lines: BufReader<UnixStream>,
}

/// What a script did.
#[derive(Debug)]
pub struct Done {
    /// Its exit status.
    pub status: i32,
    /// What it printed.
    pub text: String,
}

impl Console {
    /// Connects to QEMU, and waits until the guest has booted.
    ///
    /// # Errors
    /// Why the guest does not answer.
    pub fn open(path: &Path, patience: Duration) -> Result<Console, String> {
        let end = Instant::now() + patience;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => return Err(format!("no console: {error}")),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut console = Console { lines: BufReader::new(stream) };
        while console.line(end)?.trim() != "ready" {}
        Ok(console)
    }

    fn line(&mut self, end: Instant) -> Result<String, String> {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.lines.get_ref().set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => Err("the guest has ended".into()),
            Ok(_) => Ok(line),
            Err(error) => Err(format!("the guest does not answer: {error}")),
        }
    }

    /// Runs a script of the guest's shell.
    ///
    /// # Errors
    /// The guest ended, or the script took longer than `limit`.
    pub fn try_run(&mut self, script: &str, limit: Duration) -> Result<Done, String> {
        let end = Instant::now() + limit;
        let line = format!("{}\n", encode(script.as_bytes()));
        self.lines.get_mut().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
        let mut text = String::new();
        loop {
            let line = self.line(end)?;
            match line.trim().strip_prefix("status ") {
                Some(status) => {
                    let status = status.parse().map_err(|_| format!("no status: {line}"))?;
                    let bytes = decode(&text).ok_or(format!("no base64: {text}"))?;
                    return Ok(Done { status, text: String::from_utf8_lossy(&bytes).into_owned() });
                }
                None => text.push_str(line.trim()),
            }
        }
    }

    /// Runs a script, and returns what it did.
    pub fn run(&mut self, script: &str) -> Done {
        self.run_for(script, USUAL)
    }

    /// The same with a limit of time.
    pub fn run_for(&mut self, script: &str, limit: Duration) -> Done {
        self.try_run(script, limit).unwrap_or_else(|why| panic!("{script}: {why}"))
    }

    /// Runs a script that must succeed, and returns what it printed, without the last line's end.
    pub fn ok(&mut self, script: &str) -> String {
        self.ok_for(script, USUAL)
    }

    /// The same with a limit of time.
    pub fn ok_for(&mut self, script: &str, limit: Duration) -> String {
        let done = self.run_for(&format!("set -e\n{script}"), limit);
        assert!(done.status == 0, "{script}: status {}\n{}", done.status, done.text);
        done.text.trim_end().to_owned()
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let part = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let number = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * at) & 63) as usize] as char;
            text.push(if at <= three.len() { digit } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.bytes().filter(|byte| *byte != b'=');
    let values: Option<Vec<u32>> =
        digits.map(|byte| DIGITS.iter().position(|digit| *digit == byte).map(|at| at as u32)).collect();
    let mut bytes = Vec::new();
    for four in values?.chunks(4) {
        let part = |at: usize| four.get(at).copied().unwrap_or(0);
        let number = part(0) << 18 | part(1) << 12 | part(2) << 6 | part(3);
        bytes.extend(&number.to_be_bytes()[1..four.len().max(1)]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back() {
        for len in 0..70 {
            let bytes: Vec<u8> = (0..len).map(|at: u8| at.wrapping_mul(37)).collect();
            let text = encode(&bytes);
            assert_eq!((text.len() % 4, decode(&text)), (0, Some(bytes)));
        }
        assert_eq!(encode(b"ab"), "YWI=");
        assert_eq!(decode("a!"), None);
    }
}
