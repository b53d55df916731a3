//! `covey-attach`: mounts in a guest what `covey serve` serves on its host. One small program, for an image
//! that has nothing else.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use base::out;
use base::secret::Secret;
use covey_stream::attach::{AttachError, Options, command, device::Flags};

const HELP: &str = "\
Mounts what `covey serve` serves on another machine or on the host of this one

Usage: covey-attach [OPTIONS] ADDRESS MOUNTPOINT

ADDRESS is unix:PATH, tcp:HOST:PORT, vsock:PORT (the host of this guest) or vsock:CID:PORT.
It stays until the mount is unmounted, or until Ctrl-C.

Options:
  -o LIST               mount options: ro, nosuid, nodev, noexec
  --secret-file FILE    the secret that both ends know; needed where the server has one
  --readers N           threads that read requests from /dev/fuse [default: one per CPU, at most 8]
  --connections N       connections to the server [default: 1]
  --wait SECONDS        how long requests wait while no server answers [default: 60]
  --trace N             say of every Nth request where its time went [env: COVEY_FUSE_TRACE_RATE]
  --version, --help

Exit status: 0 done, 1 failed, 2 wrong usage, 130 ended by a signal before the server had answered.";

fn main() -> ExitCode {
    command::block_signals();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        out::line(HELP);
        return ExitCode::SUCCESS;
    }
    if words.iter().any(|word| word == "--version" || word == "-V") {
        out::line(concat!("covey-attach ", env!("CARGO_PKG_VERSION")));
        return ExitCode::SUCCESS;
    }
    let (options, mountpoint) = match parse(&words) {
        Ok(parsed) => parsed,
        Err(wrong) => {
            out::complaint(format_args!("error: {wrong}\n\ncovey-attach --help shows the options"));
            return ExitCode::from(2);
        }
    };
    let shown = mountpoint.display().to_string();
    let ready = |name: &str| out::line(format_args!("mounted {name} on {shown}; Ctrl-C ends it"));
    match command::run(
        options,
        &mountpoint,
        |line| out::complaint(format_args!("covey-attach: {line}")),
        ready,
    ) {
        Ok(ended) => match command::complaint(ended) {
            None => ExitCode::SUCCESS,
            Some(line) => {
                out::complaint(format_args!("error: {line}"));
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            out::complaint(format_args!("error: {error}"));
            match error {
                AttachError::Stopped(_) => ExitCode::from(command::INTERRUPTED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn parse(words: &[String]) -> Result<(Options, PathBuf), String> {
    let mut places = Vec::new();
    let (mut secret, mut readers, mut connections, mut wait) = (None, 0, 1, 60);
    let mut trace = trace_rate(std::env::var(command::TRACE_RATE).ok().as_deref())?;
    let mut flags = Flags::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, mut given) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value =
            || given.take().or_else(|| words.next().cloned()).ok_or(format!("{name} needs a value"));
        match name {
            "-o" => value()?.split(',').try_for_each(|one| set(&mut flags, one))?,
            "--secret-file" => {
                let path = PathBuf::from(value()?);
                secret = Some(Secret::from_file(&path).map_err(|error| error.to_string())?);
            }
            "--readers" => readers = number(name, &value()?, 64)?,
            "--connections" => connections = number(name, &value()?, 8)?,
            "--trace" => trace = number(name, &value()?, 1_000_000_000)? as u32,
            "--wait" => wait = number(name, &value()?, 86_400)?,
            _ if name.starts_with('-') => return Err(format!("there is no option {name}")),
            _ => places.push(word.clone()),
        }
    }
    let [address, mountpoint] = <[String; 2]>::try_from(places).map_err(|places| {
        format!("an address and a mountpoint are needed; {} words were given", places.len())
    })?;
    let options = Options {
        address: address.parse().map_err(|error| format!("{error}"))?,
        secret,
        readers,
        connections,
        wait: Duration::from_secs(wait as u64),
        flags,
        trace,
    };
    Ok((options, PathBuf::from(mountpoint)))
}

/// The rate that the environment names. 0: nothing is traced.
fn trace_rate(text: Option<&str>) -> Result<u32, String> {
    match text {
        None | Some("" | "0") => Ok(0),
        Some(text) => number(command::TRACE_RATE, text, 1_000_000_000).map(|rate| rate as u32),
    }
}

fn number(name: &str, text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("{name} takes a number from 1 to {most}, and not {text}"))
}

fn set(flags: &mut Flags, option: &str) -> Result<(), String> {
    match option {
        "ro" => flags.read_only = true,
        "rw" => flags.read_only = false,
        "nosuid" => flags.nosuid = true,
        "nodev" => flags.nodev = true,
        "noexec" => flags.noexec = true,
        _ => return Err(format!("there is no mount option {option}: ro, nosuid, nodev and noexec exist")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_is_read() {
        let line = "--wait=5 -o ro,nosuid unix:/run/s /mnt --connections 3";
        let (options, mountpoint) = parse(&words(line)).unwrap();
        assert_eq!((options.wait.as_secs(), options.connections), (5, 3));
        assert!(options.flags.read_only && options.flags.nosuid && !options.flags.nodev);
        assert_eq!((options.address.to_string(), mountpoint), ("unix:/run/s".into(), "/mnt".into()));
    }

    #[test]
    fn requests_are_traced_if_it_is_asked_for() {
        let (options, _) = parse(&words("--trace 100 unix:/s /mnt")).unwrap();
        assert_eq!(options.trace, 100);
        assert_eq!((trace_rate(None), trace_rate(Some("0")), trace_rate(Some("7"))), (Ok(0), Ok(0), Ok(7)));
        assert!(trace_rate(Some("often")).unwrap_err().contains("COVEY_FUSE_TRACE_RATE"));
    }

    #[test]
    fn mistakes_are_named() {
        let cases = [
            ("unix:/run/s", "mountpoint"),
            ("--wait 0 unix:/run/s /mnt", "--wait"),
            ("--connections 9 unix:/run/s /mnt", "from 1 to 8"),
            ("--wait", "needs a value"),
            ("--what 1 unix:/s /mnt", "no option --what"),
            ("--trace x unix:/s /mnt", "--trace"),
            ("-o rx unix:/s /mnt", "no mount option rx"),
            ("/run/s /mnt", "no address"),
        ];
        for (line, wanted) in cases {
            let error = parse(&words(line)).unwrap_err();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }
}
