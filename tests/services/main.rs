//! Tests of what is beside a mount or built on it: other programs, containers, guests, virtual machines, and
//! the services for them.
//!
//! Each module is one subject: see the essay at its top. All of them are one program, because each program is
//! linked with most of the product.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod clients;
mod csi;
mod guests;
mod images;
mod memory;
mod s3_gateway;
mod virtio;
