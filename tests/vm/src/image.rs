//! The file system in memory from which a guest boots, as the archive that the kernel unpacks (cpio, "newc").

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::kit::Kit;

/// The guest's first process: it mounts what a program expects, loads the modules, and runs the scripts that
/// come over the second serial port. A script is one line in base64. Its output comes back the same way, with
/// its exit status.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp -o mode=1777
mount -t tmpfs shm /dev/shm
for module in $(cat /modules/order); do insmod /modules/$module; done
ip link set lo up
hostname guest
exec < /dev/ttyS1 > /dev/ttyS1 2> /dev/console
stty raw -echo
echo ready
while read -r line; do
    echo "$line" | base64 -d > /tmp/.script
    setsid sh /tmp/.script > /tmp/.out 2>&1 < /dev/null
    status=$?
    base64 /tmp/.out
    echo "status $status"
done
poweroff -f
"#;

/// Users and groups. `staff` has a second group, for tests of supplementary groups.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n\
                      staff:x:2000:2000::/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\nstaff:x:2000:\nshared:x:3000:staff\n";

/// Writes the archive of a guest that has this kit.
pub fn write(kit: &Kit, path: &Path) {
    let mut archive = Archive::default();
    let folders =
        ["bin", "dev", "etc", "mnt", "mnt2", "mnt3", "modules", "proc", "root", "run", "sys", "tmp", "usr"];
    folders.iter().for_each(|name| archive.add(name, 0o40755, &[]));
    for (name, target) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/sbin")] {
        archive.add(name, 0o120_777, target.as_bytes());
    }
    archive.add("init", 0o100_755, INIT.as_bytes());
    archive.add("etc/passwd", 0o100_644, PASSWD.as_bytes());
    archive.add("etc/group", 0o100_644, GROUP.as_bytes());
    let programs = [("busybox", &kit.busybox), ("covey-attach", &kit.attach), ("in-guest", &kit.in_guest)];
    for (name, file) in programs {
        archive.add(&format!("bin/{name}"), 0o100_755, &std::fs::read(file).unwrap());
    }
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    for module in &kit.modules {
        archive.add(&format!("modules/{}", name(module)), 0o100_644, &std::fs::read(module).unwrap());
    }
    let order: String = kit.modules.iter().map(|module| name(module) + "\n").collect();
    archive.add("modules/order", 0o100_644, order.as_bytes());
    std::fs::File::create(path).unwrap().write_all(&archive.end()).unwrap();
}

/// An archive that grows.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    last: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.last += 1;
        let links = if mode & 0o170_000 == 0o40_000 { 2 } else { 1 };
        let (size, name_len) = (data.len() as u32, name.len() as u32 + 1);
        // number, mode, user, group, links, time, size, four device numbers, length of the name, check
        let fields = [self.last, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08X}").as_bytes()));
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every member begins at a multiple of four, and the archive ends with the name that ends it.
    #[test]
    fn members_are_aligned() {
        let mut archive = Archive::default();
        archive.add("a", 0o40755, &[]);
        archive.add("a/file", 0o100_644, b"12345");
        let bytes = archive.end();
        let starts: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| *w == b"070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0) && bytes.len() % 4 == 0, "{starts:?}");
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
    }
}
