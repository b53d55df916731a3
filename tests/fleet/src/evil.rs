//! A member of the fleet that lies about the blobs it has.
//!
//! It knows the secret, is a member like any other, tells trackers that it has every blob, and sends wrong
//! bytes to nodes that ask it. The transport is the real one; only the data is wrong. So it stands for a disk
//! that rots, a program that was built wrong, and a node that was taken over. It is a thread of this process
//! in a namespace of its own.

use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::BlobId;
use blob::Sums;
use fleet::members::{Contact, NodeHome};
use fleet::node::{Fleet, FleetParts, Transport};
use net::id::{Role, Zone};
use net::seam::{CopyState, Held, Holdings};
use net::secret::Secret;

use crate::fleet::{ZONE, listen};
use crate::net::Port;

/// The kind of lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Other bytes with matching checksums: only the blob's hash reveals it.
    WrongBytesRightSums,
    /// A flipped bit in the bytes, and the blob's own checksums.
    WrongBytesWrongSums,
    /// The blob's own checksums, and its file ends in the middle.
    Truncated,
}

impl Lie {
    /// All kinds.
    pub const ALL: [Lie; 3] = [Lie::WrongBytesRightSums, Lie::WrongBytesWrongSums, Lie::Truncated];

    fn tell(self, mut bytes: Vec<u8>) -> Held {
        let right = Sums::of(&bytes);
        let middle = bytes.len() / 2;
        let sums = match self {
            Lie::WrongBytesRightSums => {
                bytes[middle] ^= 0x10;
                Sums::of(&bytes)
            }
            Lie::WrongBytesWrongSums => {
                bytes[middle] ^= 0x10;
                right
            }
            Lie::Truncated => {
                bytes.truncate(middle);
                right
            }
        };
        let mut file = tempfile();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        Held { file: Arc::new(file), offset: 0, sums: Arc::new(sums) }
    }
}

/// A file without a name, in memory.
fn tempfile() -> File {
    File::from(rustix::fs::memfd_create("covey-lie", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

/// The blobs that it claims to have.
struct Lies {
    held: Vec<(BlobId, Held)>,
    lies_sent: AtomicU64,
}

impl Holdings for Lies {
    fn open(&self, id: &BlobId) -> Option<Held> {
        let found = self.held.iter().find(|(name, _)| name == id)?;
        self.lies_sent.fetch_add(1, Ordering::SeqCst);
        Some(found.1.clone())
    }

    // Ignores the report.
    fn suspect(&self, _: &BlobId) -> CopyState {
        CopyState::Sound
    }

    fn list(&self, each: &mut dyn FnMut(&BlobId) -> bool) {
        for (id, _) in &self.held {
            if !each(id) {
                return;
            }
        }
    }
}

/// A running liar. It leaves the fleet when it is dropped.
pub struct Evil {
    fleet: Fleet,
    lies: Arc<Lies>,
    _port: Port,
}

impl Evil {
    /// Joins the fleet through these addresses.
    pub fn join(fleet: &crate::Fleet, name: &str, number: u8, lie: Lie) -> Evil {
        let port = fleet.net.port(name, number);
        let held = fleet
            .tree
            .blobs()
            .into_iter()
            .map(|path| blob_of(&path))
            .map(|(id, bytes)| (id, lie.tell(bytes)));
        let lies = Arc::new(Lies { held: held.collect(), lies_sent: AtomicU64::new(0) });
        let contacts: Vec<String> = fleet.nodes.iter().take(2).map(|node| listen(&node.port)).collect();
        let parts = FleetParts {
            transport: Transport::Own {
                home: Arc::new(NodeHome::open(&fleet.net.folder().join(name)).unwrap()),
                tls: None,
                listen: listen(&port).parse().unwrap(),
            },
            secret: Secret::from_file(fleet.secret().as_ref()).unwrap(),
            volume: fleet.tree.volume(),
            advertise: None,
            contacts: Contact::parse(&contacts.join(",")).unwrap(),
            zone: Zone::new(ZONE).unwrap(),
            role: Role::Node,
            keeps: false,
            weight: 100,
            table: fetch::Table::new(Default::default(), 64 << 20),
            origin: Arc::new(origin::Memory::new()),
            deadline: Duration::from_secs(55),
            groups: Default::default(),
            report: Arc::new(|_: &str| {}),
        };
        let evil = port.inside(|| Fleet::start(parts).unwrap());
        evil.lend(lies.clone());
        Evil { fleet: evil, lies, _port: port }
    }

    /// How many nodes it sees, itself included.
    pub fn sees(&self) -> usize {
        self.fleet.seen().len()
    }

    /// How often a wrong blob was sent.
    pub fn lies_sent(&self) -> u64 {
        self.lies.lies_sent.load(Ordering::SeqCst)
    }
}

/// A blob and its name, from an object: the sums come first, then the bytes.
fn blob_of(path: &std::path::Path) -> (BlobId, Vec<u8>) {
    let mut object = std::fs::read(path).unwrap();
    object.drain(..Sums::encoded_len(base::size::BLOB_MAX));
    (Sums::of(&object).id(), object)
}
