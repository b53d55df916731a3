//! `covey hint`: says how programs read files, and shows what was said.

use std::path::{Path, PathBuf};

use api::answers::Hint;
use api::control::Request;
use api::error::{Failure, Result};
use fs::access::ATTRIBUTE;
use node::control;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde::Serialize;

use crate::target::{Place, Target, resolve};
use crate::term::Term;

/// Says how programs read files of a remote origin: random, sequential or normal; or shows what applies
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey hint random /mnt/covey/embeddings      few records at random places: fetch only what is read\n  \
    covey hint sequential /mnt/covey/weights     from beginning to end: prefetch from the first read on\n  \
    covey hint normal /mnt/covey/embeddings      no hint: Covey finds out\n  \
    covey hint /mnt/covey/embeddings/a.npy       what applies to this file, and why\n\n\
    A hint of a folder is for everything below it that has none of its own. It is stored with the files, so that published trees carry\n\
    it. Set hints before you publish: published trees cannot be changed."
)]
pub struct Args {
    /// random, sequential or normal, and then files and folders on a mount; without such a word, what
    /// applies to them is shown
    #[arg(required = true, value_name = "HINT|PATH")]
    words: Vec<PathBuf>,
}

/// The words, and the values of the attribute. None: no hint.
const WORDS: [(&str, Option<&str>); 4] = [
    ("random", Some("random")),
    ("sequential", Some("stream")),
    ("stream", Some("stream")),
    ("normal", None),
];

#[derive(Debug, Serialize)]
struct Set<'a> {
    path: &'a Path,
    /// The value of the attribute now.
    attribute: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    path: &'a Path,
    #[serde(flatten)]
    hint: Hint,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let (first, rest) = args.words.split_first().ok_or_else(|| no_path("random"))?;
    let word = first.to_str().and_then(|first| WORDS.iter().find(|(word, _)| *word == first));
    match word {
        Some((word, _)) if rest.is_empty() => Err(no_path(word)),
        Some((_, value)) => set(*value, rest, term),
        None => show(&args.words, term),
    }
}

fn no_path(word: &str) -> Failure {
    Failure::usage(format!("covey hint {word} names no file or folder"))
        .next(format!("name some on a mount: covey hint {word} PATH..."))
        .next(format!("to see what applies to a file of that name: covey hint ./{word}"))
}

fn set(value: Option<&str>, paths: &[PathBuf], term: Term) -> Result<u8> {
    let mut done = Vec::new();
    for path in paths {
        let place = mounted(path)?;
        done.push(Set { path, attribute: set_one(value, path, &place)? });
    }
    term.result(&done, || {
        let line = |set: &Set<'_>| match set.attribute {
            Some("stream") => format!("{}: sequential", set.path.display()),
            Some(attribute) => format!("{}: {attribute}", set.path.display()),
            None => format!("{}: normal, no hint is set", set.path.display()),
        };
        done.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

/// Sets or removes the attribute. Returns its value then.
fn set_one<'a>(value: Option<&'a str>, path: &Path, place: &Place) -> Result<Option<&'a str>> {
    let refused = |errno: Errno| refused(errno, path, place);
    let Some(value) = value else {
        match removexattr(path, ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(refused(errno)),
        }
        // Without an attribute, the hint of a folder above would apply.
        let above = |folder: &&Path| folder.starts_with(&place.mount.path);
        let folders = place.path.ancestors().skip(1).take_while(above);
        let hinted = folders.filter_map(attribute).next();
        if hinted.is_none_or(|hint| hint == b"normal") {
            return Ok(None);
        }
        let set = setxattr(path, ATTRIBUTE, b"normal", XattrFlags::empty());
        return set.map(|()| Some("normal")).map_err(refused);
    };
    let set = setxattr(path, ATTRIBUTE, value.as_bytes(), XattrFlags::empty());
    set.map(|()| Some(value)).map_err(refused)
}

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 16];
    let len = getxattr(path, ATTRIBUTE, &mut value[..]).ok()?;
    value.get(..len).map(<[u8]>::to_vec)
}

fn refused(errno: Errno, path: &Path, place: &Place) -> Failure {
    let what = format!("cannot set a hint for {}", path.display());
    match errno {
        Errno::ROFS if api::source::tree(&place.mount.source).is_some() => {
            Failure::new("read-only", what).why("a published tree cannot be changed").next(
                "set the hint on the volume, then publish again; for this mount alone: -o random=NAME, stream=NAME",
            )
        }
        Errno::ROFS => Failure::new("read-only", what)
            .why("the volume is mounted read-only")
            .next("mount it without -o ro and -o frozen; for this mount alone: -o random=NAME, stream=NAME"),
        Errno::PERM if !path.is_file() && !path.is_dir() => {
            Failure::usage(what).why("only files and folders have hints")
        }
        Errno::ACCESS | Errno::PERM => Failure::new("not-permitted", what)
            .why("only users who may write to it can do that")
            .next("run it as its owner, or as root"),
        errno => Failure::io(what, &errno.into()),
    }
}

fn show(paths: &[PathBuf], term: Term) -> Result<u8> {
    let mut shown = Vec::new();
    for path in paths {
        let place = mounted(path)?;
        let request = Request::Hint { path: place.inner().into() };
        shown.push(Shown { path, hint: control::ask(&place.address(), &request, &mut |_| ())? });
    }
    term.result(&shown, || {
        let line = |Shown { path, hint }: &Shown<'_>| {
            let access = if hint.access == "stream" { "sequential" } else { &hint.access };
            let effect =
                if hint.remote { "" } else { "; without effect, because the origin is on this machine" };
            format!("{}: {access}, {}{effect}", path.display(), hint.why)
        };
        shown.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

fn mounted(path: &Path) -> Result<Place> {
    match resolve(path)? {
        Target::Mounted(place) => Ok(place),
        Target::Closed { dir, .. } => {
            Err(Failure::new("not-mounted", format!("the volume {} is not mounted", dir.path().display()))
                .next(format!("mount it first: covey mount {} MOUNTPOINT", dir.path().display())))
        }
    }
}
