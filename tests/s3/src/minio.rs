//! A real MinIO on loopback, if the environment variable `MINIO` names its program.
//!
//! The shell that removes its folder also starts it, and ends it when this process has ended in any way.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::Method;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::signer::Signer;

use crate::Scratch;
use crate::server::{BUCKET, KEY, SECRET};

/// The longest time until it serves.
const START: Duration = Duration::from_secs(60);

/// A MinIO with the empty bucket [`BUCKET`]. It ends when it is dropped.
pub struct Minio {
    endpoint: String,
    dir: Scratch,
}

impl Minio {
    /// The path of its program.
    ///
    /// # Errors
    /// What is missing.
    pub fn program() -> Result<PathBuf, String> {
        let path = std::env::var_os("MINIO").map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
        let path = path.ok_or("MINIO=path of its program (make minio builds it)")?;
        if path.is_file() { Ok(path) } else { Err(format!("{}, which MINIO names", path.display())) }
    }

    /// Starts one whose only region is `region`, and creates the bucket.
    pub fn start(program: &Path, region: &str) -> Minio {
        // The port is free now. If another program took it before MinIO does, that would show at once.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let script = "\"$1\" server --quiet --address \"$2\" \"$0/data\" >\"$0/log\" 2>&1 </dev/null & \
                      minio=$!; last() { kill $minio; wait $minio; }";
        let variables = [
            ("MINIO_ROOT_USER", KEY),
            ("MINIO_ROOT_PASSWORD", SECRET),
            ("MINIO_REGION", region),
            ("MINIO_BROWSER", "off"),
            ("MINIO_UPDATE", "off"),
        ];
        let dir = Scratch::with(script, &[program.as_os_str(), address.as_ref()], &variables);
        let minio = Minio { endpoint: format!("http://{address}"), dir };
        let begin = Instant::now();
        while !minio.ask(&Method::GET, "/minio/health/ready").is_some_and(|answer| answer.contains(" 200 ")) {
            assert!(begin.elapsed() < START, "MinIO does not start: {}", minio.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        minio.make_bucket(region);
        minio
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn make_bucket(&self, region: &str) {
        // The store is only used to sign, but creates a client, which needs a TLS provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_endpoint(&self.endpoint)
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region(region)
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .build()
            .unwrap();
        let runtime = crate::runtime("minio");
        let url = crate::wait(&runtime, async move {
            store.signed_url(Method::PUT, &Key::from(""), Duration::from_secs(60)).await.unwrap()
        });
        runtime.shutdown_background();
        let target = format!("{}?{}", url.path(), url.query().unwrap_or(""));
        // It reports that it is ready a little too early.
        let begin = Instant::now();
        loop {
            let answer = self.ask(&Method::PUT, &target).unwrap_or_default();
            if answer.contains(" 200 ") || answer.contains("BucketAlreadyOwnedByYou") {
                return;
            }
            assert!(begin.elapsed() < START, "no bucket was made: {answer}{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends a request without a body. Returns the complete answer.
    fn ask(&self, method: &Method, target: &str) -> Option<String> {
        let host = self.endpoint.strip_prefix("http://")?;
        let mut socket = TcpStream::connect(host).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(
            socket,
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}
