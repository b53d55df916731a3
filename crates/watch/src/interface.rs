//! What an interface is, in the network namespace of the calling thread. The folder `/sys/class/net` shows
//! those of the namespace in which it was mounted.

use std::net::{Ipv4Addr, UdpSocket};

use rustix::io;
use rustix::ioctl::{Opcode, Updater, ioctl};

use crate::object::WatchError;

const SIOCGIFHWADDR: Opcode = 0x8927;
const SIOCETHTOOL: Opcode = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;
const NAME_MAX: usize = 16;

/// `struct ifreq` with the hardware address, whose family is the type of the link.
#[repr(C)]
struct Link {
    name: [u8; NAME_MAX],
    family: u16,
    rest: [u8; 22],
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct Pointing {
    name: [u8; NAME_MAX],
    info: *mut DriverInfo,
    rest: [u8; 16],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// The type of an interface's link: 1 is Ethernet, 772 the loopback.
///
/// # Errors
/// There is no interface of this name.
pub fn link_type(interface: &str) -> Result<u16, WatchError> {
    let (socket, name) = asked(interface)?;
    let mut link = Link { name, family: 0, rest: [0; 22] };
    // SAFETY: the kernel reads and writes a `struct ifreq`, which is 40 bytes, as `Link` is.
    let done = unsafe { ioctl(&socket, Updater::<SIOCGIFHWADDR, Link>::new(&mut link)) };
    done.map_err(|error| unknown(interface, error))?;
    Ok(link.family)
}

/// The name of an interface's driver. None if it has none that says so.
pub fn driver(interface: &str) -> Option<String> {
    let (socket, name) = asked(interface).ok()?;
    let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let mut request = Pointing { name, info: &raw mut info, rest: [0; 16] };
    // SAFETY: the kernel reads a `struct ifreq` and writes the `struct ethtool_drvinfo` of 196 bytes that it
    // points to. Both live until the call returns.
    unsafe { ioctl(&socket, Updater::<SIOCETHTOOL, Pointing>::new(&mut request)) }.ok()?;
    let end = info.driver.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(info.driver.get(..end)?).into_owned())
}

/// A socket to ask with, and the interface's name as the kernel takes it.
fn asked(interface: &str) -> Result<(UdpSocket, [u8; NAME_MAX]), WatchError> {
    let mut name = [0; NAME_MAX];
    if interface.is_empty() || interface.len() >= NAME_MAX {
        return Err(unknown(interface, io::Errno::NODEV));
    }
    name.iter_mut().zip(interface.bytes()).for_each(|(to, from)| *to = from);
    Ok((UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?, name))
}

fn unknown(interface: &str, error: io::Errno) -> WatchError {
    match error {
        io::Errno::NODEV => {
            WatchError::NotThere(format!("the interface {interface} does not exist: see `ip link`"))
        }
        error => WatchError::Io(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_known_and_others_are_not() {
        assert_eq!(link_type("lo").unwrap(), 772);
        for name in ["", "no-such-name", "a-name-that-is-too-long-for-any"] {
            assert!(link_type(name).unwrap_err().to_string().contains("does not exist"), "{name}");
            assert_eq!(driver(name), None);
        }
    }
}
