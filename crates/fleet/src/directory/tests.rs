use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use net::id::NodeId;
use proptest::prelude::*;

use super::*;

fn keys(secret: &str) -> Keys {
    Keys::new(&Secret::from_text(secret).unwrap(), &[7; 16])
}

fn blob(n: u8) -> BlobId {
    BlobId([n; 32])
}

/// A node that answers from its directory until the flag is set.
fn serve(directory: Arc<Directory>, socket: UdpSocket, ends: Arc<AtomicBool>) {
    socket.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while !ends.load(Ordering::SeqCst) {
            let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
            if let Some(answer) = directory.answer(&buffer[..len]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
}

#[test]
fn nodes_say_what_they_have_and_strangers_learn_nothing() {
    let text = Secret::generate_text();
    let ends = Arc::new(AtomicBool::new(false));
    let address = ["127.0.0.1:0", "[::1]:0", "127.0.0.1:0"];
    let (mut nodes, mut directories) = (Vec::new(), Vec::new());
    for (n, address) in address.iter().enumerate() {
        let Ok(socket) = UdpSocket::bind(address) else { continue };
        nodes.push((NodeId([n as u8; 16]), socket.local_addr().unwrap()));
        let directory = Arc::new(Directory::new(keys(&text)));
        directories.push(directory.clone());
        serve(directory, socket, ends.clone());
    }
    // Bound, and never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    nodes.push((NodeId([9; 16]), silent.local_addr().unwrap()));
    let blobs: Vec<BlobId> = (0..20).map(blob).collect();
    blobs[..13].iter().for_each(|id| directories[0].insert(id));
    directories[0].remove(&blob(3));
    blobs.iter().for_each(|id| directories.last().unwrap().insert(id));
    let found = |keys: &Keys| -> Vec<_> {
        ask(keys, &nodes, &blobs).unwrap().into_iter().map(|holder| (holder.node, holder.held)).collect()
    };
    // A node that does not get the processor for three turns counts as silent.
    let all_answer = |found: &Vec<(NodeId, Option<usize>)>| {
        found.split_last().is_some_and(|(_, others)| others.iter().all(|(_, held)| held.is_some()))
    };
    let right = (0..20).map(|_| found(&keys(&text))).find(all_answer).expect("all others answer");
    assert_eq!(right[0], (NodeId([0; 16]), Some(12)));
    assert_eq!(right[right.len() - 2], (NodeId([2; 16]), Some(20)));
    assert_eq!(*right.last().unwrap(), (NodeId([9; 16]), None));
    let wrong = found(&keys(&Secret::generate_text()));
    assert!(wrong.iter().all(|(_, held)| held.unwrap_or(0) == 0), "{wrong:?}");
    ends.store(true, Ordering::SeqCst);
}

#[derive(Default)]
struct Copy(Arc<Mutex<(HashSet<Name>, bool)>>);

impl Mirror for Copy {
    fn insert(&mut self, name: &Name, _: &Proof) {
        assert!(self.0.lock().0.insert(*name), "inserted once");
    }

    fn remove(&mut self, name: &Name) {
        assert!(self.0.lock().0.remove(name), "removed once");
    }

    fn complete(&mut self) {
        self.0.lock().1 = true;
    }
}

#[test]
fn a_mirror_has_the_same_names() {
    let directory = Directory::new(keys(&Secret::generate_text()));
    directory.insert(&blob(1));
    let copy = Copy::default();
    let names = copy.0.clone();
    directory.mirror(Box::new(copy));
    let now = || {
        let names = names.lock();
        (names.0.len(), names.1)
    };
    assert_eq!(now(), (1, true));
    directory.insert(&blob(1));
    directory.insert(&blob(2));
    directory.remove(&blob(1));
    directory.remove(&blob(1));
    assert_eq!(names.lock().0, HashSet::from([directory.keys().name(&blob(2))]));
}

proptest! {
    #[test]
    fn any_datagram_is_answered_by_one_of_the_same_length_or_not_at_all(bytes: Vec<u8>, cut in 0..=LENGTH) {
        let directory = Directory::new(keys(&Secret::generate_text()));
        prop_assert!(directory.answer(&bytes).is_none() || bytes.len() == LENGTH);
        let whole = question([1; 8], &[directory.keys().name(&blob(1)); 3]);
        prop_assert_eq!(directory.answer(&whole[..cut]).is_some(), cut == LENGTH);
        let answer = directory.answer(&whole).unwrap();
        prop_assert_eq!(read_answer(&answer), Some(([1; 8], vec![Proof::default(); 3])));
        prop_assert!(directory.answer(&answer).is_none(), "an answer is no question");
    }
}
