//! `covey up`: creates and mounts a volume in one command.

use std::path::{Path, PathBuf};

use api::error::{Context, Failure, Result};
use node::again::Every;
use node::mounts;
use node::opened::Source;
use node::running::Plan;
use node::volume_dir::VolumeDir;

use crate::args::ui::Ui;
use crate::args::{Lists, Shown, Transport};
use crate::beside::Beside;
use crate::cmd::format;
use crate::daemon;
use crate::term::Term;

/// Makes a volume if there is none, mounts it, and stays with a status line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey up                                  ~/covey, kept in ~/.local/share/covey/volume\n  \
    covey up /mnt/covey --volume /srv/volume\n  covey up -d /mnt/covey                    in the background; covey umount /mnt/covey ends it\n\n\
    Ctrl-C unmounts. Nothing is lost: the next covey up shows the same files."
)]
pub struct Args {
    /// Where to mount it; made if it is not there [default: ~/covey]
    mountpoint: Option<PathBuf>,
    /// The volume's folder, or mem: [default: ~/.local/share/covey/volume]
    #[arg(long)]
    volume: Option<PathBuf>,
    #[command(flatten)]
    place: format::Place,
    /// Stay in the background once it is mounted
    #[arg(long, short = 'd')]
    background: bool,
    #[command(flatten)]
    options: Lists,
    #[command(flatten)]
    transport: Transport,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    ui: Ui,
}

/// The default path of the volume.
pub fn default_volume() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    Some(data?.join("covey/volume"))
}

fn default_mountpoint() -> Option<PathBuf> {
    Some(std::env::home_dir().filter(|path| path.is_absolute())?.join("covey"))
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let options = args.options.parse()?;
    let no_home = |what: &str| Failure::usage(format!("there is no home folder to put the {what} in"));
    let mountpoint = args.mountpoint.clone().or_else(default_mountpoint);
    let mountpoint = mountpoint.ok_or_else(|| no_home("mountpoint").next("name one: covey up MOUNTPOINT"))?;
    let volume = args.volume.clone().or_else(default_volume);
    let volume = volume.ok_or_else(|| no_home("volume").next("name one: covey up --volume FOLDER"))?;
    let source = source(&volume, &args.place, term)?;
    // The mount itself checks an existing mountpoint, or a dead mount on it.
    if mountpoint.symlink_metadata().is_err() && mounts::at(&mountpoint)?.is_none() {
        std::fs::create_dir_all(&mountpoint).at("make the mountpoint", &mountpoint)?;
        term.say(format_args!("Made the mountpoint {}.", mountpoint.display()));
    }
    let (transport, shown) = (args.transport.transport(), args.shown.shown());
    let plan =
        Plan { source, mountpoint, options, transport, shown, every: Every::never(), take_over: false };
    let beside = Beside { ui: args.ui.clone(), ..Beside::default() };
    match args.background {
        true => daemon::in_background(&plan, &beside, term),
        false => daemon::run_with_line(&plan, &beside, term),
    }
}

fn source(volume: &Path, place: &format::Place, term: Term) -> Result<Source> {
    if let Some(source) = Source::by_word(volume)? {
        return Ok(source);
    }
    if volume.join("covey.json").exists() {
        if place.is_named() {
            return Err(Failure::usage(format!(
                "{} is a volume already, and has its origin",
                volume.display()
            ))
            .next("leave --origin out, or name another folder with --volume"));
        }
        return Ok(Source::Folder(VolumeDir::open(volume)?));
    }
    let dir = format::format(volume, place)?;
    term.say(format_args!("Made the volume {}.", dir.path().display()));
    Ok(Source::Folder(dir))
}
