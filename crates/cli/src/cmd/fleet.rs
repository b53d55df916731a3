//! `covey fleet`: creates what a fleet needs once, its secret.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use api::raw_path::RawPath;
use net::secret::Secret;
use serde_json::json;

use crate::term::Term;

/// What a fleet needs once: covey fleet secret FILE makes its secret
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey fleet secret /etc/covey/secret      then copy the file to every node\n  \
    covey mount s3://bucket/models@latest /mnt --listen 10.0.0.1:7171 --secret-file /etc/covey/secret\n  \
    covey mount s3://bucket/models@latest /mnt --join 10.0.0.1:7171 --listen 10.0.0.2:7171 --secret-file /etc/covey/secret"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Makes a new secret, in a file that only its owner may read
    Secret {
        /// The file; it must not be there yet
        file: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let What::Secret { file } = &args.what;
    make(file)?;
    term.result(&json!({ "file": RawPath::from(&**file) }), || {
        format!(
            "{0} holds the fleet's secret. Copy it to every node (who has it can join and read), and name it there: --secret-file {0}",
            file.display()
        )
    });
    Ok(0)
}

fn make(file: &Path) -> Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut opened = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new("exists", format!("{} is there already", file.display()))
            .why("nodes that know the secret in it could not talk to those that know a new one")
            .next("name another file, or use this one"),
        _ => Failure::io(format!("cannot make {}", file.display()), &error),
    })?;
    let written = opened.write_all(format!("{}\n", Secret::generate_text()).as_bytes());
    written
        .and_then(|()| opened.sync_all())
        .map_err(|error| Failure::io(format!("cannot write {}", file.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_made_once_and_can_be_used() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("secret");
        make(&file).unwrap();
        let key = Secret::from_file(&file).unwrap().key("x");
        assert_eq!(make(&file).unwrap_err().code, "exists");
        assert_eq!(Secret::from_file(&file).unwrap().key("x"), key);
    }
}
