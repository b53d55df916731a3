//! What is settled before the first request.

use base::Ino;
use fs::Errno;
use fs::api::Filesystem;

use crate::abi::Put;
use crate::abi::header::{Header, OUT_HEADER};
use crate::abi::init::{self, Agreed, Offer, Wishes};
use crate::abi::opcodes::op;
use crate::buffer::RequestBuf;
use crate::channel::{Device, Received, Sink, Source};
use crate::mount::MountError;

use super::Options;

/// Whether the filesystem answers a lookup of ".", which file handles need.
pub(crate) fn serves_dot(fs: &dyn Filesystem) -> bool {
    let served = fs.lookup(Ino::ROOT, b".").is_ok();
    if served {
        fs.forget(Ino::ROOT, 1);
    }
    served
}

/// What the options of a mount ask of the kernel, without locks and io_uring.
pub(super) fn wishes(fs: &dyn Filesystem, options: &Options, shared: bool) -> Wishes {
    Wishes {
        writeback: !options.mount.read_only && !shared && options.writeback.unwrap_or(true),
        export: serves_dot(fs),
        shared,
        keeps: options.replaceable || fs.leases().is_some(),
        plain: !options.xattrs,
        ..Wishes::default()
    }
}

/// Answers INIT, the kernel's first request.
///
/// # Errors
/// The kernel is too old, or says something else.
pub(crate) fn handshake(device: &Device, wishes: &Wishes) -> Result<Agreed, MountError> {
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
    let request = &buffer.bytes()[..len];
    let header = Header::split(request).map_err(|_| strange())?.0;
    match negotiate(request, wishes) {
        Ok((agreed, reply)) => {
            device.reply(header.unique, 0, &reply).map_err(&failed)?;
            Ok(agreed)
        }
        Err((error, None)) => {
            let _ = device.reply(header.unique, -error.0, &[]);
            Err(strange())
        }
        Err((error, Some(minor))) => {
            let _ = device.reply(header.unique, -error.0, &[]);
            Err(MountError::OldKernel(minor))
        }
    }
}

/// What INIT agrees, and the body of its reply. `request` is the whole request.
///
/// # Errors
/// An error number for the kernel. With it its minor version, if the kernel is too old.
pub(crate) fn negotiate(request: &[u8], wishes: &Wishes) -> Result<(Agreed, Vec<u8>), (Errno, Option<u32>)> {
    let (header, arguments) = Header::split(request).map_err(|error| (error, None))?;
    if header.opcode != op::INIT {
        return Err((Errno::EIO, None));
    }
    let offer = Offer::read(arguments).map_err(|error| (error, None))?;
    let agreed = offer.agree(wishes).map_err(|error| (error, Some(offer.minor)))?;
    let mut room = [0; 128 - OUT_HEADER];
    let mut put = Put::new(&mut room);
    init::put_reply(&mut put, &offer, &agreed).map_err(|error| (error, None))?;
    let len = put.len();
    Ok((agreed, room[..len].to_vec()))
}
