//! What a guest is made of: its kernel, the programs of the host, and those of the guest.
//!
//! `make test-guests` puts all of it in place (`scripts/guest-kit`). Settings, all by environment:
//!
//! - `COVEY_GUEST_KIT`: the folder with `vmlinuz` and `modules`; by default `covey/guests` in the user's
//!   cache.
//! - `VHOST_DEVICE_VSOCK`, `VIRTIOFSD`: these programs; by default those of the same names in the kit.
//! - `COVEY_ATTACH`, `COVEY_IN_GUEST`: the guest's programs, as static files.
//! - `COVEY_GUEST_ACCEL`: `tcg` (the default), or `kvm` on a machine whose /dev/kvm runs usual kernels.

use std::path::{Path, PathBuf};

use covey_tests::need::which;

/// The modules that a guest loads, in this order. One that is missing is part of the kernel.
pub const MODULES: [&str; 11] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "fuse",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
    "virtiofs",
    "overlay",
];

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Kit {
    /// The kernel.
    pub kernel: PathBuf,
    /// The modules of [`MODULES`] that are files.
    pub modules: Vec<PathBuf>,
    /// QEMU.
    pub qemu: PathBuf,
    /// A static busybox.
    pub busybox: PathBuf,
    /// vhost-device-vsock.
    pub vsock: PathBuf,
    /// virtiofsd, if there is one: only measurements need it.
    pub virtiofsd: Option<PathBuf>,
    /// covey-attach, static.
    pub attach: PathBuf,
    /// in-guest, static.
    pub in_guest: PathBuf,
    /// QEMU's accelerator.
    pub accel: String,
}

impl Kit {
    /// Finds everything.
    ///
    /// # Errors
    /// What is lacking.
    pub fn find() -> Result<Kit, String> {
        if !rustix_root() {
            return Err("root".into());
        }
        let folder = setting("COVEY_GUEST_KIT").unwrap_or_else(cache);
        let kernel = file(&folder.join("vmlinuz"), "a guest's kernel (make test-guests fetches it)")?;
        let program = |name: &str| which(name).ok_or(format!("the program {name}"));
        let device = |variable: &str, name: &str| {
            let path =
                setting(variable).or_else(|| which(name)).unwrap_or_else(|| folder.join("bin").join(name));
            file(&path, &format!("{name} ({variable}=path of its program)"))
        };
        let ours = |variable: &str| {
            let path = setting(variable).ok_or(format!("{variable}= in the environment"))?;
            file(&path, variable)
        };
        Ok(Kit {
            kernel,
            modules: modules(&folder.join("modules")),
            qemu: program("qemu-system-x86_64")?,
            busybox: program("busybox")?,
            vsock: device("VHOST_DEVICE_VSOCK", "vhost-device-vsock")?,
            virtiofsd: device("VIRTIOFSD", "virtiofsd").ok(),
            attach: ours("COVEY_ATTACH")?,
            in_guest: ours("COVEY_IN_GUEST")?,
            accel: std::env::var("COVEY_GUEST_ACCEL").unwrap_or_else(|_| "tcg".into()),
        })
    }
}

/// The kit, unless something is lacking: then the test says so and ends.
#[macro_export]
macro_rules! kit {
    () => {
        match $crate::kit::Kit::find() {
            Ok(kit) => kit,
            Err(lacking) => {
                covey_tests::say(format_args!("skipped: lacks {lacking}"));
                return;
            }
        }
    };
}

fn rustix_root() -> bool {
    // SAFETY: the call takes nothing.
    unsafe { libc::geteuid() == 0 }
}

fn setting(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache() -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    setting("XDG_CACHE_HOME").unwrap_or_else(home).join("covey/guests")
}

fn file(path: &Path, what: &str) -> Result<PathBuf, String> {
    path.is_file().then(|| path.to_owned()).ok_or(format!("{what}: there is no {}", path.display()))
}

fn modules(folder: &Path) -> Vec<PathBuf> {
    MODULES.iter().map(|name| folder.join(format!("{name}.ko"))).filter(|path| path.is_file()).collect()
}
