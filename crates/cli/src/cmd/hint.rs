//! `covey hint`: says how programs read files and which stay on this machine, and shows what was said.

use std::path::{Path, PathBuf};

use api::answers::Hint;
use api::control::Request;
use api::error::{Failure, Result};
use fs::access::{ATTRIBUTE, DO_NOT_KEEP, KEEP, KEEP_ATTRIBUTE};
use node::control;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde::Serialize;

use crate::target::{Place, Target, resolve};
use crate::term::Term;

/// Says how programs read files of a remote origin, or which stay on this disk; or shows what applies
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey hint random /mnt/covey/embeddings      few records at random places: fetch only what is read\n  \
    covey hint sequential /mnt/covey/weights     from beginning to end: prefetch from the first read on\n  \
    covey hint keep /mnt/covey/index             what was read stays on this disk, up to half of the cache\n  \
    covey hint normal /mnt/covey/embeddings      no hint: Covey finds out\n  \
    covey hint /mnt/covey/embeddings/a.npy       what applies to this file, and why\n\n\
    A hint of a folder is for everything below it that has none of its own. It is stored with the files, so that published trees carry\n\
    it. Set hints before you publish: published trees cannot be changed. `keep` goes with each of random and sequential; normal\n\
    removes all hints."
)]
pub struct Args {
    /// random, sequential, keep or normal, and then files and folders on a mount; without such a word, what
    /// applies to them is shown
    #[arg(required = true, value_name = "HINT|PATH")]
    words: Vec<PathBuf>,
}

/// What a word says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// A value of the attribute for access.
    Access(&'static str),
    Keep,
    /// No hint at all.
    Nothing,
}

const WORDS: [(&str, Said); 5] = [
    ("random", Said::Access("random")),
    ("sequential", Said::Access("stream")),
    ("stream", Said::Access("stream")),
    ("keep", Said::Keep),
    ("normal", Said::Nothing),
];

#[derive(Debug, Serialize)]
struct Set<'a> {
    path: &'a Path,
    /// The value of the attribute for access now.
    attribute: Option<String>,
    /// The value of the attribute for what is kept.
    keep: Option<String>,
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
        Some((_, said)) => set(*said, rest, term),
        None => show(&args.words, term),
    }
}

fn no_path(word: &str) -> Failure {
    Failure::usage(format!("covey hint {word} names no file or folder"))
        .next(format!("name some on a mount: covey hint {word} PATH..."))
        .next(format!("to see what applies to a file of that name: covey hint ./{word}"))
}

fn set(said: Said, paths: &[PathBuf], term: Term) -> Result<u8> {
    let mut done = Vec::new();
    for path in paths {
        let place = mounted(path)?;
        match said {
            Said::Access(value) => write(path, ATTRIBUTE, value.as_bytes(), &place)?,
            Said::Keep => write(path, KEEP_ATTRIBUTE, KEEP, &place)?,
            Said::Nothing => {
                remove(path, ATTRIBUTE, b"normal", &place)?;
                remove(path, KEEP_ATTRIBUTE, DO_NOT_KEEP, &place)?;
            }
        }
        let now = |name| attribute(path, name).map(|value| String::from_utf8_lossy(&value).into_owned());
        done.push(Set { path, attribute: now(ATTRIBUTE), keep: now(KEEP_ATTRIBUTE) });
    }
    term.result(&done, || done.iter().map(line).collect::<Vec<_>>().join("\n"));
    Ok(0)
}

/// What is set on a path now.
fn line(set: &Set<'_>) -> String {
    let access = match set.attribute.as_deref() {
        Some("stream") => Some("sequential"),
        other => other,
    };
    let keep = set.keep.as_deref().map(|keep| if keep.as_bytes() == KEEP { "keep" } else { "not kept" });
    match [access, keep].into_iter().flatten().collect::<Vec<_>>()[..] {
        [] => format!("{}: normal, no hint is set", set.path.display()),
        ref words => format!("{}: {}", set.path.display(), words.join(", ")),
    }
}

fn write(path: &Path, name: &[u8], value: &[u8], place: &Place) -> Result<()> {
    setxattr(path, name, value, XattrFlags::empty()).map_err(|errno| refused(errno, path, place))
}

/// Removes an attribute. If one of a folder above would apply then, sets it to `none` instead.
fn remove(path: &Path, name: &[u8], none: &[u8], place: &Place) -> Result<()> {
    match removexattr(path, name) {
        Ok(()) | Err(Errno::NODATA) => {}
        Err(errno) => return Err(refused(errno, path, place)),
    }
    let above = |folder: &&Path| folder.starts_with(&place.mount.path);
    let folders = place.path.ancestors().skip(1).take_while(above);
    let hinted = folders.filter_map(|folder| attribute(folder, name)).next();
    if hinted.is_none_or(|hint| hint == none) { Ok(()) } else { write(path, name, none, place) }
}

fn attribute(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = [0; 16];
    let len = getxattr(path, name, &mut value[..]).ok()?;
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
        errno => place.explained(Failure::io(what, &errno.into())),
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
            let keep = match (hint.keep, &hint.keep_why) {
                (true, Some(why)) => format!("; kept on this disk, {why}"),
                (false, Some(why)) => format!("; not kept, {why}"),
                _ => String::new(),
            };
            format!("{}: {access}, {}{keep}{effect}", path.display(), hint.why)
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
