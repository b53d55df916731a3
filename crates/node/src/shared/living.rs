//! Which sessions last, by this node's own clock.
//!
//! A node counts on its session for a while after it has renewed it, by its own clock. The database's clock
//! decides until when the database accepts its commits. If that clock is set forward, the session is over
//! there, while the node still answers from memory. So this node considers a session over only if it has seen
//! no renewal of it for as long as a session lasts. Then it ends the session in the database, so that the
//! other node's commits are refused even if the clock is set back.
//!
//! etcd counts as nodes do, and ends sessions by itself.
//!
//! The rows are read at least as often as this node renews its own session.

use std::collections::HashMap;
use std::time::Instant;

use meta::engine::database::SessionRow;
use parking_lot::Mutex;

use super::LEASE;

/// A session as it was last seen to be renewed.
#[derive(Clone, Copy)]
struct Seen {
    epoch: i64,
    renewal: Option<i64>,
    /// When this node saw it first.
    since: Instant,
}

/// What this node has seen of all sessions, by node.
#[derive(Default)]
pub(super) struct Living(Mutex<HashMap<i64, Seen>>);

impl Living {
    /// Adds to each row whether its session may still last. `asked` and `answered` are when the rows were
    /// asked for, and when they arrived.
    pub(super) fn judge(
        &self,
        rows: Vec<SessionRow>,
        asked: Instant,
        answered: Instant,
    ) -> Vec<(SessionRow, bool)> {
        let mut seen = self.0.lock();
        let lasts = |row: &SessionRow| {
            let now = Seen { epoch: row.epoch, renewal: row.renewal, since: answered };
            let known = seen.entry(row.number).or_insert(now);
            if (known.epoch, known.renewal) != (row.epoch, row.renewal) {
                *known = now;
            }
            let is_late = asked.saturating_duration_since(known.since) >= LEASE;
            !row.ended && (row.renewal.is_none() || !is_late)
        };
        let lasting: Vec<bool> = rows.iter().map(lasts).collect();
        rows.into_iter().zip(lasting).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(epoch: i64, renewal: i64) -> SessionRow {
        let (host, address) = (String::new(), String::new());
        // The database's clock says that all of them are over.
        SessionRow {
            number: 1,
            node: [1; 16],
            host,
            address,
            epoch,
            expires_in_ms: -1,
            alive: false,
            renewal: Some(renewal),
            ended: false,
            program: String::new(),
        }
    }

    #[test]
    fn a_session_is_over_when_no_renewal_was_seen_for_its_length() {
        let living = Living::default();
        let start = base::time::monotonic();
        let lasts =
            |row: SessionRow, after: Duration| living.judge(vec![row], start + after, start + after)[0].1;
        let almost = LEASE - Duration::from_millis(1);
        assert!(lasts(row(1, 10), Duration::ZERO));
        assert!(lasts(row(1, 10), almost));
        assert!(lasts(row(1, 11), LEASE), "it was renewed");
        assert!(lasts(row(1, 11), LEASE + almost));
        assert!(!lasts(row(1, 11), 2 * LEASE));
        assert!(lasts(row(2, 11), 2 * LEASE), "the node has joined again");
        assert!(!lasts(SessionRow { ended: true, ..row(2, 12) }, 2 * LEASE), "it has left");
        let by_engine = SessionRow { renewal: None, ..row(3, 0) };
        assert!(lasts(by_engine.clone(), 2 * LEASE) && lasts(by_engine.clone(), 9 * LEASE));
        assert!(!lasts(SessionRow { ended: true, ..by_engine }, 9 * LEASE));
    }

    /// What was seen is counted from when it arrived, and judged at the time of the question.
    #[test]
    fn a_slow_answer_makes_nothing_over() {
        let living = Living::default();
        let start = base::time::monotonic();
        assert!(living.judge(vec![row(1, 1)], start, start + LEASE)[0].1);
        assert!(living.judge(vec![row(1, 1)], start + LEASE, start + 3 * LEASE)[0].1);
        assert!(!living.judge(vec![row(1, 1)], start + 2 * LEASE, start + 3 * LEASE)[0].1);
    }
}
