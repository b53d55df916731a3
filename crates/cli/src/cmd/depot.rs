//! `covey depot`: runs the cache server of a zone. There is no mount. A signal ends it.

use api::error::Result;
use net::id::Role;

use crate::args::fleet::Lent;
use crate::lending;
use crate::term::Term;

/// Serves a zone's nodes from a disk of its own: what they ask for is fetched from the origin once and kept
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey depot --origin s3://bucket/models --cache /srv/depot --size 500G --listen 10.0.0.9:7171 --secret-file /etc/covey/secret\n  \
    covey depot --origin s3://bucket/models --cache /srv/depot --join 10.0.0.1:7171 --listen 10.0.0.9:7171 --secret-file /etc/covey/secret\n\n\
    Several depots of a zone share what there is by their weights. It stays until SIGTERM or Ctrl-C; covey status FOLDER and covey peers FOLDER \
    say what it did and who is there. covey warm --depot fills it before anybody reads."
)]
pub struct Args {
    #[command(flatten)]
    options: Lent,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    lending::run(&args.options.options(), Role::Depot, term)
}
