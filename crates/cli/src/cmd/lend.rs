//! `covey lend`: a member of a fleet without a mount. It lends its disk to the other nodes. A signal ends it.

use api::error::Result;
use net::id::Role;

use crate::args::fleet::Lent;
use crate::lending;
use crate::term::Term;

/// Lends a disk to a fleet without mounting anything: it keeps copies of what its zone's nodes have, and
/// gives them away
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey lend --origin s3://bucket/models --cache /srv/lent --size 200G --join 10.0.0.1:7171 --listen 10.0.0.8:7171 --secret-file /etc/covey/secret\n\n\
    It is a node like those that mount, and no depot: what nobody in the zone has it does not fetch. Of the zone's blobs it keeps its share by --weight, \
    as long as there is room. The folder may be one that a mount had as its cache (VOLUME below --cache DIR): what is in it goes on being lent. It stays \
    until SIGTERM or Ctrl-C; covey status FOLDER says what it did."
)]
pub struct Args {
    #[command(flatten)]
    options: Lent,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    lending::run(&args.options.options(), Role::Node, term)
}
