//! `covey fsck`: looks for damage, and mends it when asked.

use std::path::PathBuf;

use crate::error::Result;
use crate::term::Term;

/// Checks a volume that is not mounted, and repairs it when asked
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey fsck /srv/volume\n  covey fsck --repair /srv/volume\n\nExit status: 0 sound (or mended), 1 damage found, 2 wrong usage.")]
pub struct Args {
    /// The volume's folder
    volume: PathBuf,
    /// Mend what can be mended
    #[arg(long)]
    repair: bool,
}

/// Runs the command.
pub fn run(_args: &Args, _term: Term) -> Result<u8> {
    Ok(0)
}
