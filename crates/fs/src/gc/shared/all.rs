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
        self.condemn_touched()?;
        let Some(present) = self.present(sharing)? else { return Ok(()) };
        // An origin that does not answer delays deletions, and not this.
        let kept = self.look_at_kept(sharing, &present);
        self.search_dead(sharing, &present.alive)?;
        while self.delete_due(sharing, &present, false)? && !self.stopping() {}
        kept
    }

    /// Collection on request: what is due is deleted now, wherever it is. The rest waits for its time.
    pub(crate) fn collect_shared(
        &self,
        sharing: &Sharing,
        progress: &mut dyn FnMut(Collected),
    ) -> Result<Collected, Error> {
        let before = self.counters.freed_bytes.get();
        let freed = || self.counters.freed_bytes.get() - before;
        let began = time::monotonic();
        self.packs.close_all();
        while !self.packs.all_closed_sealed() && began.elapsed() < PATIENCE && !self.stopping() {
            progress(Collected { freed_bytes: freed(), ..Collected::default() });
            self.sweep.pause(LOOK);
        }
        self.deletions.touch(self.garbage.take_touched());
        self.condemn_touched()?;
        self.each_blob_pack(&mut |pack, row, live| match row {
            PackRow::Sealed { .. } if live == 0 => self.condemn(pack),
            _ => Ok(()),
        })?;
        let Some(present) = self.present(sharing)? else { return Ok(Collected::default()) };
        loop {
            // Rounds run one after another, whichever thread runs them.
            let round = self.sweep.between_rounds();
            let more = self.delete_due(sharing, &present, true)?;
            drop(round);
            progress(Collected { freed_bytes: freed(), ..Collected::default() });
            if !more || self.stopping() {
                break;
            }
        }
        let strays = self.delete_strays(sharing, &present)?;
        let counted = self.count_shared()?;
        let waiting_bytes = counted.waiting_bytes + strays;
        Ok(Collected { freed_bytes: freed(), waiting_bytes, ..counted })
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
