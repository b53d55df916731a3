//! Which record of a published tree is used: one that is signed by a key accepted here, and not older than
//! one seen here.
//!
//! ```text
//!   CACHE/known/ORIGIN-HASH        one file for each origin (tree::known): the keys of the first use, and
//!                                  the newest record of each name
//!   CACHE/known/ORIGIN-HASH@NAME   that signed record itself, for a tree in a remote origin
//! ```
//!
//! CACHE is the folder of `--cache`, otherwise the user's cache folder. A record is stored durably before its
//! tree is shown. So a mount never goes back to an older tree, even across restarts. While the store is away,
//! a mount starts from the stored record ([`last`]). That is exactly the newest one that was seen, and its
//! signature is checked again. A user can accept another key (`--key`) or an older record (`--accept-older`)
//! by mounting once with that option.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Context, Failure, Result};
use api::text::utc;
use base::Deadline;
use base::lock::FileLock;
use blob::records::RECORD_MAX;
use blob::{BlobError, Origin};
use tree::TreeError;
use tree::known::{Known, LONGEST, Seen, Verdict};
use tree::root::{Owner, PublicKey, Root, hex};

use super::Named;
use crate::log;
use crate::publisher;
use crate::publisher::Publisher;
use crate::volume_dir::{Home, VolumeDir, cache_folder, private_folder};

/// How long to wait for the lock. Another process holds it only while it writes to the disk.
const LOCKED: Duration = Duration::from_secs(10);
/// The code of the failure that a newer record was seen.
const OLDER: &str = "older-record";

/// The records that a user accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// Accept only records signed by this key, in hexadecimal digits.
    pub key: Option<String>,
    /// Accept a record although a newer one was seen.
    pub accept_older: bool,
}

/// Why a record could not be used.
pub enum Unread {
    /// The store is away, or refuses.
    Away(Failure),
    /// The record was read and must not be used, or a problem on this machine prevents its use.
    Refused(Failure),
}

impl From<Failure> for Unread {
    fn from(failure: Failure) -> Unread {
        Unread::Refused(failure)
    }
}

impl From<Unread> for Failure {
    fn from(unread: Unread) -> Failure {
        match unread {
            Unread::Away(failure) | Unread::Refused(failure) => failure,
        }
    }
}

/// The reason for an error while reading a tree's record.
fn unread(named: &Named, error: TreeError) -> Unread {
    let is_away = matches!(&error, TreeError::Blob(BlobError::Unavailable(_) | BlobError::Refused(_)));
    let failure = named.failure(error);
    if is_away { Unread::Away(failure) } else { Unread::Refused(failure) }
}

/// Reads the record published under the name, and refuses one that is not to be trusted. With `older`,
/// accepts a record that is older than one that was seen.
pub fn read(named: &Named, origin: &dyn Origin, older: bool) -> Result<Root> {
    Ok(try_read(named, origin, older)?)
}

/// Reads the record as [`read`] does. The error tells a store that is away from a record that must not be
/// used.
pub fn try_read(named: &Named, origin: &dyn Origin, older: bool) -> std::result::Result<Root, Unread> {
    let place = Place::of(named)?;
    if named.sequence.is_some() {
        return place.read_one(named, origin);
    }
    let mut retried = false;
    loop {
        let read = Root::read_signed(origin, &named.name, named.key.as_ref());
        let (root, record) = read.map_err(|error| unread(named, error))?;
        match place.admit(named, origin, &root, &record, older) {
            Ok(()) => return Ok(root),
            // Another mount on this machine may have seen a newer record since this one was read. A second
            // read then returns it.
            Err(Unread::Refused(failure)) if failure.code == OLDER && !retried => retried = true,
            Err(unread) => return Err(unread),
        }
    }
}

/// The newest record of the tree that was seen here, if this node has it. None if it is damaged or is another
/// record.
pub fn last(named: &Named) -> Option<Root> {
    // Of the publications of a name, only the newest is remembered.
    if named.sequence.is_some() {
        return None;
    }
    let place = Place::of(named).ok()?;
    let known = place.load().ok()??;
    known.seen(&named.name)?;
    let file = place.record(named);
    let bytes = match read_record(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        bytes => bytes.map_err(|error| error.to_string()),
    };
    let root = bytes.and_then(|bytes| Root::decode(&named.name, &bytes).map_err(|error| error.to_string()));
    let why = match root {
        Ok(root) if known.judge(&root) != Verdict::Same => {
            "it is not the newest that was seen here".to_owned()
        }
        Ok(root) if named.key.is_some_and(|key| key != root.key) => "another key signed it".to_owned(),
        Ok(root) => return Some(root),
        Err(why) => why,
    };
    log::warn(&format!("the record of {named} in {} is not used: {why}", file.display()));
    None
}

fn read_record(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(RECORD_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files with the knowledge about an origin.
struct Place {
    folder: PathBuf,
    file: PathBuf,
}

impl Place {
    fn of(named: &Named) -> Result<Place> {
        let folder = cache_folder(named.cache.as_deref())?.join("known");
        let file = folder.join(Known::file_name(&named.home.origin, named.home.endpoint.as_deref()));
        Ok(Place { folder, file })
    }

    /// The file with the newest record of a name, with its signature. No file name of an origin contains the
    /// mark.
    fn record(&self, named: &Named) -> PathBuf {
        let mut file = self.file.clone().into_os_string();
        file.push(format!("@{}", named.name));
        file.into()
    }

    fn admit(
        &self,
        named: &Named,
        origin: &dyn Origin,
        root: &Root,
        record: &[u8],
        older: bool,
    ) -> std::result::Result<(), Unread> {
        let lock = match self.lock() {
            Ok(lock) => lock,
            // A tree on this machine needs no cache folder, and there may be no space for one. Then a first
            // use cannot be told from a later one.
            Err(failure) if named.is_local() && !self.file.exists() => {
                log::warn(&format!(
                    "the key and the number of {named} cannot be remembered, so a change would not be noticed: {}; \
                     name a folder with --cache DIR",
                    failure.why.first().unwrap_or(&failure.what)
                ));
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        let before = self.load()?;
        let mut known = before.clone().unwrap_or_else(|| Known::new(&named.home.origin));
        let read_owner = || Owner::read(origin).map_err(|error| unread(named, error));
        match named.key {
            Some(key) => known.accept(key),
            None if known.is_new() => {
                known.accept(root.key);
                read_owner()?.iter().flat_map(|owner| &owner.keys).for_each(|key| known.accept(*key));
            }
            None => {}
        }
        let mut verdict = known.judge(root);
        let is_new = verdict != Verdict::Same;
        if matches!(verdict, Verdict::OtherKey(_))
            && read_owner()?.is_some_and(|owner| is_ours(&owner, &root.key, &named.home))
        {
            known.accept(root.key);
            verdict = known.judge(root);
        }
        match verdict {
            Verdict::Same => {}
            Verdict::Newer => known.remember(root),
            Verdict::Older(_) if older => known.remember(root),
            Verdict::Older(seen) => return Err(self.older(named, root, seen).into()),
            Verdict::OtherKey(keys) => return Err(self.other_key(named, root, &keys).into()),
        }
        if before.as_ref() != Some(&known) {
            self.write(&self.file, known.encode().as_bytes())?;
        }
        self.keep(named, record, is_new);
        drop(lock);
        Ok(())
    }

    /// Reads one publication of a name. It may be older than one that was seen. Its key must be accepted
    /// here. At the first use of the origin, the newest publication decides which keys are.
    fn read_one(&self, named: &Named, origin: &dyn Origin) -> std::result::Result<Root, Unread> {
        let root = named.record(origin).map_err(|error| unread(named, error))?;
        let newest = Named { sequence: None, ..named.clone() };
        let Some(known) = self.load()? else {
            try_read(&newest, origin, named.older)?;
            return Ok(root);
        };
        match known.judge(&root) {
            Verdict::OtherKey(keys) if named.key != Some(root.key) => {
                Err(self.other_key(named, &root, &keys).into())
            }
            _ => Ok(root),
        }
    }

    /// Locks the folder, which the mounts of one machine share.
    fn lock(&self) -> Result<FileLock> {
        private_folder(&self.folder)?;
        let mut lock = FileLock::new(File::open(&self.folder).at("open", &self.folder)?);
        match lock.exclusive(Deadline::after(LOCKED)).at("lock", &self.folder)? {
            true => Ok(lock),
            false => {
                Err(Failure::new("in-use", format!("{} is locked by another process", self.folder.display()))
                    .next("try again; fuser shows which process has it open"))
            }
        }
    }

    /// The stored knowledge. None if there is none yet.
    fn load(&self) -> Result<Option<Known>> {
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.at("open", &self.file)?,
        };
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).at("read", &self.file)?;
        let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= LONGEST);
        let known = text.and_then(|text| Known::decode(&text).ok());
        known.map(Some).ok_or_else(|| {
            Failure::new("damaged", format!("{} cannot be understood", self.file.display()))
                .why("it says which keys and which publications of the origin were seen here")
                .next("remove it, if you are sure of the origin: the next mount counts as the first, or names the key with --key KEY")
        })
    }

    /// Stores the record itself, for mounts while the store is away. With `say`, logs a failure to do so.
    fn keep(&self, named: &Named, record: &[u8], say: bool) {
        let file = self.record(named);
        if named.is_local() || read_record(&file).is_ok_and(|kept| kept == record) {
            return;
        }
        if let Err(failure) = self.write(&file, record)
            && say
        {
            let why = failure.in_one_line();
            log::warn(&format!(
                "without its store {named} cannot be mounted here: its record is not kept: {why}"
            ));
        }
    }

    /// Replaces a whole file durably.
    fn write(&self, file: &Path, bytes: &[u8]) -> Result<()> {
        let mut new = file.to_owned().into_os_string();
        new.push("+new");
        let new = PathBuf::from(new);
        let write = || {
            let mut out =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            out.write_all(bytes)?;
            out.sync_all()?;
            fs::rename(&new, file)?;
            File::open(&self.folder)?.sync_all()
        };
        write().at("write", file)
    }

    fn older(&self, named: &Named, root: &Root, seen: Seen) -> Failure {
        let at = |moment: i64| utc(base::Timestamp::from_nanos(moment).seconds());
        Failure::new(OLDER, format!("{named} is an older publication than the one that was seen here"))
            .why(format!(
                "now it is number {} of {}, and number {} of {} was seen",
                root.sequence,
                at(root.moment.as_nanos()),
                seen.sequence,
                at(seen.moment)
            ))
            .why("an old record was put back in the origin, or the origin as a whole")
            .next("publish the volume again, if it is the newest that there is")
            .next(format!(
                "to go back to the older one, mount it (again) with --accept-older; {} holds what was seen",
                self.file.display()
            ))
    }

    fn other_key(&self, named: &Named, root: &Root, keys: &[PublicKey]) -> Failure {
        let (key, last) = (hex(&root.key), keys.last().map(|key| hex(key)).unwrap_or_default());
        Failure::new(
            "other-key",
            format!("{named} is signed by another key than those that are accepted here"),
        )
        .why(format!("it is signed by {key}; accepted is {last}, since the first use"))
        .why(
            "a restored volume has a new key, and so has one that was made anew; so would a forged tree have",
        )
        .next("ask the publisher for the key: covey published VOLUME --json shows it where the volume is")
        .next(format!("if it is this one, mount the tree once (again) with --key {key}"))
    }
}

/// Whether the key belongs to a volume of this user on this machine that keeps its blobs in this origin, such
/// as one that was restored or created in place of the old one. Nobody else can sign with it.
fn is_ours(owner: &Owner, key: &PublicKey, home: &Home) -> bool {
    let Some((machine, folder)) = owner.note.split_once(':') else { return false };
    if machine != publisher::host() {
        return false;
    }
    let Ok(dir) = VolumeDir::open(Path::new(folder)) else { return false };
    let its = dir.home();
    if (&its.origin, &its.endpoint) != (&home.origin, &home.endpoint) {
        return false;
    }
    let is_own = fs::metadata(dir.path().join(publisher::PUBLISHER));
    let signer = Publisher::of(&dir).ok().flatten().and_then(|publisher| publisher.signer().ok());
    is_own.is_ok_and(|meta| meta.uid() == api::caller::euid())
        && signer.is_some_and(|signer| signer.key() == *key)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{BlobId, Timestamp};
    use tree::Signer;
    use tree::node::Pointer;

    use super::*;

    struct Rig {
        folder: tempfile::TempDir,
        origin: Arc<dyn Origin>,
    }

    impl Rig {
        fn new() -> Rig {
            let rig = Rig { folder: tempfile::tempdir().unwrap(), origin: Arc::new(origin::Memory::new()) };
            rig.own(1, &[1]);
            rig
        }

        /// Makes the origin name these keys as the signers.
        fn own(&self, generation: u64, seeds: &[u8]) {
            let keys = seeds.iter().map(|seed| signer(*seed).key()).collect();
            let note = "elsewhere:/srv/v".to_owned();
            let owner = Owner { volume: [1; 16], owner: [2; 16], generation, note, keys };
            self.origin.put_record("owner", &owner.encode()).unwrap();
        }

        fn publish(&self, seed: u8, sequence: u64, moment: i64) {
            let top =
                Pointer { hash: [sequence as u8; 32], blob: BlobId([3; 32]), offset: 0, len: 1, rows: 1 };
            let root = Root {
                name: "latest".to_owned(),
                volume: [1; 16],
                sequence,
                moment: Timestamp::from_nanos(moment),
                inodes: 1,
                bytes: 1,
                top,
                level: 0,
                nodes: 1,
                before: None,
                source: None,
                key: signer(seed).key(),
            };
            root.write(&*self.origin, &signer(seed)).unwrap();
        }

        fn read(&self, key: Option<u8>, older: bool) -> std::result::Result<u64, String> {
            let mut named = Named::parse("file:/srv/origin@latest").unwrap().unwrap();
            named.cache = Some(self.folder.path().to_owned());
            named.key = key.map(|seed| signer(seed).key());
            read(&named, &*self.origin, older)
                .map(|root| root.sequence)
                .map_err(|failure| failure.code.to_string())
        }
    }

    fn signer(seed: u8) -> Signer {
        Signer::from_seed(&[seed; 32]).unwrap()
    }

    /// Anyone with write access to the bucket could replace the owner's record, and with it the key that
    /// signs.
    #[test]
    fn regression_a_replaced_owner_is_refused_until_its_key_is_accepted() {
        let rig = Rig::new();
        rig.publish(1, 1, 10);
        assert_eq!(rig.read(None, false), Ok(1));
        rig.publish(9, 2, 20);
        for keys in [&[9][..], &[1, 9]] {
            rig.own(2, keys);
            assert_eq!(rig.read(None, false), Err("other-key".to_owned()), "also beside the old key");
        }
        assert_eq!(rig.read(Some(8), false), Err("not-trusted".to_owned()), "neither is it this one");
        assert_eq!(rig.read(Some(9), false), Ok(2), "a person says so");
        assert_eq!(rig.read(None, false), Ok(2), "and it is remembered");
        rig.publish(1, 3, 30);
        assert_eq!(rig.read(None, false), Ok(3), "what an earlier owner signed stays good");
    }

    #[test]
    fn the_keys_of_the_first_use_are_all_accepted() {
        let rig = Rig::new();
        rig.own(2, &[1, 2]);
        rig.publish(2, 5, 50);
        assert_eq!(rig.read(None, false), Ok(5));
        rig.publish(1, 6, 60);
        assert_eq!(rig.read(None, false), Ok(6));
    }

    /// An old record that was put back moved a mount back to it. Nothing was remembered across a restart.
    #[test]
    fn regression_what_was_seen_never_goes_back_by_itself() {
        let rig = Rig::new();
        rig.publish(1, 7, 70);
        assert_eq!(rig.read(None, false), Ok(7));
        rig.publish(1, 6, 60);
        assert_eq!(rig.read(None, false), Err(OLDER.to_owned()));
        assert_eq!(rig.read(Some(1), false), Err(OLDER.to_owned()), "also where the key is known");
        assert_eq!(rig.read(None, true), Ok(6), "a person says so");
        assert_eq!(rig.read(None, false), Ok(6));
        rig.publish(1, 1, 80);
        assert_eq!(rig.read(None, false), Ok(1), "taken away, and published again");
        rig.publish(1, 7, 70);
        assert_eq!(rig.read(None, false), Err(OLDER.to_owned()));
    }

    #[test]
    fn a_damaged_file_is_said_and_not_replaced() {
        let rig = Rig::new();
        rig.publish(1, 1, 10);
        rig.read(None, false).unwrap();
        let file = fs::read_dir(rig.folder.path().join("known")).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, "covey known 1\norigin x\nkey 12\n").unwrap();
        assert_eq!(rig.read(None, false), Err("damaged".to_owned()));
        assert!(fs::read_to_string(&file).unwrap().ends_with("key 12\n"));
    }
}
