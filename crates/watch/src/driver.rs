//! What other machines ask of this one, seen in the driver of one interface (XDP): requests of S3 clients are
//! counted, and questions of other nodes, which blobs this node has, are answered.
//!
//! The idea of an answer from the driver is that of BMC (Ghigoff and others, NSDI 2021), for a directory
//! instead of values.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapError};
use aya::programs::{Program, XdpMode};
use serde::Serialize;

use crate::counts::{self, map, present};
use crate::interface;
use crate::object::{self, Cost, DRIVER, Setting, WatchError, refused};
use crate::status::{self, OF_DRIVER};

/// The keyed name of a blob in questions.
pub type Name = [u8; 16];
/// What proves that a node has a blob.
pub type Proof = [u8; 8];

/// What to look for.
#[derive(Clone, Debug)]
pub struct Target {
    /// The interface on which packets arrive.
    pub interface: String,
    /// The TCP port whose requests are counted. 0: none are.
    pub served_port: u16,
    /// The UDP port to which other nodes send questions. 0: none are answered.
    pub asked_port: u16,
}

/// Sums of everything seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[repr(C)]
pub struct Totals {
    /// Packets to the port whose requests are counted.
    pub packets: u64,
    /// Requests.
    pub requests: u64,
    /// GET requests.
    pub get: u64,
    /// PUT requests.
    pub put: u64,
    /// Other requests.
    pub other: u64,
    /// Questions of nodes.
    pub questions: u64,
    /// Questions that were answered in the driver.
    pub answered: u64,
    /// Names in these.
    pub names: u64,
    /// Names of blobs that this node has.
    pub found: u64,
    /// Questions that were left to the daemon.
    pub passed: u64,
}

/// What one client asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The client's address.
    pub address: IpAddr,
    /// Requests.
    pub requests: u64,
    /// GET requests.
    pub get: u64,
    /// PUT requests.
    pub put: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    requests: u64,
    get: u64,
    put: u64,
    last: u64,
}

// SAFETY: plain numbers without padding, as `struct totals` of bpf/driver.bpf.c.
unsafe impl aya::Pod for Totals {}
// SAFETY: plain numbers without padding, as `struct client` of bpf/driver.bpf.c.
unsafe impl aya::Pod for Row {}

impl Totals {
    fn add(&mut self, more: &Totals) {
        let Totals { packets, requests, get, put, other, questions, answered, names, found, passed } = more;
        self.packets += packets;
        self.requests += requests;
        self.get += get;
        self.put += put;
        self.other += other;
        self.questions += questions;
        self.answered += answered;
        self.names += names;
        self.found += found;
        self.passed += passed;
    }
}

/// How the program is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By the driver, before the kernel makes anything of the packet.
    Driver,
    /// By the kernel, before its network stack: for drivers that cannot.
    Kernel,
}

/// An interface that is watched, until this is dropped.
pub struct DriverWatch {
    object: Ebpf,
    mode: Mode,
}

impl DriverWatch {
    /// Attaches to an interface: in its driver if that can, otherwise before the network stack.
    ///
    /// # Errors
    /// The interface does not exist, it has another program of this kind, or the kernel refuses this one.
    pub fn attach(target: &Target) -> Result<DriverWatch, WatchError> {
        let interface = &target.interface;
        interface::link_type(interface)?;
        let mut watch = DriverWatch::load(target)?;
        let name = "asked_of_us";
        let Some(Program::Xdp(program)) = watch.object.program_mut(name) else {
            return Err(WatchError::NotThere(format!("the object has no program {name}")));
        };
        // A pair of virtual interfaces drops answers unless its other end has a program, too.
        let is_pair = interface::driver(interface).is_some_and(|driver| driver == "veth");
        if !is_pair && program.attach(interface, XdpMode::Driver).is_ok() {
            watch.mode = Mode::Driver;
            return Ok(watch);
        }
        program.attach(interface, XdpMode::Skb).map_err(|error| refused(name, &error))?;
        Ok(watch)
    }

    /// Loads the program and does not attach it.
    pub(crate) fn load(target: &Target) -> Result<DriverWatch, WatchError> {
        let btf = object::btf()?;
        let settings = [
            ("served_port", Setting::U16(target.served_port)),
            ("asked_port", Setting::U16(target.asked_port)),
        ];
        let mut object = object::load(DRIVER, &btf, &settings)?;
        for program in OF_DRIVER {
            status::load(&mut object, &btf, program)?;
        }
        Ok(DriverWatch { object, mode: Mode::Kernel })
    }

    /// How the program is called.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Notes that this node has a blob from now on. Returns false if there is no room for it.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn insert(&mut self, name: &Name, proof: &Proof) -> Result<bool, WatchError> {
        let mut held = self.held()?;
        match held.insert(name, proof, 0) {
            Ok(()) => Ok(true),
            Err(MapError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(rustix::io::Errno::TOOBIG.raw_os_error()) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that this node does not have a blob any more.
    ///
    /// # Errors
    /// The map cannot be written. That the name is not in it is no error.
    pub fn remove(&mut self, name: &Name) -> Result<(), WatchError> {
        match self.held()?.remove(name) {
            Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == std::io::ErrorKind::NotFound => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the map has everything that this node has. Until then, the daemon answers questions about
    /// names that are not in it.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_complete(&mut self, complete: bool) -> Result<(), WatchError> {
        let found = self.object.map_mut("complete");
        let map = found.ok_or_else(|| WatchError::NotThere("no map complete".into()))?;
        let mut all: Array<_, u32> = Array::try_from(map)?;
        Ok(all.set(0, u32::from(complete), 0)?)
    }

    fn held(&mut self) -> Result<HashMap<&mut aya::maps::MapData, Name, Proof>, WatchError> {
        let found = self.object.map_mut("held");
        let map = found.ok_or_else(|| WatchError::NotThere("no map held".into()))?;
        Ok(HashMap::try_from(map)?)
    }

    /// Sums of everything seen.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn totals(&self) -> Result<Totals, WatchError> {
        let mut sum = Totals::default();
        counts::each_cpu::<Totals>(&self.object, "totals", 0)?.iter().for_each(|each| sum.add(each));
        Ok(sum)
    }

    /// The clients that asked, the busiest first.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn clients(&self) -> Result<Vec<Client>, WatchError> {
        let clients: HashMap<_, [u8; 16], Row> = HashMap::try_from(map(&self.object, "clients")?)?;
        let rows = clients.iter().filter_map(present);
        let mut found = rows
            .map(|row| {
                let (address, Row { requests, get, put, .. }) = row?;
                Ok(Client { address: address_of(address), requests, get, put })
            })
            .collect::<Result<Vec<_>, WatchError>>()?;
        found.sort_by_key(|client| std::cmp::Reverse(client.requests));
        Ok(found)
    }

    /// What the program costs ([`object::costs`]).
    pub fn costs(&self) -> Vec<Cost> {
        object::costs(&self.object)
    }
}

/// An address as the programs keep it: IPv4 in the last four bytes, behind zeros.
fn address_of(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Ipv4Addr::new(a, b, c, d).into(),
        bytes => Ipv6Addr::from(bytes).into(),
    }
}

#[cfg(test)]
mod tests;
