//! The rounds of deletion in the background, and all of it on request.

use std::time::Duration;

use base::time;
use meta::PackRow;
use meta::key::tags;

use crate::errno::Error;
use crate::gc::all::Collected;
use crate::shared::Sharing;
use crate::volume::Core;

/// The longest wait for packs to be sealed.
const PATIENCE: Duration = Duration::from_secs(600);
/// The pause between two looks at that.
const LOOK: Duration = Duration::from_millis(20);

impl Core {
    /// Runs a round, if one is due.
    pub(crate) fn shared_round(&self, sharing: &Sharing) -> Result<(), Error> {
        self.deletions.touch(self.garbage.take_touched());
        if !self.deletions.is_due(sharing.lease / 2) {
            return Ok(());
        }
        // What nothing refers to may be referred to again, when all nodes have renewed their sessions.
        if self.check_engine(sharing.lease).is_err() {
            return Ok(());
        }
        self.condemn_touched()?;
        let Some(present) = self.present(sharing)? else { return Ok(()) };
        // An origin that does not answer delays deletions, and not this.
        let kept = self.look_at_kept(sharing, &present);
        self.search_dead(sharing, &present.alive)?;
        while self.delete_due(sharing, &present, false)? && !self.stopping() {}
        let compacted = self.compact_shared(sharing, &present);
        kept.and(compacted)
    }

    /// Collection on request: what is due is deleted now, and what is worth it is compacted, wherever it is.
    /// The rest waits for its time.
    pub(crate) fn collect_shared(
        &self,
        sharing: &Sharing,
        progress: &mut dyn FnMut(Collected),
    ) -> Result<Collected, Error> {
        let (freed, moved) = (self.counters.freed_bytes.get(), self.counters.moved_bytes.get());
        let began = time::monotonic();
        self.packs.close_all();
        while !self.packs.all_closed_sealed() && began.elapsed() < PATIENCE && !self.stopping() {
            progress(self.collected_so_far(freed, moved));
            self.sweep.pause(LOOK);
        }
        self.check_engine(sharing.lease)?;
        self.condemn_all()?;
        let Some(present) = self.present(sharing)? else { return Ok(Collected::default()) };
        self.compact_all_shared(sharing, &mut || progress(self.collected_so_far(freed, moved)))?;
        self.condemn_all()?;
        loop {
            // Rounds run one after another, whichever thread runs them.
            let round = self.sweep.between_rounds();
            let more = self.delete_due(sharing, &present, true)?;
            drop(round);
            progress(self.collected_so_far(freed, moved));
            if !more || self.stopping() {
                break;
            }
        }
        let strays = self.delete_strays(sharing, &present)?;
        let Collected { waiting_bytes, stored_bytes, garbage_bytes, packs, .. } = self.count_shared()?;
        let waiting_bytes = waiting_bytes + strays;
        Ok(Collected {
            waiting_bytes,
            stored_bytes,
            garbage_bytes,
            packs,
            ..self.collected_so_far(freed, moved)
        })
    }

    /// Condemns every pack that has no live bytes, and notes those with few.
    pub(crate) fn condemn_all(&self) -> Result<(), Error> {
        self.deletions.touch(self.garbage.take_touched());
        self.condemn_touched()?;
        self.each_blob_pack(&mut |pack, row, live| match row {
            PackRow::Sealed { .. } if live == 0 => self.condemn(pack),
            row => {
                self.deletions.compaction.note(pack, &row, live);
                Ok(())
            }
        })
    }

    /// What is stored now, by the names. Packs that are the same blob count once.
    fn count_shared(&self) -> Result<Collected, Error> {
        let mut sums = Collected::default();
        self.each_blob_pack(&mut |_, row, live| {
            match row {
                PackRow::Sealed { size, .. } => {
                    sums.packs += 1;
                    sums.stored_bytes += u64::from(size);
                    sums.garbage_bytes += u64::from(size).saturating_sub(live);
                }
                PackRow::Condemned { size, .. } => sums.waiting_bytes += u64::from(size),
                PackRow::Open => {}
            }
            Ok(())
        })?;
        let (mut range, mut before) = (meta::Key::kind(tags::BLOB_PACK), None);
        loop {
            let rows = self.parts.store.scan(&range, 1024)?;
            let Some((last, _)) = rows.last() else { return Ok(sums) };
            range.start = last.successor();
            for (blob, pack) in rows.iter().filter_map(|(key, _)| key.as_blob_pack()) {
                if before.replace(blob) == Some(blob)
                    && let Some(PackRow::Sealed { size, .. }) = self.pack_row(pack)?
                {
                    sums.stored_bytes = sums.stored_bytes.saturating_sub(u64::from(size));
                    sums.packs = sums.packs.saturating_sub(1);
                }
            }
        }
    }
}
