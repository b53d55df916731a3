//! One guest: QEMU, the device that carries its vsock connections, and perhaps virtiofsd.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::console::{Console, Done};
use crate::image;
use crate::kit::Kit;
use crate::process::{Process, until};

/// How long a guest may take to boot on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// What QEMU emulates. Carry-less multiplication is left out: it is emulated bit by bit, and checksums would
/// take more time than everything else.
const EMULATED_CPU: &str = "max,pclmulqdq=off";
/// A guest's memory.
const MEMORY_MIB: u32 = 1024;

/// A folder that virtiofsd gives to the guest, to measure it beside Covey.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The name by which the guest mounts it.
    pub tag: String,
    /// The folder.
    pub folder: PathBuf,
    /// What the guest may keep: virtiofsd's --cache.
    pub cache: &'static str,
}

/// A virtiofs device whose server listens already, at [`vhost_user`].
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The name by which the guest mounts it.
    pub tag: &'a str,
    /// The number of request queues.
    pub queues: u32,
}

/// A running guest. It is gone when this is dropped.
pub struct Machine {
    folder: PathBuf,
    name: String,
    qemu: Process,
    vsock: Process,
    peers: Vec<Process>,
    console: Console,
}

impl Machine {
    /// Boots a guest. Its sockets and logs are in `folder`.
    pub fn boot(kit: &Kit, folder: &Path, name: &str, peers: &[Peer]) -> Machine {
        Machine::boot_with(kit, folder, name, peers, &[])
    }

    /// The same for a guest that also has these devices.
    pub fn boot_with(
        kit: &Kit,
        folder: &Path,
        name: &str,
        peers: &[Peer],
        devices: &[Device<'_>],
    ) -> Machine {
        let image = folder.join(format!("{name}.cpio"));
        image::write(kit, &image);
        let vsock = start_vsock(kit, folder, name);
        let peers: Vec<(String, Process)> =
            peers.iter().map(|peer| (peer.tag.clone(), start_peer(kit, folder, peer))).collect();
        let mut command = Command::new(&kit.qemu);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-smp", "2"])
            .args(["-m", &format!("{MEMORY_MIB}M"), "-machine"])
            .arg(format!("q35,accel={},memory-backend=mem", kit.accel))
            .args(["-cpu", if kit.accel == "kvm" { "host" } else { EMULATED_CPU }, "-object"])
            .arg(format!("memory-backend-memfd,id=mem,size={MEMORY_MIB}M,share=on"))
            .arg("-kernel")
            .arg(&kit.kernel)
            .arg("-initrd")
            .arg(&image)
            .args(["-append", "console=ttyS0 tsc=reliable panic=-1 quiet no_timer_check random.trust_cpu=on"])
            .args(["-serial", &format!("file:{}", text(&folder.join(format!("{name}.console"))))])
            .args([
                "-serial",
                &format!("unix:{},server=on,wait=off", text(&folder.join(format!("{name}.tty")))),
            ])
            .arg("-chardev")
            .arg(format!("socket,id=vsock,path={}", text(&folder.join(format!("{name}.vhost")))))
            .args(["-device", "vhost-user-vsock-pci,chardev=vsock"]);
        let of_peers = peers.iter().map(|(tag, _)| Device { tag, queues: 1 });
        for Device { tag, queues } in of_peers.chain(devices.iter().copied()) {
            let socket = text(&socket_of(folder, tag));
            command.args(["-chardev", &format!("socket,id={tag},path={socket}")]);
            let device = format!("vhost-user-fs-pci,chardev={tag},tag={tag},num-request-queues={queues}");
            command.args(["-device", &format!("{device},queue-size=1024")]);
        }
        let mut qemu = Process::start(&mut command, &folder.join(format!("{name}.qemu.log")));
        let console = Console::open(&folder.join(format!("{name}.tty")), BOOT).unwrap_or_else(|why| {
            let said = std::fs::read_to_string(folder.join(format!("{name}.console"))).unwrap_or_default();
            panic!("{why}; QEMU runs: {}\n{}\n{said}", qemu.runs(), qemu.log())
        });
        let peers = peers.into_iter().map(|(_, process)| process).collect();
        Machine { folder: folder.to_owned(), name: name.to_owned(), qemu, vsock, peers, console }
    }

    /// Where a server of this guest listens: `covey serve --on` takes it.
    pub fn address(&self, port: u32) -> String {
        address(&self.folder, &self.name, port)
    }

    /// Runs scripts in the guest.
    pub fn console(&mut self) -> &mut Console {
        &mut self.console
    }

    /// Runs a script, as [`Console::run`].
    pub fn run(&mut self, script: &str) -> Done {
        self.console.run(script)
    }

    /// Runs a script that must succeed, as [`Console::ok`].
    pub fn ok(&mut self, script: &str) -> String {
        self.console.ok(script)
    }

    /// The same with a limit of time.
    pub fn ok_for(&mut self, script: &str, limit: Duration) -> String {
        self.console.ok_for(script, limit)
    }

    /// Attaches in the guest, and waits until it is mounted. `words`: options, address and mountpoint.
    pub fn attach(&mut self, words: &str) {
        let done = self.run(&attach(words));
        assert!(done.status == 0, "covey-attach {words}: {}", done.text);
    }

    /// The numbers of its processes on this machine.
    pub fn pids(&self) -> Vec<u32> {
        [&self.qemu, &self.vsock].into_iter().chain(&self.peers).map(Process::pid).collect()
    }

    /// What the guest's kernel and the devices printed, for a message.
    pub fn logs(&self) -> String {
        let console = std::fs::read_to_string(self.folder.join(format!("{}.console", self.name)));
        let peers: String = self.peers.iter().map(Process::log).collect();
        format!("{}\n{}\n{}\n{peers}", console.unwrap_or_default(), self.vsock.log(), self.qemu.log())
    }

    /// Kills the guest as a power cut does. Its devices end too.
    pub fn kill(mut self) {
        self.qemu.kill();
        self.vsock.kill();
        self.peers.iter_mut().for_each(Process::kill);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- console of {}\n{}", self.name, self.logs());
        }
        self.qemu.kill();
    }
}

/// Where a server of a guest listens. The guest need not have booted.
pub fn address(folder: &Path, name: &str, port: u32) -> String {
    format!("vsock:{}:{port}", text(&folder.join(format!("{name}.vsock"))))
}

/// Where a server of a virtiofs device listens: `covey serve --on` takes it.
pub fn vhost_user(folder: &Path, tag: &str) -> String {
    format!("vhost-user:{}", text(&socket_of(folder, tag)))
}

fn socket_of(folder: &Path, tag: &str) -> PathBuf {
    folder.join(format!("{tag}.fs"))
}

/// A script that attaches. The mount's log is below /tmp under the mountpoint's name.
pub fn attach(words: &str) -> String {
    let mountpoint = words.rsplit(' ').next().unwrap();
    let log = format!("/tmp/attach{}.log", mountpoint.replace('/', "-"));
    format!(
        "mkdir -p {mountpoint}; : > {log}; setsid covey-attach {words} >> {log} 2>&1 &\n\
         pid=$!\n\
         while kill -0 $pid 2> /dev/null; do grep -q '^mounted' {log} && exit 0; usleep 20000; done\n\
         cat {log}; exit 1"
    )
}

fn start_vsock(kit: &Kit, folder: &Path, name: &str) -> Process {
    let socket = folder.join(format!("{name}.vhost"));
    let uds = folder.join(format!("{name}.vsock"));
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(&uds);
    let mut command = Command::new(&kit.vsock);
    command.arg("--guest-cid").arg("3").arg("--socket").arg(&socket).arg("--uds-path").arg(&uds);
    let mut device = Process::start(&mut command, &folder.join(format!("{name}.vsock.log")));
    until("vhost-device-vsock listens", || {
        assert!(device.runs(), "{}", device.log());
        socket.exists()
    });
    device
}

fn start_peer(kit: &Kit, folder: &Path, peer: &Peer) -> Process {
    let socket = socket_of(folder, &peer.tag);
    let mut command = Command::new(kit.virtiofsd.as_ref().unwrap());
    command.arg("--socket-path").arg(&socket).arg("--shared-dir").arg(&peer.folder);
    command.args(["--cache", peer.cache, "--sandbox", "chroot"]);
    let mut process = Process::start(&mut command, &folder.join(format!("{}.fs.log", peer.tag)));
    until("virtiofsd listens", || {
        assert!(process.runs(), "{}", process.log());
        socket.exists()
    });
    process
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
