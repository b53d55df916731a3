//! What the guest's kernel holds, and what it has dropped that the server has not heard of.
//!
//! A FORGET can come while no server answers. The kernel sends it once, so it is kept as a debt here. The
//! count stays as it is at the server until the debt is paid:
//!
//! ```text
//!   FORGET ─► a slot ─► the server ─► counted down
//!        └─► no slot ─► owed ─► pay(), when a server answers ─► a slot ─► ...
//!                          └─► settle(): another run of the server is told of the rest only
//! ```

use std::collections::HashMap;

use crate::request::{self, Asked};

/// The most inodes in one BATCH_FORGET.
const PAY_MOST: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Held {
    /// What a server counts. Debts are among it.
    counts: HashMap<u64, u64>,
    /// What is to be counted down when that can be sent.
    owed: HashMap<u64, u64>,
}

impl Held {
    /// The kernel takes one more reference to each of these.
    pub fn take(&mut self, nodes: &[u64]) {
        nodes.iter().for_each(|node| *self.counts.entry(*node).or_default() += 1);
    }

    /// The server has counted these down, or never counted them.
    pub fn release(&mut self, pairs: &[(u64, u64)]) {
        for (node, count) in pairs {
            if let Some(has) = self.counts.get_mut(node) {
                *has = has.saturating_sub(*count);
                if *has == 0 {
                    self.counts.remove(node);
                }
            }
        }
    }

    /// The kernel has dropped these, and the server cannot be told now.
    pub fn owe(&mut self, pairs: &[(u64, u64)]) {
        pairs.iter().for_each(|(node, count)| *self.owed.entry(*node).or_default() += count);
    }

    /// Notes that the kernel has dropped one reference to each of these, and the server cannot be told now.
    pub fn owe_each(&mut self, nodes: &[u64]) {
        nodes.iter().for_each(|node| *self.owed.entry(*node).or_default() += 1);
    }

    /// A message that pays some of the debt. `None`: there is no debt.
    pub fn pay(&mut self) -> Option<Vec<u8>> {
        let some: Vec<u64> = self.owed.keys().take(PAY_MOST).copied().collect();
        let pairs: Vec<(u64, u64)> =
            some.into_iter().filter_map(|node| Some((node, self.owed.remove(&node)?))).collect();
        (!pairs.is_empty()).then(|| request::batch_forget(&pairs))
    }

    /// Such a message could not be sent after all.
    pub fn unpaid(&mut self, asked: &Asked, message: &[u8]) {
        self.owe(&request::forgotten(asked, message));
    }

    /// What another run of the server must count. The debts end with the run that counted them.
    pub fn settle(&mut self) -> Vec<(u64, u64)> {
        let owed: Vec<(u64, u64)> = self.owed.drain().collect();
        self.release(&owed);
        self.counts.iter().map(|(node, count)| (*node, *count)).collect()
    }

    /// The inodes.
    pub fn nodes(&self) -> Vec<u64> {
        self.counts.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_once_and_counts_until_then() {
        let mut held = Held::default();
        held.take(&[5, 5, 5, 6]);
        assert_eq!(held.pay(), None);
        held.owe(&[(5, 2)]);
        held.owe(&[(6, 1)]);
        let message = held.pay().unwrap();
        let asked = Asked::read(&message).unwrap();
        let mut pairs = request::forgotten(&asked, &message);
        pairs.sort_unstable();
        assert_eq!((pairs.as_slice(), held.pay()), (&[(5, 2), (6, 1)][..], None));
        held.unpaid(&asked, &message);
        let again = held.pay().unwrap();
        held.release(&request::forgotten(&Asked::read(&again).unwrap(), &again));
        assert_eq!((held.nodes(), held.settle()), (vec![5], vec![(5, 1)]));
    }

    #[test]
    fn another_run_of_the_server_is_not_told_of_what_is_owed() {
        let mut held = Held::default();
        held.take(&[5, 5, 6]);
        held.owe(&[(5, 1), (6, 1)]);
        assert_eq!(held.settle(), [(5, 1)]);
        assert_eq!(held.pay(), None);
    }

    #[test]
    fn a_message_has_a_bounded_number_of_inodes() {
        let mut held = Held::default();
        let all: Vec<(u64, u64)> = (0..2 * PAY_MOST as u64 + 1).map(|node| (node, 1)).collect();
        held.owe(&all);
        assert_eq!(std::iter::from_fn(|| held.pay()).count(), 3);
    }
}
