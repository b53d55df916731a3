//! A mount that is exported again over NFS, by NFS-Ganesha, in a network namespace of its own.
//!
//! The kernel's server (nfsd) uses the same handles, through the same calls of the kernel's filesystem. A
//! client in this kernel would need its NFS client, which few test machines have; so the client is libnfs.
//! It cannot encode large writes of NFS 4, so what is written here is small.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::wait;
use covey_tests::{Finished, Need, Volume, requires, run, run_ok};

const LIMIT: Duration = Duration::from_secs(30);
const PORT: u16 = 20_490;

/// A network namespace with a loopback interface.
struct Network(String);

impl Network {
    fn new() -> Network {
        let name = format!("covey-nfs-{}", std::process::id());
        run_ok(Command::new("ip").args(["netns", "add", &name]), LIMIT);
        let network = Network(name);
        run_ok(Command::new("ip").args(["-n", &network.0, "link", "set", "lo", "up"]), LIMIT);
        network
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    /// Runs a client of libnfs. In `words`, what begins with `nfs:` is a path of the export.
    fn client(&self, program: &str, words: &[&str]) -> Finished {
        let url = |word: &&str| match word.strip_prefix("nfs:") {
            Some(path) => format!("nfs://127.0.0.1/covey{path}?version=4&nfsport={PORT}"),
            None => (*word).to_owned(),
        };
        run(self.command(program).args(words.iter().map(url)), LIMIT)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        Command::new("ip").args(["netns", "del", &self.0]).status().ok();
    }
}

/// NFS-Ganesha.
struct Ganesha(Child);

impl Ganesha {
    fn start(network: &Network, folder: &Path, export: &Path) -> Ganesha {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {PORT}; Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {}; }}\n\
             EXPORT {{ Export_Id = 77; Path = {}; Pseudo = /covey; Protocols = 4; Transports = TCP; \
             Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Filesystem_Id = 7.7; FSAL {{ Name = VFS; }} }}\n",
            path("recovery"),
            export.display()
        );
        fs::create_dir_all(path("recovery")).unwrap();
        fs::create_dir_all("/var/run/ganesha").unwrap();
        fs::write(path("ganesha.conf"), text).unwrap();
        let words =
            ["-F", "-f", &path("ganesha.conf"), "-L", &path("ganesha.log"), "-p", &path("ganesha.pid")];
        let mut command = network.command("ganesha.nfsd");
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Ganesha(command.spawn().unwrap());
        let end = Instant::now() + LIMIT;
        while !network.client("nfs-ls", &["nfs:"]).status.success() {
            let log = || fs::read_to_string(path("ganesha.log")).unwrap_or_default();
            assert!(Instant::now() < end, "NFS-Ganesha does not serve: {}", log());
            std::thread::sleep(Duration::from_millis(200));
        }
        server
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        // `ip netns exec` became the server, so this is its process.
        self.0.kill().ok();
        wait(&mut self.0, LIMIT);
    }
}

#[test]
#[ignore = "needs NFS-Ganesha: make test-nfs"]
fn an_export_over_nfs_outlives_the_mount_below_it() {
    requires!(
        Need::Covey,
        Need::Root,
        Need::Program("ip"),
        Need::Program("ganesha.nfsd"),
        Need::Program("nfs-cat")
    );
    let folder = covey_tests::scratch();
    let volume = Volume::below(folder.path(), &[]);
    let network = Network::new();
    let local = folder.path().join("local");
    fs::write(&local, [7; 900]).unwrap();
    for round in 0..2 {
        let mounted = volume.mount();
        fs::create_dir_all(mounted.join("a/b")).unwrap();
        fs::write(mounted.join("a/b/file"), format!("round {round}")).unwrap();
        let server = Ganesha::start(&network, folder.path(), mounted.path());
        let list = network.client("nfs-ls", &["-R", "nfs:"]);
        assert!(list.stdout.contains("a/b/file") || list.stdout.contains("file"), "{list:?}");
        let read = network.client("nfs-cat", &["nfs:/a/b/file"]);
        assert_eq!(read.stdout, format!("round {round}"), "{read:?}");
        let to = format!("nfs:/a/b/written{round}");
        let written = network.client("nfs-cp", &[local.to_str().unwrap(), &to]);
        assert!(written.status.success(), "{written:?}");
        assert_eq!(fs::read(mounted.join(format!("a/b/written{round}"))).unwrap(), [7; 900]);
        let gone = network.client("nfs-cat", &["nfs:/a/b/none"]);
        assert!(!gone.status.success());
        drop(server);
        mounted.umount();
    }
}
