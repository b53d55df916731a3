//! Guests: `covey serve` and `covey attach` as real processes on one machine.
//!
//! A guest here is a mount of this kernel. That it is the same kernel as the server's changes nothing: the
//! two processes share a socket and nothing else.

mod broken;
mod etcd;
mod files;
mod liars;
mod locks;
mod refusals;
mod shared;
mod status;
mod trace;
mod world;
