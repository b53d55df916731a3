//! Arguments of `covey mount` and `covey serve` that are for other kinds of sources than the one named. They
//! are refused: a person that types one expects something of it.
//!
//! What comes from a configuration file is not refused. It is there for all mounts of a machine.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use clap::ArgMatches;
use clap::parser::ValueSource;
use node::opened::Source;
use node::shared::making;

/// The arguments that only a published tree has.
const OF_TREES: [&str; 4] = ["key", "accept_older", "endpoint", "region"];
/// The argument that trees and shared volumes have.
const CACHE: &str = "cache";

/// Checks what was typed.
///
/// # Errors
/// An argument would have no effect.
pub fn check(typed: &ArgMatches) -> Result<()> {
    let Some((command, arguments)) = typed.subcommand() else { return Ok(()) };
    let source = match command {
        "mount" => arguments.get_one::<PathBuf>("volume"),
        "serve" => arguments.get_one::<PathBuf>("source"),
        _ => None,
    };
    let Some(source) = source else { return Ok(()) };
    let Some(unused) = unused(source) else { return Ok(()) };
    let was_typed = |id: &&str| arguments.value_source(id) == Some(ValueSource::CommandLine);
    let Some(id) = unused.iter().find(|id| was_typed(id)) else { return Ok(()) };
    let option = format!("--{}", id.replace('_', "-"));
    let whose =
        if *id == CACHE { "published trees and addresses of shared volumes" } else { "published trees" };
    Err(Failure::usage(format!("{option} has no effect on {}", source.display()))
        .why(format!("it is for {whose}"))
        .next(format!("leave {option} out")))
}

/// The arguments that have no effect on a source. `None`: all have, or the source is no source at all, which
/// the command itself says better.
fn unused(source: &Path) -> Option<&'static [&'static str]> {
    const NONE_HAS: [&str; 5] = [CACHE, OF_TREES[0], OF_TREES[1], OF_TREES[2], OF_TREES[3]];
    if making::is_address(source) {
        return Some(&OF_TREES);
    }
    match Source::by_word(source) {
        Ok(Some(Source::Published(_))) | Err(_) => None,
        Ok(_) => Some(&NONE_HAS),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn checked(words: &str) -> Result<()> {
        let typed = crate::Cli::command().try_get_matches_from(words.split(' ')).unwrap();
        check(&typed)
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        let shared = "postgres://a@b/c?volume=d";
        for source in ["mem:", "corpus:7,10,64K", "/srv/volume", shared] {
            for argument in ["--endpoint http://e", "--region r", "--key k", "--accept-older", "--cache /c"] {
                let is_used = source == shared && argument.starts_with("--cache");
                for words in [
                    format!("covey mount {argument} {source} /mnt"),
                    format!("covey serve {argument} {source} --on unix:/s"),
                ] {
                    let failed = checked(&words).err().map(|failure| failure.status);
                    assert_eq!(failed, (!is_used).then_some(2), "{words}");
                }
            }
        }
        for words in [
            "covey mount --endpoint http://e --region r --key k --accept-older --cache /c s3://b/p@n /mnt",
            "covey serve --endpoint http://e --cache /c s3://b/p@n --on unix:/s",
            "covey mount /srv/volume /mnt",
            "covey status /mnt",
        ] {
            assert!(checked(words).is_ok(), "{words}");
        }
    }
}
