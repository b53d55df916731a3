//! The steps: the work on a program's tree on a place, and how long it takes.
//!
//! ```text
//! light rounds   clone, git status, walk cold, walk warm, archive, untar, rm -rf
//! build rounds   (clone, archive, untar) configure, build, run, git status; the same from the archive,
//!                without git; rm -rf
//! ```
//!
//! A clone uses git's own protocol (`--no-local`), as from another machine: git writes the pack as it arrives
//! and indexes it, instead of copying files. After a clone for a build, every file gets the same time. A
//! release contains generated files, and make would regenerate some of them, depending on which file was
//! checked out a little later.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::time::monotonic;

use super::place::Place;
use super::recipes::Recipe;
use super::shell::Shell;
use crate::Result;

/// The settings that all steps share.
pub struct Setting {
    /// The folder of the repositories.
    pub mirrors: PathBuf,
    /// The folder for logs.
    pub logs: PathBuf,
    /// The number of jobs for `make -j`.
    pub jobs: usize,
    /// Flags for compilers.
    pub cflags: String,
}

/// The results of a step.
#[derive(Debug, Default)]
pub struct Found {
    /// How long it took.
    pub spent: Duration,
    /// The number of files and folders walked, and of bytes in files.
    pub walked: Option<(u64, u64)>,
    /// The output of `git status`.
    pub git_status: Option<String>,
}

/// One step.
pub struct Step {
    /// Its name in tables and raw results.
    pub name: &'static str,
    work: fn(&Work, &mut Place) -> Result<Found>,
}

impl Step {
    /// Runs the step.
    ///
    /// # Errors
    /// The step failed, or the daemon has ended.
    pub fn run(&self, setting: &Setting, recipe: &Recipe, place: &mut Place) -> Result<Found> {
        place.must_live()?;
        let log = setting.logs.join(format!("{}-{}.log", recipe.name, place.kind.name()));
        (self.work)(&Work { setting, recipe, log }, place)
    }
}

/// The steps of a light round, in order.
pub const LIGHT: &[Step] = &[
    Step { name: "clone", work: clone },
    Step { name: "git status", work: |work, place| git_status(work, place, true) },
    Step { name: "walk, cold", work: |_, place| walk(place, true) },
    Step { name: "walk, warm", work: |_, place| walk(place, false) },
    Step { name: "archive", work: archive },
    Step { name: "untar", work: untar },
    Step { name: "rm -rf", work: remove },
];

/// The steps of a build from a clone, in order.
pub const BUILD: &[Step] = &[
    Step { name: "prepare", work: prepare },
    Step { name: "configure", work: |work, place| configure(work, place, CLONE) },
    Step { name: "build", work: |work, place| build(work, place, CLONE) },
    Step { name: "run", work: |work, place| check(work, place, CLONE) },
    Step { name: "git status, built", work: |work, place| git_status(work, place, false) },
    Step { name: "rm -rf, built", work: remove },
];

/// The steps of a build without git, in order.
pub const ARCHIVE_BUILD: &[Step] = &[
    Step { name: "prepare archive", work: prepare_archive },
    Step { name: "archive: configure", work: |work, place| configure(work, place, TREE) },
    Step { name: "archive: build", work: |work, place| build(work, place, TREE) },
    Step { name: "archive: run", work: |work, place| check(work, place, TREE) },
    Step { name: "archive: rm -rf, built", work: remove },
];

const CLONE: &str = "clone";
const TREE: &str = "tree";
const ARCHIVE: &str = "archive.tar";
const RUN: &str = "run";

struct Work<'a> {
    setting: &'a Setting,
    recipe: &'a Recipe,
    log: PathBuf,
}

impl Work<'_> {
    fn bash(&self, folder: &Path, env: &[(&'static str, String)], lines: &str) -> Result<Found> {
        let spent = Shell { folder, log: &self.log, env }.run(lines)?;
        Ok(Found { spent, ..Found::default() })
    }

    /// Runs lines of the recipe in a tree of the place.
    fn in_tree(&self, place: &Place, tree: &str, lines: &str) -> Result<Found> {
        let run = place.root().join(RUN);
        fs::create_dir_all(&run)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let env = [
            ("JOBS", self.setting.jobs.to_string()),
            ("CFLAGS", self.setting.cflags.clone()),
            ("RUN", run.display().to_string()),
            ("PORT", port.to_string()),
        ];
        // Lines use CFLAGS by name. If it were exported, it would override what a configure script determines
        // itself.
        self.bash(&place.root().join(tree), &env, &format!("export -n CFLAGS\n{lines}"))
    }
}

fn clone(work: &Work, place: &mut Place) -> Result<Found> {
    let from = work.setting.mirrors.join(format!("{}.git", work.recipe.name));
    let lines = format!("git -c safe.directory='*' clone -q --no-local '{}' {CLONE}", from.display());
    work.bash(place.root(), &[], &lines)
}

fn git_status(work: &Work, place: &mut Place, clean: bool) -> Result<Found> {
    let folder = place.root().join(CLONE);
    let lines = "git -c core.quotePath=false status --porcelain --untracked-files=all";
    let mut found = work.bash(&folder, &[], lines)?;
    let said = Shell { folder: &folder, log: &work.log, env: &[] }.said()?;
    if clean && !said.is_empty() {
        return Err(format!("a fresh clone is not clean: {said}").into());
    }
    // Python's build creates folders named after the full path of its sources.
    let root = place.root().to_string_lossy();
    found.git_status = Some(said.replace(root.trim_start_matches('/'), "PLACE"));
    Ok(found)
}

fn archive(work: &Work, place: &mut Place) -> Result<Found> {
    work.bash(place.root(), &[], &format!("tar -C {CLONE} --exclude=./.git -cf {ARCHIVE} ."))
}

fn untar(work: &Work, place: &mut Place) -> Result<Found> {
    work.bash(place.root(), &[], &format!("mkdir {TREE}; tar -C {TREE} -xf {ARCHIVE}"))
}

fn remove(work: &Work, place: &mut Place) -> Result<Found> {
    work.bash(place.root(), &[], &format!("rm -rf {CLONE} {TREE} {ARCHIVE} {RUN}"))
}

fn prepare(work: &Work, place: &mut Place) -> Result<Found> {
    let began = monotonic();
    clone(work, place)?;
    let lines = "git ls-files -z | xargs -0 touch --no-create --no-dereference --date=2023-06-10T12:00:00Z";
    work.bash(&place.root().join(CLONE), &[], lines)?;
    Ok(Found { spent: began.elapsed(), ..Found::default() })
}

fn prepare_archive(work: &Work, place: &mut Place) -> Result<Found> {
    let began = monotonic();
    prepare(work, place)?;
    archive(work, place)?;
    untar(work, place)?;
    work.bash(place.root(), &[], &format!("rm -rf {CLONE} {ARCHIVE}"))?;
    Ok(Found { spent: began.elapsed(), ..Found::default() })
}

fn configure(work: &Work, place: &mut Place, tree: &str) -> Result<Found> {
    work.in_tree(place, tree, work.recipe.configure)
}

fn build(work: &Work, place: &mut Place, tree: &str) -> Result<Found> {
    work.in_tree(place, tree, work.recipe.build)
}

fn check(work: &Work, place: &mut Place, tree: &str) -> Result<Found> {
    work.in_tree(place, tree, work.recipe.check)
}

/// Reads the attributes of every name below the clone, as find and make do.
fn walk(place: &mut Place, cold: bool) -> Result<Found> {
    if cold {
        place.make_cold()?;
    }
    let began = monotonic();
    let mut walked = (0, 0);
    walk_below(&place.root().join(CLONE), &mut walked)?;
    Ok(Found { spent: began.elapsed(), walked: Some(walked), git_status: None })
}

fn walk_below(folder: &Path, walked: &mut (u64, u64)) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        walked.0 += 1;
        if meta.is_dir() {
            walk_below(&path, walked)?;
        } else if meta.is_file() {
            walked.1 += meta.len();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_counts_what_lies_deep() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        fs::write(scratch.path().join("a/b/file"), "12345").unwrap();
        fs::write(scratch.path().join("file"), "123").unwrap();
        let mut walked = (0, 0);
        walk_below(scratch.path(), &mut walked).unwrap();
        assert_eq!(walked, (4, 8));
    }
}
