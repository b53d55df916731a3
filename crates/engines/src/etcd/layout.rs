//! Which keys the engine writes. Texts are ASCII, so that `etcdctl get --prefix covey/` shows them.
//!
//! ```text
//!   PREFIX/volumes                    how many volumes were ever created
//!   PREFIX/volume/NAME                a volume: format, number, id
//!   PREFIX/NUMBER/k/KEY               a row
//!   PREFIX/NUMBER/nodes               how many nodes ever joined
//!   PREFIX/NUMBER/node/ID             a node: number, epoch, lease, host, address, token, program
//!   PREFIX/NUMBER/alive/NODE          its session lasts: the epoch. Its lease removes it
//!   PREFIX/NUMBER/op/OWNER/LANE       the last operation of a lane. The owner's lease removes it
//!   PREFIX/NUMBER/lock                the one commit that has too many checks for one transaction
//! ```

use meta::key::{Key, KeyRange};

/// A range of etcd's keys: from the first to before the second.
pub(super) type Span = (Vec<u8>, Vec<u8>);

/// The keys of one volume.
pub(super) struct Layout {
    root: String,
    rows: Vec<u8>,
}

impl Layout {
    pub(super) fn new(prefix: &str, number: u64) -> Layout {
        let root = format!("{prefix}/{number}/");
        let rows = format!("{root}k/").into_bytes();
        Layout { root, rows }
    }

    /// The key of a row.
    pub(super) fn row(&self, key: &Key) -> Vec<u8> {
        [&self.rows, key.as_bytes()].concat()
    }

    /// A row's key, from etcd's.
    pub(super) fn key_of(&self, bytes: &[u8]) -> Key {
        Key::from_bytes(bytes.strip_prefix(self.rows.as_slice()).unwrap_or(bytes))
    }

    /// The keys of rows.
    pub(super) fn span(&self, range: &KeyRange) -> Span {
        (self.row(&range.start), self.row(&range.end))
    }

    fn under(&self, name: &str) -> Span {
        // `0` follows `/`.
        (format!("{}{name}/", self.root).into_bytes(), format!("{}{name}0", self.root).into_bytes())
    }

    /// Everything of the volume but its own row.
    pub(super) fn all(&self) -> Span {
        let end = format!("{}0", self.root.trim_end_matches('/'));
        (self.root.clone().into_bytes(), end.into_bytes())
    }

    pub(super) fn node_count(&self) -> Vec<u8> {
        format!("{}nodes", self.root).into_bytes()
    }

    pub(super) fn node(&self, id: &[u8; 16]) -> Vec<u8> {
        format!("{}node/{}", self.root, hex(id)).into_bytes()
    }

    pub(super) fn nodes(&self) -> Span {
        self.under("node")
    }

    pub(super) fn alive(&self, number: i64) -> Vec<u8> {
        format!("{}alive/{number}", self.root).into_bytes()
    }

    pub(super) fn all_alive(&self) -> Span {
        self.under("alive")
    }

    pub(super) fn op(&self, owner: &str, lane: u32) -> Vec<u8> {
        format!("{}op/{owner}/{lane}", self.root).into_bytes()
    }

    pub(super) fn lock(&self) -> Vec<u8> {
        format!("{}lock", self.root).into_bytes()
    }
}

/// The row of a volume.
pub(super) fn volume(prefix: &str, name: &str) -> Vec<u8> {
    format!("{prefix}/volume/{name}").into_bytes()
}

/// The count of volumes.
pub(super) fn volume_count(prefix: &str) -> Vec<u8> {
    format!("{prefix}/volumes").into_bytes()
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An id from hexadecimal digits.
pub(super) fn unhex(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_hold_their_own_and_no_others() {
        let (one, ten) = (Layout::new("covey", 1), Layout::new("covey", 10));
        let within = |(from, to): &Span, key: &[u8]| from.as_slice() <= key && key < to.as_slice();
        let row = |layout: &Layout| layout.row(&Key::from_bytes(b"\xff\xff"));
        for key in
            [one.node_count(), one.node(&[7; 16]), one.alive(3), one.op("3.1", 2), one.lock(), row(&one)]
        {
            assert!(within(&one.all(), &key) && !within(&ten.all(), &key), "{key:?}");
        }
        for key in [ten.node_count(), row(&ten), volume("covey", "1"), volume_count("covey")] {
            assert!(!within(&one.all(), &key), "{key:?}");
        }
        assert!(within(&one.nodes(), &one.node(&[7; 16])) && !within(&one.nodes(), &one.node_count()));
        assert!(within(&one.all_alive(), &one.alive(12)));
        assert_eq!(one.key_of(&row(&one)), Key::from_bytes(b"\xff\xff"));
        assert_eq!(unhex(&hex(&[0xa5; 16])), Some([0xa5; 16]));
        assert_eq!(unhex("12"), None);
    }
}
