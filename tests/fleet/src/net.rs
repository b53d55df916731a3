//! Networks of namespaces: a bridge in one namespace, and one of its ports in each of the others.
//!
//! It needs `ip`, `tc` and `nsenter`, which every distribution has, and no packet filter:
//!
//! - *A rate* is a token bucket at both ends of a link.
//! - *Unplugged*: the bridge's end of a link is set down. No packet arrives, and neither side is notified.
//! - *Deaf to one another*: a wrong hardware address for the other port. Packets leave, and no port takes
//!   them. So partitions may have any form, also one-way, and neither side sees an error at once, as when a
//!   switch between them dies.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use covey_tests::program::run_ok;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::sweep::Sweep;
use crate::tool;
use crate::wire::{self, Weather, Wire};

/// An address that no port has.
const NOBODY: &str = "02:00:00:00:00:ff";
/// An `ip` command takes milliseconds, but the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why no bridge can be created here, if so.
pub(crate) fn lacking_bridge() -> Option<String> {
    use std::sync::OnceLock;
    static LACKING: OnceLock<Option<String>> = OnceLock::new();
    let look = || {
        let tag = Sweep::new();
        let name = format!("{}-try", tag.tag());
        let made = tool("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            return Some("network namespaces".to_owned());
        }
        let bridge = tool("ip").args(["-n", &name, "link", "add", "br0", "type", "bridge"]).output();
        let veth = tool("ip").args(["-n", &name, "link", "add", "v0", "type", "veth"]).output();
        let made = |output: std::io::Result<std::process::Output>| output.is_ok_and(|o| o.status.success());
        (!made(bridge) || !made(veth)).then(|| "bridges and veth links".to_owned())
    };
    LACKING.get_or_init(look).clone()
}

/// A bridge in a namespace of its own. See the [module](self).
pub struct Net {
    hub: String,
    // Last: programs that still run in a namespace end when this is dropped.
    sweep: Sweep,
}

impl Net {
    /// A bridge without ports.
    pub fn new() -> Net {
        let sweep = Sweep::new();
        let hub = format!("{}-hub", sweep.tag());
        ip(&["netns", "add", &hub]);
        // No spanning tree, so that a port forwards as soon as it is up.
        batch(
            &hub,
            "link add br0 type bridge stp_state 0 forward_delay 0\nlink set br0 up\nlink set lo up\n",
        );
        Net { hub, sweep }
    }

    /// The folder for everything on this network. It is removed with the network.
    pub fn folder(&self) -> &std::path::Path {
        self.sweep.folder()
    }

    /// Adds a namespace: `name` has at most eight letters, `number` is the last part of its address,
    /// 10.77.0.`number`.
    pub fn port(&self, name: &str, number: u8) -> Port {
        let space = format!("{}-{name}", self.sweep.tag());
        let address = Ipv4Addr::new(10, 77, 0, number);
        ip(&["netns", "add", &space]);
        let more = format!(
            "link add p-{name} type veth peer name eth0 netns {space}\nlink set p-{name} master br0\nlink set p-{name} up\n"
        );
        batch(&self.hub, &more);
        batch(&space, &up(address));
        Port::new(self, space, name, address, None)
    }

    /// The same behind a link with random delay and loss, seeded by `seed`. Do not limit its rate further.
    pub fn port_behind(&self, name: &str, number: u8, weather: Weather, seed: u64) -> Port {
        let space = format!("{}-{name}", self.sweep.tag());
        let address = Ipv4Addr::new(10, 77, 0, number);
        ip(&["netns", "add", &space]);
        let device = format!("p-{name}");
        let here = wire::tap_in(&self.hub, &device);
        let there = wire::tap_in(&space, "eth0");
        batch(&self.hub, &format!("link set {device} master br0\nlink set {device} up\n"));
        batch(&space, &up(address));
        Port::new(self, space, name, address, Some(Wire::new(here, there, weather, seed)))
    }
}

/// Commands for a port's namespace, once it has its device. Its connections use the kernel's default
/// congestion control, cubic, whatever this machine is set to, so that measurements can be repeated on other
/// machines.
fn up(address: Ipv4Addr) -> String {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let cubic = known.is_ok_and(|known| known.split_whitespace().any(|name| name == "cubic"));
    let shares = if cubic { " congctl cubic" } else { "" };
    format!(
        "link set lo up\nlink set eth0 up\naddress add {address}/24 dev eth0 noprefixroute\n\
         route add 10.77.0.0/24 dev eth0 src {address}{shares}\nroute add default dev eth0 src {address}{shares}\n"
    )
}

impl Default for Net {
    fn default() -> Self {
        Net::new()
    }
}

/// The traffic of a port since its creation, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that it received.
    pub received: u64,
    /// Bytes that it sent.
    pub sent: u64,
}

/// A namespace with an address on the network.
pub struct Port {
    space: String,
    device: String,
    hub: String,
    address: Ipv4Addr,
    deaf: Mutex<Vec<Ipv4Addr>>,
    wire: Option<Wire>,
}

impl Port {
    fn new(net: &Net, space: String, name: &str, address: Ipv4Addr, wire: Option<Wire>) -> Port {
        let (device, hub) = (format!("p-{name}"), net.hub.clone());
        Port { space, device, hub, address, deaf: Mutex::default(), wire }
    }

    /// The number of frames that a lossy link dropped.
    pub fn lost(&self) -> u64 {
        self.wire.as_ref().map_or(0, Wire::lost)
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        IpAddr::V4(self.address)
    }

    /// The namespace's name, as `ip netns` shows it.
    pub fn space(&self) -> &str {
        &self.space
    }

    /// The same program in this namespace. Its process id is the program's own: there is no process in
    /// between.
    pub fn wrap(&self, program: &Command) -> Command {
        let mut wrapped = tool("nsenter");
        wrapped.arg(format!("--net=/run/netns/{}", self.space)).arg("--");
        wrapped.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }

    /// Runs `work` on a thread in this namespace. Threads that it starts are in the namespace, too.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.space, work)
    }

    /// The traffic so far, as counted at the bridge's end of the link.
    pub fn traffic(&self) -> Traffic {
        let shown = run_ok(
            tool("ip").args(["-n", &self.hub, "-j", "-s", "link", "show", "dev", &self.device]),
            PATIENCE,
        );
        let link = &shown.json()[0]["stats64"];
        let bytes = |way: &str| link[way]["bytes"].as_u64().unwrap_or(0);
        Traffic { received: bytes("tx"), sent: bytes("rx") }
    }

    /// Limits sending and receiving to so many bits per second each; without a value, no limit.
    pub fn shape(&self, bits: Option<u64>) {
        for (space, device) in [(self.space.as_str(), "eth0"), (self.hub.as_str(), self.device.as_str())] {
            let mut tc = tool("tc");
            let Some(bits) = bits else {
                // A port without a limit has nothing to delete, which is no error.
                let _ = tc.args(["-n", space, "qdisc", "del", "dev", device, "root"]).output();
                continue;
            };
            // A bucket of 4 ms, and never less than the kernel passes on in one piece.
            let (rate, burst) = (format!("{bits}bit"), (bits / 8 / 250).max(96 << 10).to_string());
            tc.args(["-n", space, "qdisc", "replace", "dev", device, "root", "tbf"]);
            tc.args(["rate", &rate, "burst", &burst, "latency", "100ms"]);
            run_ok(&mut tc, PATIENCE);
        }
    }

    /// Unplugs the port from the bridge, or plugs it in again.
    pub fn plug(&self, plugged: bool) {
        batch(&self.hub, &format!("link set {} {}\n", self.device, if plugged { "up" } else { "down" }));
    }

    /// Drops everything that this port sends to the other. Call it on both for a full partition.
    pub fn lose(&self, other: &Port) {
        let to = other.address;
        batch(&self.space, &format!("neighbour replace {to} lladdr {NOBODY} nud permanent dev eth0\n"));
        self.deaf.lock().unwrap().push(to);
    }

    /// Plugs the port in, ends all partitions, and removes the limit.
    pub fn heal(&self) {
        self.plug(true);
        let deaf = std::mem::take(&mut *self.deaf.lock().unwrap());
        for to in deaf {
            // The same partition may be listed twice, but there is only one entry to delete.
            let _ = tool("ip")
                .args(["-n", &self.space, "neighbour", "del", &to.to_string(), "dev", "eth0"])
                .output();
        }
        self.shape(None);
    }
}

/// Runs `work` on a thread in a namespace.
pub(crate) fn inside<T: Send>(space: &str, work: impl FnOnce() -> T + Send) -> T {
    let space = std::fs::File::open(format!("/run/netns/{space}")).unwrap();
    let entered = || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(entered).join().unwrap())
}

fn ip(arguments: &[&str]) {
    run_ok(tool("ip").args(arguments), PATIENCE);
}

/// Runs several `ip` commands in one namespace, with one start of the program.
fn batch(space: &str, commands: &str) {
    use std::io::Write;
    let mut child = tool("ip");
    child.args(["-n", space, "-batch", "-"]).stdin(std::process::Stdio::piped());
    child.stderr(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "ip -n {space}: {said}\n{commands}");
}
