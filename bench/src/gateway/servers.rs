//! The two servers, each with its own process and data on the same disk.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::time::monotonic;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;

use crate::Result;
use crate::peer::free_port;
use crate::process;
use crate::store::{Access, BUCKETS, Store};

const BUCKET: &str = BUCKETS[4];

enum Running {
    Covey(Child),
    Minio(Store),
}

/// A server that is running, and a client of it.
pub struct Server {
    /// Its name in the table.
    pub name: &'static str,
    /// A client with its keys.
    pub client: Arc<dyn ObjectStore>,
    running: Running,
}

impl Server {
    /// MinIO, reached directly.
    ///
    /// # Errors
    /// It does not start.
    pub fn minio(name: &'static str, program: &Path, scratch: &Path) -> Result<Server> {
        let folder = scratch.join("minio");
        fs::create_dir_all(&folder)?;
        let store = Store::start(program, &folder)?;
        Ok(Server { name, client: client(&store.direct())?, running: Running::Minio(store) })
    }

    /// `covey s3` over a new volume.
    ///
    /// # Errors
    /// It does not start.
    pub fn covey(name: &'static str, program: &Path, scratch: &Path) -> Result<Server> {
        let (volume, keys, log) =
            (scratch.join("volume"), scratch.join("keys.toml"), scratch.join("covey-s3.log"));
        let port = free_port()?;
        let secret = format!("{:032x}", u128::from(base::random::u64()));
        let access = Access { port, key: "bench".to_owned(), secret };
        let text = format!(
            "[[key]]\naccess_key = \"{}\"\nsecret_key = \"{}\"\nbuckets = {{ \"*\" = \"write\" }}\n",
            access.key, access.secret
        );
        fs::write(&keys, text)?;
        fs::set_permissions(&keys, Permissions::from_mode(0o600))?;
        let made = Command::new(program).arg("format").arg(&volume).stdout(Stdio::null()).status()?;
        if !made.success() {
            return Err("covey format failed".into());
        }
        let mut bucket = std::ffi::OsString::from(format!("{BUCKET}="));
        bucket.push(&volume);
        let mut command = Command::new(program);
        command.args(["s3", "--listen", &format!("127.0.0.1:{port}"), "--keys"]).arg(&keys).arg(bucket);
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let mut child = command.spawn()?;
        let begun = monotonic();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if child.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(30) {
                process::end(&mut child);
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("covey s3 did not start: {said}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Server { name, client: client(&access)?, running: Running::Covey(child) })
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        match &self.running {
            Running::Covey(child) => child.id(),
            Running::Minio(store) => store.pid(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Running::Covey(child) = &mut self.running {
            process::end(child);
        }
    }
}

fn client(access: &Access) -> Result<Arc<dyn ObjectStore>> {
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_endpoint(access.endpoint())
        .with_allow_http(true)
        .with_access_key_id(&access.key)
        .with_secret_access_key(&access.secret)
        .build()?;
    Ok(Arc::new(store))
}
