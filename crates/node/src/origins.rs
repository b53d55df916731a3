//! An origin as a person writes it and a volume stores it, and the failures for an origin that cannot be
//! used.

use std::path::Path;
use std::sync::Arc;

use api::error::{Context, Failure, Result, plain};
use blob::Origin;
use origin::{Access, Environment, Folder, Limits, Mistake, OriginError, Remote, Spec};

use crate::volume_dir::{Home, VolumeDir};

/// How the store of an origin is reached, apart from its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The address of the store, if it is not the cloud's default.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
}

/// Opens the origin of a published tree, which belongs to no volume here.
pub fn open_origin(home: &Home, access: Access) -> Result<Arc<dyn Origin>> {
    spec_of(home)?.open(access).map_err(origin_failure)
}

/// Opens an origin for writing. `None`: it was made for another volume.
pub fn open_own(spec: &Spec, volume: &str) -> std::result::Result<Option<Arc<dyn Origin>>, OriginError> {
    Ok(match spec {
        Spec::Folder(dir) => {
            let folder = Folder::open(dir, Access::ReadWrite)?;
            (folder.volume().as_deref() == Some(volume)).then(|| Arc::new(folder) as Arc<dyn Origin>)
        }
        Spec::Remote(spec) => {
            let (environment, limits) = (Environment::process(), Limits::default());
            let remote = Remote::open(spec, &environment, limits, Access::ReadWrite)?;
            (remote.volume() == volume).then(|| Arc::new(remote) as Arc<dyn Origin>)
        }
        Spec::Memory => None,
    })
}

/// Opens a remote origin for reading.
pub fn open_remote(home: &Home, limits: Limits) -> Result<Remote> {
    try_remote(home, limits, None)?.map_err(origin_failure)
}

/// Opens a remote origin for reading, and returns the origin's own error. With `unseen`, the expected volume,
/// an origin that cannot be used at the moment is opened without asking it anything.
pub fn try_remote(
    home: &Home,
    limits: Limits,
    unseen: Option<&str>,
) -> Result<std::result::Result<Remote, OriginError>> {
    let Spec::Remote(spec) = spec_of(home)? else {
        return Err(Failure::usage(format!("{} is not behind a network", home.origin))
            .next("name an object store: s3://BUCKET/PREFIX"));
    };
    let environment = Environment::process();
    Ok(match unseen {
        Some(volume) => Remote::open_unseen(&spec, &environment, limits, Access::ReadOnly, volume),
        None => Remote::open(&spec, &environment, limits, Access::ReadOnly),
    })
}

/// The log line about an unencrypted endpoint, whose traffic others can read and change. None for other
/// endpoints.
pub fn clear_line(endpoint: Option<&str>) -> Option<String> {
    let endpoint = endpoint.filter(|endpoint| origin::remote::is_in_the_clear(endpoint))?;
    Some(format!(
        "what goes to and from the store at {endpoint} is not encrypted: names, bytes and records can be read on the way, and records \
         changed; use an endpoint with https://"
    ))
}

/// Checks that the volume's origin exists.
pub fn check_origin(dir: &VolumeDir) -> Result<()> {
    spec(dir)?.open(Access::ReadOnly).map(drop).map_err(origin_failure)
}

/// The specification of the volume's origin.
pub fn spec(dir: &VolumeDir) -> Result<Spec> {
    spec_of(&dir.home())
}

/// The specification of an origin.
pub fn spec_of(home: &Home) -> Result<Spec> {
    let spec = origin::parse(&home.origin).and_then(|spec| match spec {
        Spec::Remote(spec) => {
            // The origin's keys are loaded into this process's memory.
            crate::secrets::keep_from_dumps();
            spec.at(home.endpoint.as_deref(), home.region.as_deref()).map(Spec::Remote)
        }
        local => Ok(local),
    });
    spec.map_err(origin_failure)
}

/// Makes the origin that a user named absolute.
pub fn address(text: &str, reach: &Reach) -> Result<Home> {
    let usage = |error| Failure { status: 2, ..origin_failure(error) };
    match origin::parse(text).map_err(usage)? {
        Spec::Remote(spec) => {
            let spec = spec.at(reach.endpoint.as_deref(), reach.region.as_deref()).map_err(usage)?;
            let origin = spec.to_string();
            Ok(Home { origin, endpoint: spec.endpoint, region: spec.region, cache_size: None })
        }
        _ if *reach != Reach::default() => {
            Err(Failure::usage(format!("{text} has neither an endpoint nor a region"))
                .next("leave --endpoint and --region out, or name an object store: s3://BUCKET/PREFIX"))
        }
        Spec::Folder(folder) => {
            Ok(Home::from(&*format!("file:{}", crate::mounts::absolute(&folder)?.display())))
        }
        Spec::Memory => Err(Failure::usage("a volume in a folder cannot keep its blobs in memory")
            .why("its names would outlive their bytes")
            .next("for a volume that lives in memory: covey mount mem: MOUNTPOINT")
            .next("or keep blobs in a folder: --origin file:DIR")),
    }
}

/// An origin in the form for the `covey.json` of a volume at `path`.
pub fn home_at(path: &Path, text: &str, reach: &Reach) -> Result<Home> {
    sized(path, address(text, reach)?)
}

/// Adds the size of the cache for a remote origin. It is computed once. Later the cache limits itself by the
/// free space.
pub fn sized(path: &Path, home: Home) -> Result<Home> {
    if home.origin.starts_with("file:") {
        return Ok(home);
    }
    let there = path.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    Ok(Home { cache_size: Some(cache::default_budget(there).at("use", there)?), ..home })
}

/// The failure for an origin that cannot be used.
pub fn origin_failure(error: OriginError) -> Failure {
    let code = match &error {
        OriginError::Absent(_) | OriginError::NotAnOrigin(_) => "origin-gone",
        OriginError::Taken(_) => "origin-taken",
        OriginError::Newer { .. } => "newer-format",
        OriginError::Unknown(_) | OriginError::NoFolder(_) | OriginError::BadRemote { .. } => "usage",
        OriginError::ReadOnly { dir, source } => {
            let what = format!("the origin's folder {} cannot be written to", dir.display());
            return Failure::new("origin-read-only", what)
                .why(plain(source))
                .next("make it writable, or mount the volume with -o ro");
        }
        OriginError::Remote { origin, mistake, what, next } => {
            let failure = Failure::new(remote_code(*mistake), format!("cannot use the origin {origin}"));
            let next = next.as_deref().unwrap_or("covey doctor looks at the keys, the clock and the network");
            return failure.why(what).next(next);
        }
        OriginError::Io { dir, source } => {
            return Failure::io(format!("cannot use the origin's folder {}", dir.display()), source);
        }
        _ => "origin",
    };
    let failure = Failure::new(code, error.what());
    match error.next() {
        Some(next) => failure.next(next),
        None => failure,
    }
}

/// Returns the failure for a volume's own origin. The origin's lost metadata can be written again.
pub fn of_volume(dir: &VolumeDir, error: OriginError) -> Failure {
    let failure = origin_failure(error);
    if failure.code != "origin-gone" {
        return failure;
    }
    let shown = dir.path().display();
    let failure = failure
        .next(format!("if only the marker was lost, or the origin was emptied: covey origin mark {shown}"));
    match dir.origin().starts_with("file:") {
        true => failure,
        false => failure.next(format!("to read what is on this node: covey mount -o ro {shown} MOUNTPOINT")),
    }
}

/// The code of each mistake with an object store, for scripts.
pub(crate) fn remote_code(mistake: Mistake) -> &'static str {
    match mistake {
        Mistake::AccessKey | Mistake::Secret | Mistake::NoKeys | Mistake::Expired => "origin-keys",
        Mistake::Denied => "origin-denied",
        Mistake::Bucket | Mistake::Region => "origin-bucket",
        Mistake::Endpoint | Mistake::Tls | Mistake::NotAStore | Mistake::Busy => "origin-away",
        Mistake::Taken => "origin-taken",
        Mistake::NotAnOrigin => "origin-gone",
        _ => "origin",
    }
}
