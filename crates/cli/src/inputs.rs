//! Random changes to the inputs that other programs or people write: requests at the control socket, mount
//! options, configuration files. The decoders of the lower crates are tested in fuzz/src/targets.rs. This
//! crate is a program and has no library that a fuzz target could link to.

use std::path::Path;

use api::control::Request;
use api::raw_path::RawPath;
use clap::CommandFactory;
use node::options::MountOptions;
use proptest::prelude::*;

use crate::config::file;
use crate::config::known::Known;

/// A text into which parts of others are inserted, or from which parts are cut, or in which parts are
/// exchanged.
fn changed(seeds: &'static [&'static str]) -> impl Strategy<Value = String> {
    let change =
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::sample::select(seeds), 0..5u8);
    (prop::sample::select(seeds), proptest::collection::vec(change, 0..6)).prop_map(|(seed, changes)| {
        let mut text: Vec<char> = seed.chars().collect();
        for (from, to, other, how) in changes {
            let (from, to) = (from.index(text.len() + 1), to.index(text.len() + 1));
            let part = from.min(to)..from.max(to);
            let other: Vec<char> = other.chars().collect();
            match how {
                0 => drop(text.drain(part)),
                1 => drop(text.splice(part, other)),
                2 => text.truncate(from),
                3 => text.extend(other),
                // Numbers at their limits, and characters that no keyboard types.
                _ => drop(text.splice(part, "18446744073709551616\u{0}\u{202e}\u{1b}".chars())),
            }
        }
        text.into_iter().collect()
    })
}

const REQUESTS: &[&str] = &[
    r#"{"op":"status"}"#,
    r#"{"op":"info","path":"a/b","list":true}"#,
    r#"{"op":"clone","from":[255,47,0],"to":"x"}"#,
    r#"{"op":"publish","path":"","name":"main","afresh":false}"#,
    r#"{"op":"settle","seconds":5}"#,
    r#"{"op":"evict","to":null}"#,
    r#"{"op":"warm","paths":["a",[1,2]],"depot":true}"#,
    r#"{"op":"watch","wish":{"stats":{"interval_ms":100}}}"#,
];

const OPTIONS: &[&str] = &[
    "ro,commit=5,atime=relatime",
    "writeback=on,read_ahead=1024,deadline=60",
    "nosuid,nodev,noexec,allow_other,frozen",
    "x-systemd.automount,_netdev,defaults,helper=covey",
    "cache_size=10G,cache_floor=5%,uploads=8",
];

const FILES: &[&str] = &[
    "[mount]\ncommit = 5\nwriteback = \"on\"\n",
    "[volume.\"/srv/v\"]\nendpoint = \"http://127.0.0.1:9000\"\n",
    "[log]\nlevel = \"debug\"\n[origin]\nregion = \"x\"\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_read_or_refused(text in changed(REQUESTS)) {
        if let Ok(request) = serde_json::from_str::<Request>(&text) {
            let again = serde_json::to_string(&request).unwrap();
            prop_assert_eq!(serde_json::from_str::<Request>(&again).unwrap(), request);
        }
        if let Ok(path) = serde_json::from_str::<RawPath>(&text) {
            // Any path is allowed here. It is relative to the volume, or lookup refuses it.
            let _ = std::path::PathBuf::from(path);
        }
    }

    #[test]
    fn mount_options_are_read_or_refused(text in changed(OPTIONS)) {
        if let Err(failure) = MountOptions::parse([&text]) {
            prop_assert!(!failure.what.is_empty());
            prop_assert!(!failure.to_string().contains('\u{1b}'), "{}", failure);
        }
    }

    #[test]
    fn configuration_files_are_read_or_refused(text in changed(FILES)) {
        let known = Known::of(&crate::Cli::command());
        if let Err(failure) = file::read(Path::new("covey.toml"), &text, &known) {
            prop_assert!(!failure.to_string().contains('\u{1b}'), "{}", failure);
        }
    }
}
