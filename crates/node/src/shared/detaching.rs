//! A copy of a shared volume's database becomes a volume of its own: it gets a copy of the blobs in another
//! origin. The volume that it is a copy of, and its origin, stay as they are.
//!
//! ```text
//!   row `repairing`       no node uses the copy, and none joins ([`Hold`])
//!   look                  blobs that neither origin has are named
//!   row `detaching`       a random token, and the new origin
//!   claim 1               the new origin has the token: it is this copy's, also after a kill
//!   copy                  all blobs of the rows; each is compared with its name ([`copying`])
//!   one commit            THE SWITCH: the new origin, its claim, and a new secret
//!   holds                 published trees stay behind, and so the rows go that keep blobs for them
//! ```
//!
//! A kill before the switch leaves the copy as it was, and the next run goes on with what is in the new
//! origin. After the switch no node mounts the volume until the next run has removed the last holds. The
//! secret tells the nodes and the node folders of the two volumes apart ([`making::life`]): they have one id.

mod copying;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use ::fs::fsck::{Finding, users};
use api::control::Tick;
use api::error::{Failure, Result};
use api::text::count;
use base::{BlobId, PackNo};
use blob::claim::Token;
use blob::{BlobError, Origin};
use engines::Address;
use meta::engine::database::Database;
use meta::key::{ROW_PUBLISHING, tags};
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore, Names, PackRow};
use net::secret::Secret;
use origin::Access;
use tree::TreeError;
use tree::restore::Bulk;

use super::repairing::Hold;
use super::rows::{ROW_CLAIM, ROW_DETACHING, ROW_ENDPOINT, ROW_ORIGIN, ROW_REGION, ROW_SECRET, place_rows};
use super::{claiming, making, setup_failure, setup_failure_at, unfinished};
use crate::log;
use crate::origins::{self, Reach, open_origin, origin_failure, spec_of};
use crate::publish::shared::ROW_PUBLISHER;
use crate::publisher;
use crate::refused::open_failure;
use crate::volume_dir::Home;
use copying::{Copying, Needed};
use unfinished::SWITCHED;

/// Rows that are read at a time.
const BATCH: usize = 1024;

/// What a person wants.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The address of the copy.
    pub address: &'a str,
    /// The new origin.
    pub origin: &'a str,
    /// How its store is reached.
    pub reach: Reach,
    /// Go on without blobs that exist nowhere.
    pub accept_lost: bool,
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Detached {
    /// The address, without a password.
    pub names: String,
    /// The origin that the volume was detached from.
    pub from: String,
    /// The volume's own origin.
    pub origin: String,
    /// The blobs that its rows need, and their bytes.
    pub blobs: u64,
    /// See `blobs`.
    pub bytes: u64,
    /// Of these, what this run has copied. The others were there.
    pub copied_blobs: u64,
    /// See `copied_blobs`.
    pub copied_bytes: u64,
    /// Packs that are lost.
    pub lost: u64,
    /// An earlier run was interrupted after the switch, and only the end was left.
    pub was_finished: bool,
}

/// Makes the copy of a database a volume of its own. `found` gets what is lost.
///
/// # Errors
/// The copy is as it was, unless the failure says otherwise, and the command can be run again.
pub fn detach(
    wanted: &Wanted<'_>,
    found: &mut dyn FnMut(Finding),
    tick: &mut dyn FnMut(Tick),
) -> Result<Detached> {
    let target = Address::parse(wanted.address).map_err(setup_failure)?;
    let home = origins::address(wanted.origin, &wanted.reach)?;
    let names = target.open().map_err(setup_failure_at(&target))?;
    let hold = Hold::take(names.clone())?;
    hold.wait_until_alone().map_err(|failure| is_used(failure, &target))?;
    let rows: Arc<dyn MetaStore> = names.clone();
    let from = making::home_of(&rows)?.ok_or_else(|| unfinished::incomplete(&target, &rows))?;
    let copy = Copy { target, names, hold, from, home };
    let done = copy.nothing_done();
    if copy.row(ROW_DETACHING)?.as_deref() == Some(SWITCHED) {
        copy.finish()?;
        if is_same(&copy.from, &copy.home) {
            return Ok(Detached { was_finished: true, ..done });
        }
    }
    copy.run(wanted.accept_lost, found, tick)
}

/// Whether two origins are one place, as far as can be seen from their names.
fn is_same(a: &Home, b: &Home) -> bool {
    let folder = |home: &Home| home.origin.strip_prefix("file:").and_then(|dir| fs::canonicalize(dir).ok());
    (&a.origin, &a.endpoint) == (&b.origin, &b.endpoint)
        || folder(a).is_some_and(|dir| Some(dir) == folder(b))
}

struct Copy {
    target: Address,
    names: Arc<dyn Database>,
    hold: Hold,
    from: Home,
    home: Home,
}

/// A pack whose bytes are not known to be anywhere.
type Lost = (PackNo, Option<(BlobId, Option<String>)>);

impl Copy {
    fn nothing_done(&self) -> Detached {
        Detached {
            names: self.target.to_string(),
            from: self.from.origin.clone(),
            origin: self.home.origin.clone(),
            ..Detached::default()
        }
    }

    fn row(&self, name: &str) -> Result<Option<Value>> {
        self.names.get(&Key::volume(name)).map_err(failed)
    }

    fn run(
        &self,
        accept_lost: bool,
        found: &mut dyn FnMut(Finding),
        tick: &mut dyn FnMut(Tick),
    ) -> Result<Detached> {
        let mut say = |what: String| tick(Tick { done: 0, of: 0, what });
        let claim = self.row(ROW_CLAIM)?;
        let from = self.check()?;
        let (mut needed, mut lost) = self.needed()?;
        let (begun, to) = self.new_origin()?;
        say(format!("looking for {} blobs", count(needed.len() as u64)));
        let there = self.listed(&*to, &self.home)?;
        let absent = self.absent(&needed, &there, &*from)?;
        for one in needed.extract_if(.., |one| absent.contains(&one.blob)) {
            lost.extend(one.packs.into_iter().map(|pack| (pack, Some((one.blob, None)))));
        }
        let before = self.named(lost, found)?;
        if before > 0 && !accept_lost {
            return Err(self.is_lost(before));
        }
        let copying = Copying::new(from, to.clone(), needed, there);
        let copied = copying.run(&self.hold, (&self.from, &self.home), tick)?;
        let since = self.named(copied.lost, found)?;
        if since > 0 && !accept_lost {
            return Err(self.is_lost(since));
        }
        let (blobs, bytes) = (copied.there.len() as u64, copied.bytes);
        tick(Tick { done: bytes, of: bytes, what: "looking whether all is there".to_owned() });
        self.check_all(&*to, &copied.there)?;
        self.switch(&begun, claim)?;
        self.finish()?;
        let done = self.nothing_done();
        let (copied_blobs, copied_bytes) = (copied.copied_blobs, copied.copied_bytes);
        Ok(Detached { blobs, bytes, copied_blobs, copied_bytes, lost: before + since, ..done })
    }

    /// The origin of the first volume, if this is a copy that may be detached from it.
    fn check(&self) -> Result<Arc<dyn Origin>> {
        let Copy { target, from, home, .. } = self;
        if is_same(from, home) {
            return Err(Failure::usage(format!("{} is the origin of {target} already", home.origin))
                .why("the blobs of a copy are copied to another origin, or to another prefix")
                .next("name a new place: --copy-blobs s3://BUCKET/PREFIX")
                .next(format!(
                    "if an earlier run named this one, it is done: covey mount '{target}' MOUNTPOINT"
                )));
        }
        let origin = open_origin(from, Access::ReadOnly)?;
        if claiming::is_holder(self.names.clone(), target.to_string(), from, &*origin)? {
            return Err(Failure::new(
                "no-copy",
                format!("the database at {target} holds the names of {}", from.origin),
            )
            .why("it is not a copy: nodes mount it for writing")
            .next("name the address of the copy"));
        }
        Ok(origin)
    }

    /// The blobs that the rows need, and the packs that are no blobs.
    fn needed(&self) -> Result<(Vec<Needed>, Vec<Lost>)> {
        let damaged = |error| open_failure(self.target.to_string().as_ref(), ::fs::OpenError::Store(error));
        let names = self.rows();
        let (mut blobs, mut open, mut from) = (HashMap::<BlobId, Needed>::new(), Vec::new(), PackNo(0));
        loop {
            self.hold.keep()?;
            let rows = names.packs(from, BATCH).map_err(damaged)?;
            let Some((last, _)) = rows.last() else { break };
            from = PackNo(last.0 + 1);
            for (pack, row) in rows {
                match row {
                    PackRow::Sealed { blob, size } => {
                        let needed = blobs.entry(blob).or_insert(Needed { blob, size, packs: Vec::new() });
                        needed.packs.push(pack);
                    }
                    PackRow::Open => open.push((pack, None)),
                    PackRow::Condemned { .. } => {}
                }
            }
        }
        Ok((blobs.into_values().collect(), open))
    }

    fn rows(&self) -> Names {
        let rows: Arc<dyn MetaStore> = self.names.clone();
        Names::new(rows)
    }

    /// All blobs of an origin, with their sizes.
    fn listed(&self, origin: &dyn Origin, home: &Home) -> Result<HashMap<BlobId, u64>> {
        let (mut there, mut kept) = (HashMap::new(), Ok(()));
        let listed = origin.list(&mut |blob, size| {
            there.insert(blob, size);
            kept = self.hold.keep();
            kept.is_ok()
        });
        listed.map_err(|error| unread(home, &error))?;
        kept.map(|()| there)
    }

    /// The blobs that neither origin has.
    fn absent(
        &self,
        needed: &[Needed],
        there: &HashMap<BlobId, u64>,
        from: &dyn Origin,
    ) -> Result<HashSet<BlobId>> {
        let first = self.listed(from, &self.from)?;
        let mut absent = HashSet::new();
        for Needed { blob, .. } in needed {
            self.hold.keep()?;
            if there.contains_key(blob) || first.contains_key(blob) {
                continue;
            }
            // A listing may lag behind.
            if from.size(blob).map_err(|error| unread(&self.from, &error))?.is_none() {
                absent.insert(*blob);
            }
        }
        Ok(absent)
    }

    /// Fails unless the new origin has all blobs that were copied.
    fn check_all(&self, to: &dyn Origin, wanted: &HashMap<BlobId, u32>) -> Result<()> {
        let found = self.listed(to, &self.home)?;
        let mut missing = 0;
        for (blob, size) in wanted.iter().filter(|(blob, size)| found.get(*blob) != Some(&u64::from(**size)))
        {
            self.hold.keep()?;
            let now = to.size(blob).map_err(|error| unread(&self.home, &error))?;
            missing += u64::from(now != Some(u64::from(*size)));
        }
        if missing == 0 {
            return Ok(());
        }
        let what = format!("{} lacks {} blobs that were copied", self.home.origin, count(missing));
        Err(Failure::new("origin", what)
            .next("something removes them there; see to it, then run the same command again"))
    }

    /// Names the files of lost packs. Returns how many packs have any.
    fn named(&self, lost: Vec<Lost>, found: &mut dyn FnMut(Finding)) -> Result<u64> {
        let (names, mut with_files) = (self.rows(), 0);
        for (pack, blob) in lost {
            self.hold.keep()?;
            if names.pack_live(pack).unwrap_or(1) == 0 {
                continue;
            }
            let files = users(&names, pack).unwrap_or_default();
            if files.is_empty() {
                continue;
            }
            with_files += 1;
            found(match blob {
                None => Finding::LostOpenPack { pack, len: None, files },
                Some((blob, None)) => Finding::MissingBlob { pack, blob, files },
                Some((blob, Some(what))) => Finding::DamagedBlob { pack, blob, what, files },
            });
        }
        Ok(with_files)
    }

    fn is_lost(&self, packs: u64) -> Failure {
        let what = format!("bytes of {} packs are lost: the lines above name the files", count(packs));
        Failure::new("lost", what)
            .why(format!("{} does not have them; they were on a node when the database was copied, or were removed since", self.from.origin))
            .next("copy the database again, after covey flush on every node that has the first volume mounted")
            .next("or go on without these bytes: --accept-lost")
    }

    /// The new origin, after it is known to be this copy's, and the row that says so.
    fn new_origin(&self) -> Result<(Begun, Arc<dyn Origin>)> {
        let (begun, is_again) = self.begin()?;
        let spec = spec_of(&self.home)?;
        let id = making::hex(&self.names.uuid());
        let (to, refused) = match spec.format(&id) {
            Ok(to) => (to, None),
            Err(error) if is_again => match origins::open_own(&spec, &id) {
                Ok(Some(to)) => (to, Some(error)),
                Ok(None) | Err(_) => return Err(origin_failure(error)),
            },
            Err(error) => return Err(origin_failure(error)),
        };
        let place = self.target.to_string();
        let is_ours = claiming::first(&*to, self.names.uuid(), begun.token, place);
        match (is_ours.map_err(|error| unwritten(&self.home, &error))?, refused) {
            (true, _) => Ok((begun, to)),
            (false, Some(error)) => Err(origin_failure(error)),
            (false, None) => Err(changed("another command took the new origin meanwhile")),
        }
    }

    /// Says in the database which origin this copy fills. True: an earlier run said the same.
    fn begin(&self) -> Result<(Begun, bool)> {
        let before = self.row(ROW_DETACHING)?;
        let earlier = before.as_deref().and_then(Begun::decode);
        if let Some(begun) = earlier.clone().filter(|begun| begun.origin == self.home.origin) {
            return Ok((begun, true));
        }
        if let Some(Begun { origin, .. }) = earlier {
            log::line(&format!(
                "an earlier run began to fill {origin}, which is not used any more: it can be removed"
            ));
        }
        let begun = Begun { token: base::random::id16(), origin: self.home.origin.clone() };
        let key = Key::volume(ROW_DETACHING);
        self.commit(Commit {
            checks: vec![(key.clone(), before.map_or(Expect::Absent, Expect::Is))],
            puts: vec![(key, begun.encode())],
            ..Commit::default()
        })?;
        Ok((begun, false))
    }

    /// The rows say that the new origin is the volume's.
    fn switch(&self, begun: &Begun, claim: Option<Value>) -> Result<()> {
        self.hold.keep()?;
        let here = self.names.incarnation().map_err(failed)?;
        let own = |name: &str, value: Value| (Key::volume(name), value);
        let mut puts: Vec<_> =
            place_rows(&self.home).into_iter().map(|(name, text)| own(&name, Value::from(text))).collect();
        puts.push(own(ROW_SECRET, Value::from(Secret::generate_text().into_bytes())));
        puts.push(own(ROW_CLAIM, claiming::row_of(begun.token, &here)));
        puts.push(own(ROW_DETACHING, Value::from(SWITCHED)));
        // It signs what it publishes with a key of its own.
        let mut dels: Vec<_> =
            [ROW_PUBLISHER, ROW_PUBLISHING, ROW_ENDPOINT, ROW_REGION].map(Key::volume).into();
        dels.retain(|key| !puts.iter().any(|(put, _)| put == key));
        let checks = vec![
            (Key::volume(ROW_DETACHING), Expect::Is(begun.encode())),
            (Key::volume(ROW_CLAIM), claim.map_or(Expect::Absent, Expect::Is)),
            (Key::volume(ROW_ORIGIN), Expect::Is(Value::from(self.from.origin.as_bytes()))),
        ];
        self.commit(Commit { checks, puts, dels, ..Commit::default() })
    }

    /// What published trees of the first volume need is not kept. They are not in the new origin.
    fn finish(&self) -> Result<()> {
        let key = Key::volume(ROW_DETACHING);
        let fence = (key.clone(), Value::from(SWITCHED));
        let again = |failure: Failure| {
            failure.next("the blobs are copied; run the same command again for its last step")
        };
        let unheld = |error| match error {
            TreeError::Store(error) => again(failed(error)),
            error => again(publisher::failure("rows of published trees cannot be removed", error)),
        };
        let mut bulk = Bulk::fenced(&*self.names, fence.clone());
        let mut range = Key::kind(tags::HELD);
        loop {
            self.hold.keep().map_err(again)?;
            let rows = self.names.scan(&range, BATCH).map_err(|error| again(failed(error)))?;
            let Some((last, _)) = rows.last() else { break };
            range.start = last.successor();
            rows.into_iter().try_for_each(|(key, _)| bulk.remove(key)).map_err(unheld)?;
        }
        bulk.write().map_err(unheld)?;
        let checks = vec![(key.clone(), Expect::Is(fence.1))];
        self.commit(Commit { checks, dels: vec![key], ..Commit::default() }).map_err(again)
    }

    /// Commits, unless another command has taken the volume.
    fn commit(&self, mut commit: Commit) -> Result<()> {
        commit.checks.push(self.hold.check());
        match self.names.commit(commit) {
            Ok(()) => self.names.flush().map_err(failed),
            Err(CommitError::Conflict { .. }) => Err(changed("another command used the copy meanwhile")),
            Err(CommitError::Store(error)) => Err(failed(error)),
        }
    }
}

/// The row `detaching` before the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Begun {
    token: Token,
    origin: String,
}

impl Begun {
    fn encode(&self) -> Value {
        format!("{} {}", making::hex(&self.token), self.origin).into_bytes().into()
    }

    fn decode(row: &[u8]) -> Option<Begun> {
        let (token, origin) = std::str::from_utf8(row).ok()?.split_once(' ')?;
        let number = u128::from_str_radix(token, 16).ok().filter(|_| token.len() == 32)?;
        Some(Begun { token: number.to_be_bytes(), origin: origin.to_owned() })
    }
}

fn unread(home: &Home, error: &BlobError) -> Failure {
    Failure::new("origin-away", format!("{} cannot be read", home.origin))
        .why(error.to_string())
        .next("see to it, then run the same command again: what is copied is not copied again")
}

fn unwritten(home: &Home, error: &BlobError) -> Failure {
    let again = "then run the same command again: what is copied is not copied again";
    match error {
        BlobError::Full => Failure::new("disk-full", format!("{} has no space left", home.origin))
            .next(format!("make room there, {again}")),
        error => Failure::new("origin-away", format!("{} cannot be written to", home.origin))
            .why(error.to_string())
            .next(format!("see to it, {again}")),
    }
}

fn is_used(failure: Failure, target: &Address) -> Failure {
    if failure.code != "in-use" {
        return failure;
    }
    Failure::new("in-use", failure.what)
        .why("a copy is detached while no node uses it")
        .next(format!("unmount it on every node that this lists: covey sessions '{target}'"))
        .next("then run the same command again")
}

fn changed(what: &str) -> Failure {
    Failure::new("changed", what)
        .next("make sure that nothing else uses the copy, then run the same command again")
}

fn failed(error: StoreError) -> Failure {
    setup_failure(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back() {
        let begun = Begun { token: [9; 16], origin: "file:/a folder/b".to_owned() };
        assert_eq!(Begun::decode(&begun.encode()), Some(begun));
        for bad in [SWITCHED, b"", b"12 file:/a", &[255; 40]] {
            assert_eq!(Begun::decode(bad), None);
        }
    }

    #[test]
    fn one_place_has_several_names() {
        let dir = std::env::temp_dir();
        let home = |origin: &str| Home::from(origin);
        let (plain, dotted) = (format!("file:{}", dir.display()), format!("file:{}/.", dir.display()));
        assert!(is_same(&home(&plain), &home(&dotted)));
        assert!(!is_same(&home("file:/none/a"), &home("file:/none/b")));
        assert!(
            is_same(&home("s3://b/p"), &home("s3://b/p")) && !is_same(&home("s3://b/p"), &home("s3://b/q"))
        );
        let beside = Home { endpoint: Some("http://127.0.0.1:9000".to_owned()), ..home("s3://b/p") };
        assert!(!is_same(&home("s3://b/p"), &beside));
    }
}
