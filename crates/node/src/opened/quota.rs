//! Quotas of folders, for a caller that names paths.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::answers::QuotaUse;
use api::control::{NewLimit, Tick};
use api::error::{Failure, Result};
use api::text::count;
use base::Ino;
use fs::Errno;
use fs::api::FileKind;
use meta::quota::{Limits, Quota, State};

use super::Node;
use crate::errno::errno_failure;

impl Node {
    /// The quotas of a folder, of those below it, and of those around it. An empty path: all.
    pub fn quotas(&self, path: &Path) -> Result<Vec<QuotaUse>> {
        let folder = self.folder(path)?;
        let place = self.shown_folder(folder).unwrap_or_default();
        let all = self.volume.quotas().map_err(failed("the quotas cannot be read".to_owned()))?;
        let uses = all.iter().map(|quota| self.use_of(quota));
        let mut uses: Vec<QuotaUse> = uses
            .filter(|quota| {
                folder == Ino::ROOT || quota.path.as_deref().is_some_and(|path| is_on_way(path, &place))
            })
            .collect();
        uses.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(uses)
    }

    /// Gives a folder a quota, or other limits.
    pub fn set_quota(
        &self,
        path: &Path,
        bytes: NewLimit,
        files: NewLimit,
        tick: &mut dyn FnMut(Tick),
    ) -> Result<QuotaUse> {
        let folder = self.folder(path)?;
        let shown = format!("cannot set the quota of /{}", path.display());
        let find = || -> Result<Option<Quota>> {
            let all = self.volume.quotas().map_err(failed(shown.clone()))?;
            Ok(all.into_iter().find(|quota| quota.dir == folder))
        };
        let before = find()?.map(|quota| quota.row.limits).unwrap_or_default();
        let limits = Limits { bytes: limit(before.bytes, bytes), inodes: limit(before.inodes, files) };
        if limits == Limits::default() {
            return Err(Failure::usage("a quota without a limit limits nothing")
                .next("name one: --bytes 2T, or --files 10M")
                .next("to take the quota away: covey quota rm FOLDER"));
        }
        self.volume
            .set_quota(folder, limits, &mut |done| tick(counted(done)))
            .map_err(failed(shown.clone()))?;
        let quota = find()?.ok_or_else(|| {
            Failure::new("not-found", format!("/{} lost its quota meanwhile", path.display()))
                .next("run the same command again")
        })?;
        Ok(self.use_of(&quota))
    }

    /// Takes a folder's quota away.
    pub fn remove_quota(&self, path: &Path, tick: &mut dyn FnMut(Tick)) -> Result<()> {
        let folder = self.folder(path)?;
        let shown = format!("cannot take the quota of /{} away", path.display());
        match self.volume.remove_quota(folder, &mut |done| tick(counted(done))).map_err(failed(shown))? {
            true => Ok(()),
            false => Err(Failure::new("not-found", format!("/{} has no quota of its own", path.display()))
                .next("covey quota ls FOLDER lists the quotas around it")),
        }
    }

    fn folder(&self, path: &Path) -> Result<Ino> {
        let shown = format!("/{}", path.display());
        let found = self.volume.resolve(path.as_os_str().as_bytes(), true);
        let found = found.map_err(failed(format!("cannot find {shown}")))?;
        if found.kind != FileKind::Dir {
            return Err(Failure::usage(format!("{shown} is no folder, and only folders have quotas"))
                .next("name the folder that it is in"));
        }
        Ok(found.ino)
    }

    fn shown_folder(&self, folder: Ino) -> Option<String> {
        if folder == Ino::ROOT { Some("/".to_owned()) } else { self.volume.path_of(folder).ok().flatten() }
    }

    fn use_of(&self, quota: &Quota) -> QuotaUse {
        let state = match quota.row.state {
            State::Counting => "counting",
            State::Set => "set",
            State::Removing => "removing",
        };
        QuotaUse {
            path: self.shown_folder(quota.dir),
            bytes: quota.bytes,
            bytes_limit: quota.row.limits.bytes,
            files: quota.inodes,
            files_limit: quota.row.limits.inodes,
            state: state.to_owned(),
        }
    }
}

fn limit(before: Option<u64>, new: NewLimit) -> Option<u64> {
    match new {
        NewLimit::Keep => before,
        NewLimit::None => None,
        NewLimit::Is(limit) => Some(limit),
    }
}

fn counted(done: u64) -> Tick {
    Tick { done, of: 0, what: format!("{} files and folders", count(done)) }
}

/// Whether one of two paths leads to the other.
fn is_on_way(a: &str, b: &str) -> bool {
    let leads = |a: &str, b: &str| {
        let a = a.trim_end_matches('/');
        b.strip_prefix(a).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    leads(a, b) || leads(b, a)
}

fn failed(what: String) -> impl FnOnce(Errno) -> Failure {
    move |errno| match errno {
        Errno::EBUSY => Failure::new("busy", what)
            .why("another node changes the same quota")
            .next("look at it with covey quota ls, and run the command again"),
        errno => errno_failure(what, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_to_one_another() {
        for (a, b) in [("/", "/a/b"), ("/a", "/a"), ("/a/b", "/a"), ("/", "/")] {
            assert!(is_on_way(a, b), "{a} {b}");
        }
        assert!(!is_on_way("/ab", "/a"));
        assert!(!is_on_way("/a/b", "/a/c"));
    }
}
