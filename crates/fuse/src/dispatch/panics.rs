//! A panic while a request is served: its thread goes on, and the request is answered.

use std::any::Any;

use fs::Errno;

use super::Dispatcher;
use crate::abi::header::Header;
use crate::abi::opcodes::{self, wants_reply};
use crate::channel::Sink;

impl Dispatcher {
    /// Answers a request after a panic. Those of the filesystem are answered where it is called. Any other
    /// one would end the thread that serves the request, and all requests that this thread would have
    /// received.
    pub(super) fn answer_panic(&self, request: &[u8], panic: &(dyn Any + Send), sink: &dyn Sink) {
        let why = panic_text(panic);
        let (unique, header) = (Header::unique_of(request), Header::split(request).ok());
        let header = header.map(|(header, _)| header);
        // A sink takes only the first reply, so this is no second one.
        if let Some(unique) = unique.filter(|_| header.is_none_or(|header| wants_reply(header.opcode))) {
            let _ = sink.reply(unique, -Errno::EIO.0, &[]);
        }
        let Some(header) = header else {
            return (self.0.log)(&format!("fuse: a request that makes no sense led to a panic: {why}"));
        };
        let name = opcodes::find(header.opcode).map_or("?", |line| line.name);
        (self.0.log)(&format!("fuse: {name} of inode {} led to a panic: {why}", header.ino));
    }
}

/// What a panic says.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
