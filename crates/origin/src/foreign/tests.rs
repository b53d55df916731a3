use std::collections::HashMap;
use std::fs;

use parking_lot::Mutex;
use s3server::{BUCKET, Server, environment};

use super::*;
use crate::tests::noise;
use crate::{Environment, Memory};

/// Locations in memory.
#[derive(Default)]
struct Table(Mutex<HashMap<ForeignObject, Location>>);

impl Locate for Table {
    fn locate(&self, object: ForeignObject) -> Result<Option<Location>, BlobError> {
        Ok(self.0.lock().get(&object).cloned())
    }
}

struct Place {
    server: Server,
    origin: ForeignOrigin,
    inner: Arc<Memory>,
    objects: HashMap<String, ForeignObject>,
}

fn write(server: &Server, key: &str, bytes: &[u8]) {
    let file = server.folder().join(key);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, bytes).unwrap();
}

fn place(files: &[(&str, &[u8])]) -> Place {
    let server = Server::start();
    files.iter().for_each(|(key, bytes)| write(&server, key, bytes));
    let environment = Environment::of(environment());
    let url = format!("s3://{BUCKET}/data");
    let bucket = Bucket::open(&url, Some(&server.endpoint()), None, &environment).unwrap();
    let (table, mut objects) = (Arc::new(Table::default()), HashMap::new());
    bucket
        .list(&mut |object| {
            let id = bucket.identity(&object);
            objects.insert(object.key.clone(), id);
            let Object { key, size, etag, .. } = object;
            table.0.lock().insert(id, Location { key, etag, size });
            true
        })
        .unwrap();
    let inner = Arc::new(Memory::new());
    let origin = ForeignOrigin::new(inner.clone(), bucket, table);
    Place { server, origin, inner, objects }
}

#[test]
fn parts_of_objects_are_read_and_own_blobs_come_from_the_inner_origin() {
    let large = noise((2 << 20) + 12345, 7);
    let place = place(&[("data/a/large", &large), ("data/small", b"small")]);
    let (origin, object) = (&place.origin, place.objects["a/large"]);
    let mut together = Vec::new();
    for part in 0..parts(large.len() as u64).unwrap() {
        let id = BlobId::foreign(object, part);
        let (sums, bytes) = origin.fetch(&id).unwrap();
        assert_eq!(origin.size(&id).unwrap(), Some(bytes.len() as u64));
        assert!(sums.belong_to(&id) && sums.check_group(0, &bytes).is_ok());
        together.extend_from_slice(&bytes);
    }
    assert!(together == large);
    let last = BlobId::foreign(object, 2);
    let mut some = [0; 45];
    origin.read_at(&last, 12300, &mut some).unwrap();
    assert!(some == large[large.len() - 45..]);
    assert!(matches!(origin.read_at(&last, 12301, &mut some), Err(BlobError::Io(_))));
    let part = origin.fetch_part(&last, 7, 5).unwrap();
    assert_eq!((part.offset, part.bytes.len(), part.sums.size()), (0, 12345, 12345));
    assert!(matches!(origin.fetch_part(&last, 12345, 1), Err(BlobError::Io(_))));
    for absent in [BlobId::foreign(object, 3), BlobId::foreign(ForeignObject([1; 20]), 0)] {
        assert!(matches!(origin.fetch(&absent), Err(BlobError::Missing(_))));
        assert_eq!(origin.size(&absent).unwrap(), None);
    }

    let sums = Sums::of(b"own");
    origin.put(&sums.id(), &sums, b"own").unwrap();
    assert_eq!(origin.fetch(&sums.id()).unwrap().1[..], *b"own");
    assert_eq!(place.inner.size(&sums.id()).unwrap(), Some(3));
}

#[test]
fn an_object_that_changed_or_is_gone_is_stale_and_never_mixed() {
    let place = place(&[("data/changed", b"before"), ("data/gone", b"gone")]);
    let changed = BlobId::foreign(place.objects["changed"], 0);
    assert_eq!(place.origin.fetch(&changed).unwrap().1[..], *b"before");
    write(&place.server, "data/changed", b"after!");
    fs::remove_file(place.server.folder().join("data/gone")).unwrap();
    for key in ["changed", "gone"] {
        let id = BlobId::foreign(place.objects[key], 0);
        let Err(BlobError::Stale(what)) = place.origin.fetch(&id) else { panic!("{key} is not stale") };
        assert!(what.contains(&format!("s3://{BUCKET}/data/{key}")), "{what}");
        assert!(matches!(place.origin.read_at(&id, 0, &mut [0; 2]), Err(BlobError::Stale(_))));
        assert!(matches!(place.origin.fetch_part(&id, 0, 2), Err(BlobError::Stale(_))));
    }
}

#[test]
fn a_foreign_blob_is_never_stored_in_an_origin() {
    let place = place(&[("data/f", b"bytes")]);
    let id = BlobId::foreign(place.objects["f"], 0);
    let sums = Sums::of(b"bytes");
    let dir = tempfile::tempdir().unwrap();
    let folder = crate::Folder::format(&dir.path().join("o"), "v").unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"bytes").unwrap();
    for origin in [&place.origin as &dyn Origin, &*place.inner, &folder] {
        assert!(origin.put(&id, &sums, b"bytes").is_err());
        assert!(origin.adopt(&id, &sums, &file).is_err());
        let mut names = 0;
        origin
            .list(&mut |_, _| {
                names += 1;
                true
            })
            .unwrap();
        assert_eq!(names, 0);
    }
    assert!(place.origin.remove(&id).is_err());
}

#[test]
fn the_identity_depends_on_each_of_its_parts() {
    let all = [
        identity("s3://", None, "b", "k", "e", 1),
        identity("gs://", None, "b", "k", "e", 1),
        identity("s3://", Some("http://h"), "b", "k", "e", 1),
        identity("s3://", None, "bk", "", "e", 1),
        identity("s3://", None, "b", "ke", "", 1),
        identity("s3://", None, "b", "k", "e", 2),
    ];
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len());
    assert_eq!(all[0].to_string().len(), 40);
}
