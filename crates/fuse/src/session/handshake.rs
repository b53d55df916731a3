//! What is settled before the first request.

use base::Ino;
use fs::api::Filesystem;

use crate::abi::Put;
use crate::abi::header::{Header, OUT_HEADER};
use crate::abi::init::{self, Agreed, Offer, Wishes};
use crate::abi::opcodes::op;
use crate::buffer::RequestBuf;
use crate::channel::{Device, Received, Sink, Source};
use crate::mount::MountError;

/// Whether the filesystem answers a lookup of ".", which file handles need.
pub(super) fn serves_dot(fs: &dyn Filesystem) -> bool {
    let served = fs.lookup(Ino::ROOT, b".").is_ok();
    if served {
        fs.forget(Ino::ROOT, 1);
    }
    served
}

/// Answers INIT, the kernel's first request.
///
/// # Errors
/// The kernel is too old, or says something else.
pub(super) fn handshake(device: &Device, wishes: &Wishes) -> Result<Agreed, MountError> {
    let failed = MountError::io("negotiating with the kernel");
    let strange = || failed(std::io::Error::from_raw_os_error(libc::EPROTO));
    let mut buffer = RequestBuf::new();
    let len = loop {
        match device.receive(buffer.bytes()).map_err(&failed)? {
            Received::Request(len) => break len,
            Received::Nothing => {}
            Received::Unmounted | Received::Aborted => return Err(strange()),
        }
    };
    let (header, arguments) = Header::split(&buffer.bytes()[..len]).map_err(|_| strange())?;
    if header.opcode != op::INIT {
        return Err(strange());
    }
    let offer = Offer::read(arguments).map_err(|_| strange())?;
    let agreed = match offer.agree(wishes) {
        Ok(agreed) => agreed,
        Err(error) => {
            let _ = device.reply(header.unique, -error.0, &[]);
            return Err(MountError::OldKernel(offer.minor));
        }
    };
    let mut room = [0; 128 - OUT_HEADER];
    let mut put = Put::new(&mut room);
    init::put_reply(&mut put, &offer, &agreed).map_err(|_| strange())?;
    let len = put.len();
    device.reply(header.unique, 0, &room[..len]).map_err(&failed)?;
    Ok(agreed)
}
