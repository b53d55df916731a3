//! The guest's side of the greeting, and of taking over a session in which the server starts anew.

use std::fmt;
use std::time::Duration;

use crate::address::Address;
use crate::frame::{HOLD_MAX, Head, Kind, PAYLOAD_MAX};
use crate::hello::{self, ABOUT, Challenge, Hello, Id, Keys, LOCKS, Refusal, TIMES, VERSION, Welcome};
use crate::socket::{Lost, Receiver, Socket};

/// How long connecting, and each step of the greeting, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one send may stand still before the connection counts as dead.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no connection.
#[derive(Debug)]
pub struct Trouble {
    /// For people: what happened and what to do.
    pub text: String,
    /// Whether a later attempt may succeed.
    pub may_pass: bool,
}

impl Trouble {
    /// A later attempt may succeed.
    pub fn passing(text: impl fmt::Display) -> Trouble {
        Trouble { text: text.to_string(), may_pass: true }
    }

    /// Returns the trouble of an attempt that will fail again.
    pub fn lasting(text: impl fmt::Display) -> Trouble {
        Trouble { text: text.to_string(), may_pass: false }
    }
}

impl From<Lost> for Trouble {
    fn from(lost: Lost) -> Trouble {
        match lost {
            Lost::Bad(bad) => Trouble::lasting(format!("it is no Covey server, or another version: {bad}")),
            Lost::Io(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN)) => {
                Trouble::passing(format!("it did not answer within {} s", PATIENCE.as_secs()))
            }
            Lost::Closed => Trouble::passing("it closed the connection during the greeting"),
            other => Trouble::passing(other),
        }
    }
}

/// A connection on which both ends have greeted.
pub struct Greeted {
    /// Receives from it.
    pub receiver: Receiver,
    /// What the server granted.
    pub welcome: Welcome,
    /// The run of the server.
    pub instance: Id,
    /// Whether it measures traced requests.
    pub times: bool,
    /// Whether it decides locks for all guests.
    pub locks: bool,
    /// Which program it says that it is. Empty: it does not say.
    pub about: String,
}

/// Connects and greets. `session`: the session to continue, or zeros. `index`: which connection of it.
///
/// # Errors
/// [`Trouble`].
pub fn greet(address: &Address, keys: &Keys, session: Id, index: u16) -> Result<Greeted, Trouble> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Trouble::lasting(format!("not allowed to connect ({error}): the socket belongs to another user"))
        }
        _ if matches!(address, Address::Vsock { .. }) && lacks_vsock(&error) => Trouble::passing(format!(
            "cannot connect ({error}): this kernel has no vsock device; give the virtual machine one, and load its \
             driver with `modprobe vmw_vsock_virtio_transport`"
        )),
        _ => Trouble::passing(format!("cannot connect ({error}): is `covey serve` running there?")),
    };
    let socket = Socket::connect(address, PATIENCE).map_err(failed)?;
    socket.limit(Some(PATIENCE), Some(PATIENCE)).map_err(Trouble::passing)?;
    let mut nonce = [0; 32];
    base::random::fill(&mut nonce);
    let features = TIMES | LOCKS | ABOUT;
    let hello = Hello { version: VERSION, features, session, nonce, index }.encode();
    let mut room = vec![0; PAYLOAD_MAX];
    let sent = |done: std::io::Result<()>| done.map_err(Trouble::passing);
    sent(socket.send(&Head::plain(Kind::Hello), &[&hello]))?;
    let mut receiver = Receiver::new(socket);
    let got = receiver.receive_kind(Kind::Challenge, &mut room)?;
    let challenge = payload(&got, &room, Challenge::decode)?;
    let challenge_bytes = room[..got.len].to_vec();
    if challenge.version != VERSION {
        return Err(other_version(challenge.version));
    }
    match (challenge.secret, keys.has_secret()) {
        (true, false) => {
            return Err(Trouble::lasting("it asks for a secret: give its file with --secret-file"));
        }
        (false, true) => {
            return Err(Trouble::lasting(
                "it has no secret, so it cannot prove what it is: start `covey serve` with --secret-file, \
                 or leave --secret-file out here",
            ));
        }
        _ => {}
    }
    let proof = keys.guest(&hello, &challenge_bytes);
    sent(receiver.socket().send(&Head::plain(Kind::Proof), &[&proof]))?;
    let about = match challenge.features & ABOUT {
        0 => String::new(),
        _ => {
            let got = receiver.receive_kind(Kind::About, &mut room)?;
            payload(&got, &room, hello::text)?
        }
    };
    let got = receiver.receive_kind(Kind::Welcome, &mut room)?;
    let welcome = payload(&got, &room, Welcome::decode)?;
    if !hello::same(&welcome.proof, &keys.server(&hello, &challenge_bytes)) {
        return Err(Trouble::lasting("its proof is wrong: it does not know the secret"));
    }
    if welcome.slots == 0 || (welcome.bytes as usize) < 2 * PAYLOAD_MAX {
        return Err(Trouble::lasting("it grants too little to work with"));
    }
    receiver.socket().limit(None, Some(SEND_PATIENCE)).map_err(Trouble::passing)?;
    let has = |feature| challenge.features & feature != 0;
    let (times, locks) = (has(TIMES), has(LOCKS));
    Ok(Greeted { receiver, welcome, instance: challenge.instance, times, locks, about })
}

fn other_version(version: u16) -> Trouble {
    Trouble::lasting(format!(
        "it speaks version {version} of the protocol, and this program version {VERSION}: \
         bring both to one release"
    ))
}

fn payload<T>(got: &Head, room: &[u8], decode: fn(&[u8]) -> Option<T>) -> Result<T, Trouble> {
    let payload = &room[..got.len];
    if got.kind == Kind::Refuse {
        return Err(refused(payload));
    }
    decode(payload).ok_or_else(|| Trouble::lasting(format!("its {:?} makes no sense", got.kind)))
}

/// What a REFUSE says.
pub fn refused(payload: &[u8]) -> Trouble {
    match hello::decode_refusal(payload) {
        Some((why, text)) => Trouble { text, may_pass: why.may_pass() || why == Refusal::Busy },
        None => Trouble::passing("it refused, and its reason makes no sense"),
    }
}

/// Whether connecting failed because there is no device, or no such family of sockets.
fn lacks_vsock(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::ENODEV))
}

/// Tells a server that knows nothing of this mount what the mount has: what INIT agreed, and the inodes that
/// the kernel holds.
///
/// # Errors
/// [`Trouble`].
pub fn restore(
    receiver: &mut Receiver,
    agreed: (u32, u64),
    held: impl IntoIterator<Item = (u64, u64)>,
) -> Result<(), Trouble> {
    const PAIR: usize = 16;
    receiver.socket().limit(Some(PATIENCE), Some(PATIENCE)).map_err(Trouble::passing)?;
    let mut room = vec![0; PAYLOAD_MAX];
    let mut say = |kind, payload: &[u8]| -> Result<(), Trouble> {
        receiver.socket().send(&Head::plain(kind), &[payload]).map_err(Trouble::passing)?;
        let got = receiver.receive_kind(Kind::Held, &mut room)?;
        if got.kind == Kind::Refuse { Err(refused(&room[..got.len])) } else { Ok(()) }
    };
    let (minor, flags) = agreed;
    say(Kind::Agreed, &[&minor.to_le_bytes()[..], &flags.to_le_bytes()].concat())?;
    let mut some = Vec::new();
    for (node, count) in held {
        some.extend(node.to_le_bytes());
        some.extend(count.to_le_bytes());
        if some.len() + PAIR > HOLD_MAX {
            say(Kind::Hold, &some)?;
            some.clear();
        }
    }
    if !some.is_empty() {
        say(Kind::Hold, &some)?;
    }
    receiver.socket().limit(None, Some(SEND_PATIENCE)).map_err(Trouble::passing)
}
