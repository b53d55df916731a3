//! Sends ranges of this node's packs to another node, and waits for that in fsync(2). See
//! [`super::keeping`].

use std::time::Duration;

use base::phase::{self, Phase};
use base::{PackNo, time};
use blob::BlobError;

use super::keeping::{Keeper, Keeping, Ranges, Wanted};
use super::{Keep, KeepRange};
use crate::bytes::may_have_moved;
use crate::errno::Error;
use crate::packs::table::Place;
use crate::volume::Core;

/// If the other node takes longer, the origin is asked as well.
const HEDGE: Duration = Duration::from_millis(500);
/// The interval between two looks at whether the origin has the packs.
const LOOK: Duration = Duration::from_millis(20);
/// How often the origin and the sessions are looked at when there is no fsync.
const TICK: Duration = Duration::from_secs(1);
/// While there is, the origin is looked at this often.
const FORGET: Duration = Duration::from_millis(100);
/// Requests that are sent before the first answer is waited for: 1 MiB.
const BATCH: usize = 64;
/// Bytes in one request.
const PIECE: u32 = 16 << 10;

impl Core {
    /// Waits until everything that was named is on another node's disk, or in the origin.
    pub(crate) fn settle_near(&self, keeping: &Keeping, patience: Duration) -> Result<(), Error> {
        let _phase = phase::enter(Phase::Peer);
        let began = time::monotonic();
        let elapsed = || time::monotonic().saturating_duration_since(began);
        if self.is_behind.load(std::sync::atomic::Ordering::Acquire) {
            // The previous run left packs that are not in the origin, and what is synced may be in them.
            self.settle(patience)?;
            self.is_behind.store(false, std::sync::atomic::Ordering::Release);
            self.forget_settled(keeping)?;
        }
        let wanted = keeping.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let (failures, _) = keeping.failures();
        keeping.kick();
        let mut sealing = false;
        loop {
            if keeping.has(&wanted) {
                return Ok(());
            }
            let (failed, why) = keeping.failures();
            if !sealing && (failed > failures || elapsed() >= HEDGE) {
                if self.packs.any_quarantined().is_some() || self.options.shared.is_none() {
                    return self.settle(patience.saturating_sub(elapsed()));
                }
                // Whichever is first: the sender goes on with another node.
                self.packs.close_and_name();
                sealing = true;
            }
            if elapsed() >= patience || self.stopping() {
                return Err(self.not_kept(keeping, &wanted, patience, &why));
            }
            if sealing {
                keeping.wait(&wanted, None, LOOK);
                self.forget_settled(keeping)?;
            } else {
                keeping.wait(&wanted, Some(failures), HEDGE.saturating_sub(elapsed()).max(LOOK));
            }
        }
    }

    fn not_kept(&self, keeping: &Keeping, wanted: &Wanted, patience: Duration, why: &str) -> Error {
        let packs = wanted.keys().filter(|pack| keeping.packs().contains(pack)).count();
        let origin = match self.parts.origin.settle(Duration::ZERO) {
            Err(error) => error.to_string(),
            Ok(()) => "they are not sealed".to_owned(),
        };
        let why = if why.is_empty() { "it does not answer in time" } else { why };
        BlobError::Unavailable(format!(
            "{packs} packs are on this node only after {} s. Another node: {why}. The origin: {origin}",
            patience.as_secs()
        ))
        .into()
    }

    /// Forgets what is in the origin.
    fn forget_settled(&self, keeping: &Keeping) -> Result<(), Error> {
        let mut settled = Vec::new();
        for pack in keeping.packs() {
            let is_settled = match self.place_of(pack)? {
                // Nothing refers to it any more.
                None => true,
                Some(Place::Blob(blob)) => self.parts.origin.is_settled(&blob),
                Some(Place::Open) => false,
            };
            if is_settled {
                settled.push(pack);
            }
        }
        if !settled.is_empty() {
            self.parts.origin.sync()?;
            keeping.forget(&settled);
        }
        Ok(())
    }

    /// The thread that sends.
    pub(crate) fn keeper(&self) {
        let Some(sharing) = &self.options.shared else { return };
        let Some(keeping) = &sharing.keeping else { return };
        let mut looked = None;
        while keeping.next(TICK) && !self.stopping() {
            let now = time::monotonic();
            if looked.is_none_or(|looked| now.saturating_duration_since(looked) >= FORGET) {
                looked = Some(now);
                // What fails now is tried again later.
                let _ = self.forget_settled(keeping);
            }
            if let Some((keeper, packs)) = keeping.take_dropped() {
                let drops: Vec<KeepRange> = packs
                    .into_iter()
                    .map(|pack| KeepRange { pack, offset: 0, what: Keep::Drop, bytes: Vec::new() })
                    .collect();
                // A node that does not hear this finds it out by itself.
                drops.chunks(BATCH).all(|drops| sharing.others.keep(keeper.node, drops).is_ok());
            }
            let in_time = || time::monotonic().saturating_duration_since(now) < TICK;
            while keeping.needs_a_node() && in_time() && !self.stopping() {
                let nodes = match sharing.others.keepers() {
                    Ok(nodes) => nodes,
                    Err(error) => {
                        keeping.cannot_choose(error.to_string());
                        break;
                    }
                };
                let Some(keeper) = keeping.choose(&nodes) else { break };
                let taken = keeping.take();
                if taken.is_empty() {
                    break;
                }
                self.send(keeping, keeper, &taken);
            }
        }
        keeping.stop();
    }

    /// Sends ranges to a node.
    fn send(&self, keeping: &Keeping, keeper: Keeper, taken: &[(PackNo, Ranges)]) {
        let Some(sharing) = &self.options.shared else { return };
        let mut sending = Sending { keeper, run: keeper.run, batch: Vec::new(), restarted: false };
        let mut keep = |sending: &mut Sending| -> Result<(), String> {
            if sending.batch.is_empty() {
                return Ok(());
            }
            let batch = std::mem::take(&mut sending.batch);
            let run = sharing.others.keep(sending.keeper.node, &batch)?;
            sending.restarted |= sending.run.is_some_and(|known| known != run);
            sending.run = Some(run);
            Ok(())
        };
        let done = self.send_all(keeping, &mut sending, taken, &mut keep);
        match (done, sending.run) {
            (Err(why), _) => keeping.failed(keeper, why),
            (Ok(()), _) if sending.restarted => keeping.restarted(),
            (Ok(()), Some(run)) => keeping.sent(keeper, run),
            // Nothing could be read.
            (Ok(()), None) => {}
        }
    }

    fn send_all(
        &self,
        keeping: &Keeping,
        sending: &mut Sending,
        taken: &[(PackNo, Ranges)],
        keep: &mut dyn FnMut(&mut Sending) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut written = Vec::new();
        for (pack, ranges) in taken {
            for (from, to) in ranges.iter() {
                match self.read_for_keeper(*pack, from, to) {
                    Ok(bytes) => {
                        for (at, piece) in (from..).step_by(PIECE as usize).zip(bytes.chunks(PIECE as usize))
                        {
                            let bytes = piece.to_vec();
                            sending.batch.push(KeepRange {
                                pack: *pack,
                                offset: at,
                                what: Keep::Write,
                                bytes,
                            });
                            if sending.batch.len() == BATCH {
                                keep(sending)?;
                            }
                        }
                    }
                    Err(error) => {
                        keeping.cannot_read(*pack, error.to_string());
                        break;
                    }
                }
            }
            written.push(*pack);
        }
        // A single range of a pack is written and synced by one request.
        if let [range] = &mut sending.batch[..]
            && written.len() == 1
        {
            range.what = Keep::Sync;
            return keep(sending);
        }
        // The syncs follow the answers to all writes. If the node was started anew in between, its run
        // differs.
        keep(sending)?;
        for pack in written {
            sending.batch.push(KeepRange { pack, offset: 0, what: Keep::Sync, bytes: Vec::new() });
            if sending.batch.len() == BATCH {
                keep(sending)?;
            }
        }
        keep(sending)
    }

    fn read_for_keeper(&self, pack: PackNo, from: u32, to: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; (to - from) as usize];
        match self.read_pack(pack, from, &mut bytes) {
            Err(error) if may_have_moved(&error) => {
                // It was sealed between two looks.
                self.table.drop(pack);
                self.read_pack(pack, from, &mut bytes)?;
            }
            done => done?,
        }
        Ok(bytes)
    }

    /// Whether the previous run left anything that is not in the origin.
    pub(crate) fn was_left_behind(&self) -> bool {
        let is_settled = self.parts.origin.settle(Duration::ZERO).is_ok();
        !self.packs.all_closed_sealed() || !self.resealing.lock().is_empty() || !is_settled
    }
}

/// The progress of one sending.
struct Sending {
    keeper: Keeper,
    run: Option<u64>,
    batch: Vec<KeepRange>,
    /// The node's run has changed in between.
    restarted: bool,
}
