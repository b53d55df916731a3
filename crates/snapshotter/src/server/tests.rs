//! The service as a client of gRPC sees it.

use std::collections::BTreeMap;

use oci::digest::Digest;
use oci::folder;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::layers::InFolder;
use crate::proto::{Empty, Infos, List, Mounts, NewSnapshot, OfKey, Usage};
use crate::record::REFERENCE;
use crate::store::Store;

/// A server in a temporary folder, and a client of it.
struct World {
    folder: tempfile::TempDir,
    server: Option<Server>,
    runtime: Runtime,
    client: Grpc<Channel>,
}

fn world() -> World {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    fs::create_dir_all(images.join("layers")).unwrap();
    let store = Store::open(&folder.path().join("root")).unwrap();
    store.point_at(&images).unwrap();
    let snapshots = Snapshots::new(store, Box::new(InFolder(images)), |_| {}).unwrap();
    let socket = folder.path().join("socket");
    let server = Bound::new(&socket).unwrap().serve(Arc::new(snapshots)).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
    let client = Grpc::new(runtime.block_on(endpoint.connect()).unwrap());
    World { folder, server: Some(server), runtime, client }
}

impl World {
    fn call<Q, A>(&mut self, method: &str, request: Q) -> std::result::Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let path: PathAndQuery =
            format!("/containerd.services.snapshots.v1.Snapshots/{method}").parse().unwrap();
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await.unwrap();
            let answer = client.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await?;
            Ok(answer.into_inner())
        })
    }

    fn list(&mut self) -> Vec<Infos> {
        let path = PathAndQuery::from_static("/containerd.services.snapshots.v1.Snapshots/List");
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await.unwrap();
            let codec = ProstCodec::<List, Infos>::default();
            let answer = client.server_streaming(Request::new(List::default()), path, codec).await.unwrap();
            let (mut stream, mut parts) = (answer.into_inner(), Vec::new());
            while let Some(part) = stream.message().await.unwrap() {
                parts.push(part);
            }
            parts
        })
    }
}

fn new(key: &str) -> NewSnapshot {
    NewSnapshot { key: key.to_owned(), ..NewSnapshot::default() }
}

/// The codes are gRPC's, and a long list comes in several messages.
#[test]
fn containerd_gets_the_codes_that_it_knows() {
    let mut world = world();
    let mounts: Mounts = world.call("Prepare", new("0")).unwrap();
    assert_eq!(mounts.mounts[0].kind, "bind");
    let code = |outcome: std::result::Result<Mounts, Status>| outcome.unwrap_err().code();
    assert_eq!(code(world.call("Prepare", new("0"))), Code::AlreadyExists);
    assert_eq!(code(world.call("Mounts", OfKey { key: "none".to_owned() })), Code::NotFound);
    assert_eq!(
        code(world.call("Prepare", NewSnapshot { parent: "0".to_owned(), ..new("1") })),
        Code::InvalidArgument
    );
    assert_eq!(code(world.call("Mount", Empty {})), Code::Unimplemented);
    let layer = Digest::of(b"layer");
    fs::create_dir(world.folder.path().join("images").join(folder::layer(&layer))).unwrap();
    let labels = BTreeMap::from([(REFERENCE.to_owned(), layer.to_string())]);
    assert_eq!(code(world.call("Prepare", NewSnapshot { labels, ..new("x") })), Code::AlreadyExists);
    for key in 1..150 {
        let _: Mounts = world.call("View", new(&key.to_string())).unwrap();
    }
    let parts = world.list();
    assert_eq!(parts.iter().map(|part| part.info.len()).collect::<Vec<_>>(), [100, 51]);
    let usage: Usage = world.call("Usage", OfKey { key: "0".to_owned() }).unwrap();
    assert_eq!(usage.inodes, 1);
    let _: Empty = world.call("Cleanup", Empty {}).unwrap();
    fs::remove_dir_all(world.folder.path().join("images")).unwrap();
    let labels = BTreeMap::from([(REFERENCE.to_owned(), Digest::of(b"other").to_string())]);
    assert_eq!(code(world.call("Prepare", NewSnapshot { labels, ..new("y") })), Code::Unavailable);
}

/// A socket that a killed program left is replaced. One where a program listens is not, nor a file.
#[test]
fn a_socket_in_use_is_left_alone() {
    let mut world = world();
    let socket = world.folder.path().join("socket");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Bound::new(&socket).unwrap_err().code, "in-use");
    world.server = None;
    assert!(!socket.exists());
    drop(StdListener::bind(&socket).unwrap());
    drop(Bound::new(&socket).unwrap());
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    assert_eq!(Bound::new(&socket).unwrap_err().code, "in-use");
    assert!(socket.is_file());
}
