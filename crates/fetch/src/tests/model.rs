//! Random steps of leaders, followers and announcements in any order, on one thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

const GROUPS: u32 = 5;
const SIZE: usize = 4 * GROUP as usize + 777;

#[derive(Clone, Copy, Debug)]
enum Step {
    Whole(usize, u8),
    Part(usize, u32, u32),
    /// The fetch of a lead gets one more waiter.
    Wait(usize, u32, u32),
    Announce(usize),
    Promote(usize),
    Withdraw(usize),
    /// So much of a whole blob is in its buffer.
    Fill(usize, usize),
    /// A part's bytes are passed on by the loop that receives them.
    Arrive(usize),
    Finish(usize),
    Fail(usize),
    GiveUp(usize),
    Write(usize, bool),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..8usize;
    prop_oneof![
        3 => (0..2usize, any::<u8>()).prop_map(|(blob, purpose)| Step::Whole(blob, purpose)),
        4 => (0..2usize, 0..GROUPS, 1..4u32).prop_map(|(blob, from, len)| Step::Part(blob, from, len)),
        8 => (at.clone(), 0..SIZE as u32, 1..100_000u32).prop_map(|(at, from, len)| Step::Wait(at, from, len)),
        3 => at.clone().prop_map(Step::Announce),
        2 => at.clone().prop_map(Step::Promote),
        2 => at.clone().prop_map(Step::Withdraw),
        4 => (at.clone(), 0..=SIZE).prop_map(|(at, len)| Step::Fill(at, len)),
        2 => at.clone().prop_map(Step::Arrive),
        4 => at.clone().prop_map(Step::Finish),
        2 => at.clone().prop_map(Step::Fail),
        2 => at.clone().prop_map(Step::GiveUp),
        3 => (at.clone(), any::<bool>()).prop_map(|(at, kept)| Step::Write(at, kept)),
        1 => (0..2usize).prop_map(Step::Forget),
    ]
}

enum Lead {
    Whole(WholeLead),
    Part(PartLead),
}

impl Lead {
    fn fetch(&self) -> &Arc<InFlight> {
        match self {
            Lead::Whole(lead) => lead.fetch(),
            Lead::Part(lead) => lead.fetch(),
        }
    }
}

struct World {
    table: Arc<Table>,
    keeper: Arc<Keeper>,
    blobs: [Blob; 2],
    leads: Vec<Lead>,
    announcements: Vec<Announcement>,
    /// For each waiter, how often it was completed, and how often wrongly.
    waiters: Vec<Arc<[AtomicUsize; 2]>>,
}

fn pick<T>(all: &mut Vec<T>, at: usize) -> Option<T> {
    if all.is_empty() { None } else { Some(all.swap_remove(at % all.len())) }
}

impl World {
    fn blob(&self, id: &BlobId) -> &Blob {
        self.blobs.iter().find(|blob| blob.id == *id).unwrap()
    }

    fn wait(&mut self, at: usize, range: Range<u32>) {
        let Some(lead) = self.leads.get(at % self.leads.len().max(1)) else { return };
        let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let right = self.blob(lead.fetch().id()).bytes.get(range.start as usize..range.end as usize);
        let (right, told) = (right.map(<[u8]>::to_vec), Arc::clone(&counts));
        let completion = move |arrival: Arrival<'_>| {
            told[0].fetch_add(1, Ordering::SeqCst);
            let wrong = arrival.is_ok_and(|bytes| Some(bytes) != right.as_deref());
            told[1].fetch_add(usize::from(wrong), Ordering::SeqCst);
            true
        };
        lead.fetch().notify(&Waiter::new(range, Box::new(completion)));
        self.waiters.push(counts);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Whole(blob, purpose) => {
                let purpose = [Purpose::Read, Purpose::Prefetch, Purpose::Others][usize::from(purpose) % 3];
                if let Join::Leader(lead) = self.table.join_whole(&self.blobs[blob].id, purpose) {
                    self.leads.push(Lead::Whole(lead));
                }
            }
            Step::Part(blob, from, len) => {
                let groups = from..(from + len).min(GROUPS);
                if let Join::Leader(mut lead) = self.table.join_part(&self.blobs[blob].id, groups) {
                    lead.reserve(100).unwrap();
                    self.leads.push(Lead::Part(lead));
                }
            }
            Step::Wait(at, from, len) => self.wait(at, from..from + len),
            Step::Announce(at) => {
                let lead = self.leads.get(at % self.leads.len().max(1));
                self.announcements.extend(lead.map(|lead| match lead {
                    Lead::Whole(lead) => lead.part().announce(),
                    Lead::Part(lead) => lead.announce(),
                }));
            }
            Step::Promote(at) => {
                let some = self.announcements.get(at % self.announcements.len().max(1));
                self.leads.extend(some.and_then(Announcement::begin_whole).map(Lead::Whole));
            }
            Step::Withdraw(at) => drop(pick(&mut self.announcements, at)),
            Step::Fill(at, len) => {
                if let Some(Lead::Whole(lead)) = self.leads.get(at % self.leads.len().max(1)) {
                    let (blob, buffer) = (self.blob(lead.id()), lead.buffer());
                    buffer.begin(blob.sums.clone()).unwrap();
                    buffer.append(&blob.bytes[..len]).unwrap();
                }
            }
            Step::Arrive(at) => {
                if let Some(Lead::Part(lead)) = self.leads.get(at % self.leads.len().max(1)) {
                    let part = self.part(lead);
                    lead.arrivals().arrived(part.offset, &part.bytes);
                }
            }
            Step::Finish(at) => match pick(&mut self.leads, at) {
                Some(Lead::Whole(lead)) => {
                    let whole = self.blob(lead.id()).whole();
                    lead.finish(Ok(whole)).unwrap();
                }
                Some(Lead::Part(lead)) => {
                    let part = self.part(&lead);
                    lead.finish(Ok(part), |_| {}).unwrap();
                }
                None => {}
            },
            Step::Fail(at) => match pick(&mut self.leads, at) {
                Some(Lead::Whole(lead)) => drop(lead.finish(Err(unavailable())).err().unwrap()),
                Some(Lead::Part(lead)) => drop(lead.finish(Err(unavailable()), |_| {}).err().unwrap()),
                None => {}
            },
            Step::GiveUp(at) => drop(pick(&mut self.leads, at)),
            Step::Write(at, kept) => {
                if let Some(mut completed) = pick(&mut self.keeper.completed.lock(), at)
                    && kept
                {
                    completed.kept();
                }
            }
            Step::Forget(blob) => self.table.forget(&self.blobs[blob].id),
        }
    }

    fn part(&self, lead: &PartLead) -> Part {
        let groups = lead.fetch().groups().unwrap();
        self.blob(lead.id()).part(groups.start * GROUP..(groups.end * GROUP).min(SIZE as u32))
    }

    /// At most one lead of the whole, and of each group.
    fn check(&self) {
        for blob in &self.blobs {
            let of = |lead: &&Lead| *lead.fetch().id() == blob.id;
            let wholes = self.leads.iter().filter(of).filter(|lead| matches!(lead, Lead::Whole(_))).count();
            assert!(wholes <= 1);
            let mut seen = [false; GROUPS as usize];
            for lead in self.leads.iter().filter(of) {
                for group in lead.fetch().groups().into_iter().flatten() {
                    assert!(!std::mem::replace(&mut seen[group as usize], true), "a group twice");
                }
            }
            assert_eq!(
                self.table.whole(&blob.id).is_some_and(|whole| whole.outcome().is_none()),
                wholes == 1
            );
        }
    }
}

proptest! {
    #[test]
    fn each_waiter_is_completed_once_and_nothing_stays(
        steps in prop::collection::vec(step(), 1..120), remembers in any::<bool>(),
    ) {
        let table = table();
        table.remember(remembers);
        let keeper = with_keeper(&table);
        let blobs = [Blob::new(SIZE, 1), Blob::new(SIZE, 2)];
        let mut world =
            World { table, keeper, blobs, leads: vec![], announcements: vec![], waiters: vec![] };
        for step in steps {
            world.run(step);
            world.check();
        }
        world.leads.clear();
        for (n, waiter) in world.waiters.iter().enumerate() {
            let [times, wrong] = [0, 1].map(|at: usize| waiter[at].load(Ordering::SeqCst));
            prop_assert_eq!((times, wrong), (1, 0), "waiter {}", n);
        }
        world.announcements.clear();
        world.keeper.completed.lock().clear();
        prop_assert_eq!((world.table.len(), world.table.budget().used()), (0, 0));
        world.table.tidy(base::time::monotonic() + Duration::from_secs(60));
        prop_assert!(world.table.is_forgotten());
    }
}
