use std::future::Future;

use tokio::io::DuplexStream;

use super::*;

const TIME: Duration = Duration::from_secs(5);

fn greeter(node: u8, secret: &str) -> Greeter {
    let identity = Identity { node: NodeId([node; 16]), role: Role::Node, volume: [7; 16] };
    Greeter::new(identity, &Secret::from_text(secret).unwrap(), TIME)
}

const RIGHT: &str = "the secret of this fleet";

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A frame of any type, as sent.
async fn frame(stream: &mut DuplexStream) -> (Type, Vec<u8>) {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).await.unwrap();
    let header = Header::decode(&head).unwrap();
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (header.kind, payload)
}

#[test]
fn both_ends_learn_the_identity_of_the_other() {
    let (one, other) = (greeter(1, RIGHT), greeter(2, RIGHT));
    let (mut here, mut there) = tokio::io::duplex(4096);
    let (made, taken) =
        run(async { tokio::join!(one.connect(&mut here, Class::Bulk, None), other.accept(&mut there)) });
    assert_eq!(made.unwrap().node, NodeId([2; 16]));
    let taken = taken.unwrap();
    assert_eq!((taken.node, taken.class), (NodeId([1; 16]), Class::Bulk));
}

#[test]
fn a_connection_for_looking_needs_the_secret_and_no_volume() {
    let identity = Identity { node: NodeId([1; 16]), role: Role::Node, volume: [0; 16] };
    let looks = |secret: &str, class| {
        let one = Greeter::new(identity, &Secret::from_text(secret).unwrap(), TIME);
        let other = greeter(2, RIGHT);
        let (mut here, mut there) = tokio::io::duplex(4096);
        run(async { tokio::join!(one.connect(&mut here, class, None), other.accept(&mut there)) })
    };
    let (made, taken) = looks(RIGHT, Class::Look);
    assert!(made.is_ok() && taken.unwrap().class == Class::Look);
    for (secret, class, refusal) in [
        ("a secret that was guessed", Class::Look, Refusal::Secret),
        (RIGHT, Class::Control, Refusal::Volume),
        (RIGHT, Class::Bulk, Refusal::Volume),
    ] {
        let (made, _) = looks(secret, class);
        assert!(matches!(made, Err(HelloError::Refused(why)) if why == refusal), "{class:?}");
    }
}

#[test]
fn the_accepting_node_proves_nothing_to_a_stranger() {
    let (one, other) = (greeter(1, "a secret that was guessed"), greeter(2, RIGHT));
    let (mut here, mut there) = tokio::io::duplex(4096);
    let (made, taken) =
        run(async { tokio::join!(one.connect(&mut here, Class::Control, None), other.accept(&mut there)) });
    assert!(matches!(taken, Err(HelloError::Refused(Refusal::Secret))));
    // The stranger receives REFUSE, and not a WELCOME that it could use.
    assert!(matches!(made, Err(HelloError::Refused(Refusal::Secret))));
}

#[test]
fn a_proof_sent_back_to_its_maker_is_refused() {
    let one = greeter(1, RIGHT);
    let (mut here, mut there) = tokio::io::duplex(4096);
    let mirror = async {
        frame(&mut there).await;
        let mut challenge = [3; 52];
        challenge[16] = 0;
        send(&mut there, Type::Challenge, &challenge).await.unwrap();
        let (kind, proof) = frame(&mut there).await;
        assert_eq!(kind, Type::Proof);
        send(&mut there, Type::Welcome, &proof).await.unwrap();
    };
    let (made, ()) = run(async { tokio::join!(one.connect(&mut here, Class::Control, None), mirror) });
    assert!(matches!(made, Err(HelloError::Refused(Refusal::Secret))));
}

#[test]
fn a_greeting_sent_back_to_its_maker_is_refused() {
    // Node 1 connects to a stranger, which connects to node 1 with node 1's own HELLO, so that node 1 answers
    // its own challenge.
    let one = greeter(1, RIGHT);
    let (mut here, mut there) = tokio::io::duplex(4096);
    let hello = one.hello(Class::Control);
    let stranger = async {
        send(&mut there, Type::Hello, &hello).await.unwrap();
        frame(&mut there).await
    };
    let (taken, (kind, _)) = run(async { tokio::join!(one.accept(&mut here), stranger) });
    assert!(matches!(taken, Err(HelloError::Refused(Refusal::Myself))));
    assert_eq!(kind, Type::Refuse);
}

#[test]
fn what_was_recorded_is_worth_nothing_the_next_time() {
    let (one, other) = (greeter(1, RIGHT), greeter(2, RIGHT));
    // A recorded handshake.
    let (mut here, mut middle) = tokio::io::duplex(4096);
    let (mut beyond, mut there) = tokio::io::duplex(4096);
    let record = async {
        let (_, hello) = frame(&mut middle).await;
        send(&mut beyond, Type::Hello, &hello).await.unwrap();
        let (_, challenge) = frame(&mut beyond).await;
        send(&mut middle, Type::Challenge, &challenge).await.unwrap();
        let (_, proof) = frame(&mut middle).await;
        send(&mut beyond, Type::Proof, &proof).await.unwrap();
        let (_, welcome) = frame(&mut beyond).await;
        send(&mut middle, Type::Welcome, &welcome).await.unwrap();
        (hello, challenge, proof, welcome)
    };
    let (made, taken, (hello, challenge, proof, welcome)) = run(async {
        tokio::join!(one.connect(&mut here, Class::Control, None), other.accept(&mut there), record)
    });
    assert!(made.is_ok() && taken.is_ok());
    // To the accepting node: its challenge is a new one.
    let (mut stream, mut there) = tokio::io::duplex(4096);
    let replay = async {
        send(&mut stream, Type::Hello, &hello).await.unwrap();
        let (_, fresh) = frame(&mut stream).await;
        assert_ne!(fresh, challenge);
        send(&mut stream, Type::Proof, &proof).await.unwrap();
        frame(&mut stream).await.0
    };
    let (taken, kind) = run(async { tokio::join!(other.accept(&mut there), replay) });
    assert!(matches!(taken, Err(HelloError::Refused(Refusal::Secret))));
    assert_eq!(kind, Type::Refuse);
    // To the connecting node: its HELLO is a new one.
    let (mut here, mut stream) = tokio::io::duplex(4096);
    let replay = async {
        frame(&mut stream).await;
        send(&mut stream, Type::Challenge, &challenge).await.unwrap();
        frame(&mut stream).await;
        send(&mut stream, Type::Welcome, &welcome).await.unwrap();
    };
    let (made, ()) = run(async { tokio::join!(one.connect(&mut here, Class::Control, None), replay) });
    assert!(matches!(made, Err(HelloError::Refused(Refusal::Secret))));
}

#[test]
fn a_node_that_was_not_expected_is_left_before_anything_is_proved() {
    let (one, other) = (greeter(1, RIGHT), greeter(2, RIGHT));
    let (mut here, mut there) = tokio::io::duplex(4096);
    let expected = Some(NodeId([3; 16]));
    let made = async {
        let made = one.connect(&mut here, Class::Control, expected).await;
        drop(here);
        made
    };
    let (made, taken) = run(async { tokio::join!(made, other.accept(&mut there)) });
    assert!(matches!(made, Err(HelloError::Another(node)) if node == NodeId([2; 16])));
    assert!(matches!(taken, Err(HelloError::Io(_))));
}
