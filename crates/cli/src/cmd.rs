//! The commands: one file each, with its arguments, what it does and what it prints.

pub mod bench;
pub mod clone;
pub mod df;
pub mod doctor;
pub mod format;
pub mod fsck;
pub mod gc;
pub mod import;
pub mod info;
pub mod mount;
pub mod stats;
pub mod status;
pub mod top;
pub mod trace;
pub mod umount;
pub mod up;
