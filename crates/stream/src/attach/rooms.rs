//! Buffers for the kernel's requests.
//!
//! The kernel may send a request of 1 MiB at any time, so a reader thread always offers a buffer of that
//! size. A small request is copied for its slot, and the buffer is used again at once. A large one takes the
//! buffer with it, and gives it back when nothing refers to it any more. So no buffer is cleared or allocated
//! for each request.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::frame::PAYLOAD_MAX;

/// Requests up to this size are copied.
const COPY_MAX: usize = 8192;
/// The most buffers that are kept for later.
const SPARE_MOST: usize = 16;

/// Buffers that nothing uses.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<Vec<Vec<u8>>>);

impl Rooms {
    /// A buffer of [`PAYLOAD_MAX`] bytes with any content.
    pub fn take(&self) -> Vec<u8> {
        let spare = self.0.lock().pop();
        spare.unwrap_or_else(|| vec![0; PAYLOAD_MAX])
    }

    fn give(&self, room: Vec<u8>) {
        let mut spare = self.0.lock();
        if spare.len() < SPARE_MOST {
            spare.push(room);
        }
    }
}

/// A request that is kept until it has its reply.
#[derive(Debug)]
pub struct Kept {
    bytes: Vec<u8>,
    len: usize,
    home: Option<Arc<Rooms>>,
}

impl Kept {
    /// Keeps the first `len` bytes of a buffer of `rooms`. Leaves a buffer of the same size in its place.
    pub fn of(rooms: &Arc<Rooms>, room: &mut Vec<u8>, len: usize) -> Kept {
        if len <= COPY_MAX {
            return Kept::from(room[..len].to_vec());
        }
        let bytes = std::mem::replace(room, rooms.take());
        Kept { bytes, len, home: Some(Arc::clone(rooms)) }
    }

    /// The bytes of memory that it takes.
    pub fn weight(&self) -> usize {
        self.bytes.len()
    }
}

impl From<Vec<u8>> for Kept {
    fn from(bytes: Vec<u8>) -> Kept {
        Kept { len: bytes.len(), bytes, home: None }
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_request_takes_its_buffer_and_gives_it_back() {
        let rooms = Arc::new(Rooms::default());
        let mut room = rooms.take();
        let first = room.as_ptr();
        room[..3].copy_from_slice(b"one");
        let small = Kept::of(&rooms, &mut room, 3);
        assert_eq!((&*small, room.as_ptr()), (&b"one"[..], first), "a small one is a copy");
        room[COPY_MAX] = 9;
        let large = Kept::of(&rooms, &mut room, COPY_MAX + 1);
        assert!(large.len() == COPY_MAX + 1 && large[COPY_MAX] == 9 && large.as_ptr() == first);
        assert!(room.len() == PAYLOAD_MAX && room.as_ptr() != first);
        drop(large);
        let again = rooms.take();
        assert_eq!(again.as_ptr(), first, "it came back, and is used again");
        for _ in 0..3 * SPARE_MOST {
            rooms.give(vec![0; 1]);
        }
        assert_eq!(rooms.0.lock().len(), SPARE_MOST);
    }
}
