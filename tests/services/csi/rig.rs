//! A driver, a client of it, and the database of a shared volume.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run_ok, wait};
use csi::proto::controller::{CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest};
use csi::proto::identity::Empty;
use csi::proto::node::{PublishRequest, StageRequest, UnpublishRequest, UnstageRequest};
use csi::proto::{AccessMode, CapacityRange, MountVolume, Texts, Volume, VolumeCapability, mode};
use prost::Message;
use servers::Server;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The longest time for a program to start or to end.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Texts by name.
pub fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A capability of a mount.
pub fn capability(mode: i32) -> VolumeCapability {
    VolumeCapability {
        block: None,
        mount: Some(MountVolume::default()),
        access_mode: Some(AccessMode { mode }),
    }
}

/// A capability for many writers.
pub fn many() -> VolumeCapability {
    capability(mode::MULTI_NODE_MULTI_WRITER)
}

/// Makes a shared volume; its address.
pub fn shared_volume(server: &Server, user: &str, folder: &Path) -> String {
    let address = format!("postgres://{user}@127.0.0.1:{}/covey?volume=w&sslmode=disable", server.port());
    let origin = format!("file:{}", folder.join("origin").display());
    let mut format = covey();
    format.args(["format", &address, "--origin", &origin]).env("PGPASSWORD", PASSWORD);
    run_ok(&mut format, PATIENCE);
    address
}

/// Publishes a tree with the file `a`; the parameters of a class for it.
pub fn published_tree(driver: &Driver) -> Texts {
    let (volume, mountpoint) = (driver.path("v"), driver.path("m"));
    std::fs::create_dir(&mountpoint).unwrap();
    let run = |args: &[&str], places: &[&Path]| run_ok(covey().args(args).args(places), PATIENCE);
    run(&["format"], &[&volume]);
    run(&["mount", "-d"], &[&volume, &mountpoint]);
    std::fs::write(mountpoint.join("a"), b"one").unwrap();
    run_ok(covey().arg("publish").arg(&mountpoint).arg("latest"), PATIENCE);
    run(&["umount"], &[&mountpoint]);
    texts(&[("tree", &format!("file:{}/blobs@latest", volume.display()))])
}

/// The password of the user `locked`.
pub const PASSWORD: &str = "right-s3cret";

/// A driver, with its folders.
pub struct Driver {
    pub folder: tempfile::TempDir,
    child: Option<Child>,
    client: Option<Client>,
    more: Vec<&'static str>,
}

impl Driver {
    /// A driver that is started.
    pub fn new() -> Driver {
        Driver::with(&[])
    }

    /// The same with more arguments.
    pub fn with(more: &[&'static str]) -> Driver {
        let folder = covey_tests::scratch();
        let mut driver = Driver { folder, child: None, client: None, more: more.to_vec() };
        driver.start();
        driver
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts it.
    pub fn start(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = covey();
        command.arg("csi").arg("--endpoint").arg(format!("unix://{}", self.path("sock").display()));
        command.args(["--node-id", "n1"]).arg("--state").arg(self.path("state"));
        command.arg("--folder").arg(self.path("volumes")).args(&self.more);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child = command.spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        let client = loop {
            assert!(child.try_wait().unwrap().is_none(), "the driver ended: {}", self.log());
            assert!(Instant::now() < end, "the driver does not answer: {}", self.log());
            if let Some(client) = Client::new(&self.path("sock")) {
                break client;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        (self.child, self.client) = (Some(child), Some(client));
    }

    /// Another connection to it.
    pub fn client(&self) -> Client {
        Client::new(&self.path("sock")).unwrap()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends it in good order.
    pub fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SAFETY: it sends a signal to a child of this process that has not been waited for.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
            let status = wait(&mut child, PATIENCE).expect("the driver should end");
            assert!(status.success(), "{}", self.log());
        }
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Sends a call.
    pub fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        method: &str,
        call: Q,
    ) -> Result<A, Status> {
        self.client.as_ref().unwrap().call(method, call)
    }

    /// Makes a volume.
    pub fn create(&self, name: &str, size: i64, parameters: &Texts) -> Result<Volume, Status> {
        let call = self.create_call(name, size, parameters);
        let made: CreateVolumeResponse = self.call("Controller/CreateVolume", call)?;
        Ok(made.volume.unwrap())
    }

    /// The call that makes one.
    pub fn create_call(&self, name: &str, size: i64, parameters: &Texts) -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: (size > 0).then_some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            volume_capabilities: vec![match parameters.contains_key("tree") {
                true => capability(mode::MULTI_NODE_READER_ONLY),
                false => capability(mode::SINGLE_NODE_WRITER),
            }],
            parameters: parameters.clone(),
            ..CreateVolumeRequest::default()
        }
    }

    /// Removes a volume.
    pub fn delete(&self, id: &str) -> Result<Empty, Status> {
        self.call(
            "Controller/DeleteVolume",
            DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() },
        )
    }

    /// The place where a volume is staged.
    pub fn staging(&self, volume: &Volume) -> PathBuf {
        let name: String = volume.volume_id.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        self.path(&format!("stage-{name}"))
    }

    /// The call that stages a volume. Its place is made.
    pub fn stage_call(&self, volume: &Volume) -> StageRequest {
        let staging = self.staging(volume);
        std::fs::create_dir_all(&staging).ok();
        StageRequest {
            volume_id: volume.volume_id.clone(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(match volume.volume_context.contains_key("tree") {
                true => capability(mode::MULTI_NODE_READER_ONLY),
                false => capability(mode::SINGLE_NODE_WRITER),
            }),
            volume_context: volume.volume_context.clone(),
            ..StageRequest::default()
        }
    }

    /// Stages a volume.
    pub fn stage(&self, volume: &Volume) -> Result<Empty, Status> {
        self.call("Node/NodeStageVolume", self.stage_call(volume))
    }

    /// Publishes a volume at a place in this folder.
    pub fn publish(&self, volume: &Volume, target: &str, readonly: bool) -> Result<Empty, Status> {
        let stage = self.stage_call(volume);
        let call = PublishRequest {
            volume_id: stage.volume_id,
            staging_target_path: stage.staging_target_path,
            target_path: self.path(target).display().to_string(),
            volume_capability: stage.volume_capability,
            readonly,
            volume_context: stage.volume_context,
            ..PublishRequest::default()
        };
        self.call("Node/NodePublishVolume", call)
    }

    /// The reverse.
    pub fn unpublish(&self, volume: &Volume, target: &str) -> Result<Empty, Status> {
        let target_path = self.path(target).display().to_string();
        self.call(
            "Node/NodeUnpublishVolume",
            UnpublishRequest { volume_id: volume.volume_id.clone(), target_path },
        )
    }

    /// The reverse of a stage.
    pub fn unstage(&self, volume: &Volume) -> Result<Empty, Status> {
        let staging_target_path = self.staging(volume).display().to_string();
        self.call(
            "Node/NodeUnstageVolume",
            UnstageRequest { volume_id: volume.volume_id.clone(), staging_target_path },
        )
    }

    /// The mountpoints below its folder.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        places.filter(|place| place.starts_with(self.folder.path())).collect()
    }

    /// The files in a part of its state folder.
    pub fn state(&self, part: &str) -> Vec<PathBuf> {
        std::fs::read_dir(self.path("state").join(part)).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        // The daemons end with their last mount.
        for _ in 0..10 {
            let mounts = self.mounts();
            mounts.iter().rev().for_each(|place| _ = Command::new("umount").arg("-l").arg(place).status());
            if mounts.is_empty() {
                break;
            }
        }
    }
}

/// A connection to a driver.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Client {
    /// Connects. None if no driver listens.
    pub fn new(socket: &Path) -> Option<Client> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = runtime.block_on(endpoint.connect()).ok()?;
        Some(Client { runtime, channel })
    }

    /// Sends a call, `SERVICE/METHOD`.
    pub fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &self,
        method: &str,
        call: Q,
    ) -> Result<A, Status> {
        let path = PathAndQuery::try_from(format!("/csi.v1.{method}")).unwrap();
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            let broken = |error: tonic::transport::Error| Status::new(Code::Unavailable, error.to_string());
            client.ready().await.map_err(broken)?;
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            client.unary(tonic::Request::new(call), path, codec).await.map(tonic::Response::into_inner)
        })
    }
}
