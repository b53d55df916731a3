//! `covey image`: lists, shows, removes, mounts and unmounts the container images of a volume or a published
//! tree.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use api::caller;
use api::error::{Context, Failure, Result};
use api::text::bytes;
use clap::Subcommand;
use fuse::mount::Life;
use node::{mounts, signals};
use oci::folder::{self, Found, complete, find, names};
use oci::place::{self, OnMount};
use serde::Serialize;

use crate::cmd::umount::busy;
use crate::images::made::{self, Made};
use crate::images::overlay::{self, Overlay};
use crate::images::patience::patiently;
use crate::images::{images_at, rm, tree, with_place};
use crate::reading::{Way, split};
use crate::table::Table;
use crate::term::Term;

/// The file of a user's folder that says above which image was written.
const OF_IMAGE: &str = "manifest";

/// Lists, mounts, unmounts and removes container images that were imported into a volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey import docker://docker.io/library/debian:12 /mnt/covey/images\n  covey image ls /mnt/covey/images\n  \
    covey image mount docker.io/library/debian:12 /mnt/debian --volume /mnt/covey/images\n  \
    covey image mount app:1 /mnt/app --volume s3://bucket/prefix@images -- --join 10.0.0.1:7500 --secret-file /etc/covey/secret\n  \
    covey image umount /mnt/debian\n\n\
    A mounted image is an overlay of its layers below a folder of this machine, which takes what is written. docs/CONTAINERS.md\n\
    shows how a container is started from it."
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the images of a folder of images; without one, those that are mounted here
    ///
    /// Example: covey image ls s3://bucket/prefix@images
    Ls {
        /// A folder of images on a mount, VOLUME:/PATH, or ORIGIN@NAME
        place: Option<PathBuf>,
        #[command(flatten)]
        way: Way,
    },
    /// Write an image's config to standard output, as it was imported
    ///
    /// Example: covey image config app:1 --volume /mnt/covey/images | jq .config.Cmd
    Config {
        /// The image's name, or the digest of its manifest
        image: String,
        /// The folder of images: on a mount, VOLUME:/PATH, or ORIGIN@NAME
        #[arg(long, value_name = "PLACE")]
        volume: PathBuf,
        #[command(flatten)]
        way: Way,
    },
    /// Remove an image's name, and the layers that no other image uses
    ///
    /// Example: covey image rm app:1 --volume /mnt/covey/images
    #[command(alias = "remove")]
    Rm {
        /// The image's name, or the digest of its manifest for all its names
        image: String,
        /// The folder of images: on a mount, or VOLUME:/PATH
        #[arg(long, value_name = "PLACE")]
        volume: PathBuf,
    },
    /// Mount an image's layers, and a folder of this machine above them that takes what is written
    ///
    /// Example: covey image mount app:1 /mnt/app --volume /mnt/covey/images
    Mount(MountArgs),
    /// Unmount an image, and remove what its mount has made
    ///
    /// Example: covey image umount /mnt/app
    #[command(alias = "unmount")]
    Umount {
        /// Where it is mounted
        mountpoint: PathBuf,
    },
}

/// The arguments of `covey image mount`.
#[derive(Debug, clap::Args)]
struct MountArgs {
    /// The image's name, or the digest of its manifest
    image: String,
    /// Where to mount it; made if it is not there
    mountpoint: PathBuf,
    /// The folder of images on a mount; or ORIGIN@NAME, which is mounted too if it is not
    #[arg(long, value_name = "PLACE")]
    volume: PathBuf,
    /// Keep what is written in DIR/upper, also after the unmount; mounted again with it, it is there again.
    /// Without this, the unmount removes it
    #[arg(long, value_name = "DIR")]
    upper: Option<PathBuf>,
    /// More arguments for covey mount of ORIGIN@NAME, such as --join
    #[arg(last = true, value_name = "ARGUMENTS")]
    more: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    match &args.what {
        What::Ls { place: Some(place), way } => list(place, way, term),
        What::Ls { place: None, .. } => list_mounts(term),
        What::Config { image, volume, way } => {
            let config = with_place(volume, way, |place| Ok(find(place, image)?.config))?;
            match std::io::stdout().lock().write_all(&config) {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                    Err(Failure::io("cannot write the config", &error))
                }
                _ => Ok(0),
            }
        }
        What::Rm { image, volume } => rm::run(image, volume, term),
        What::Mount(args) => mount(args, term),
        What::Umount { mountpoint } => umount(mountpoint, term),
    }
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    manifest: String,
    platform: String,
    layers: usize,
    /// Bytes of the layers as they were fetched.
    size: u64,
    created: Option<String>,
    source: String,
}

fn list(place: &Path, way: &Way, term: Term) -> Result<u8> {
    let rows = with_place(place, way, |place| {
        let row = |named| {
            let Found { named, manifest, created, layers, .. } = complete(place, named)?;
            let size = manifest.layers.iter().map(|layer| layer.size).sum();
            Ok(Row {
                manifest: named.manifest.digest.to_string(),
                platform: named.platform.to_string(),
                layers: layers.len(),
                size,
                created,
                source: named.source,
                name: named.name,
            })
        };
        names(place)?.into_iter().map(row).collect::<Result<Vec<Row>>>()
    })?;
    term.result(&rows, || {
        let mut table = Table::new(&["name", "manifest", "platform", "layers ", "size ", "created"]);
        for row in &rows {
            let created = row.created.clone().unwrap_or_else(|| "-".to_owned());
            let manifest = row.manifest[..19].to_owned();
            let (layers, size) = (row.layers.to_string(), bytes(row.size));
            table.row(vec![row.name.clone(), manifest, row.platform.clone(), layers, size, created]);
        }
        if rows.is_empty() { "No images.".to_owned() } else { table.text() }
    });
    Ok(0)
}

fn list_mounts(term: Term) -> Result<u8> {
    let all = made::all()?;
    term.result(&all, || {
        let mut table = Table::new(&["image", "mounted at", "of"]);
        for made in &all {
            let gone = if overlay::is_at(&made.mountpoint) { "" } else { " (no longer)" };
            let at = format!("{}{gone}", made.mountpoint.display());
            table.row(vec![made.image.clone(), at, made.volume.display().to_string()]);
        }
        if all.is_empty() { "No image is mounted.".to_owned() } else { table.text() }
    });
    Ok(0)
}

fn as_root() -> Result<()> {
    if caller::euid() == 0 {
        return Ok(());
    }
    Err(Failure::new("not-permitted", "images are mounted and unmounted as root")
        .why("an overlay with whiteouts needs CAP_SYS_ADMIN")
        .next("run it as root (or with sudo)"))
}

/// What a mount has made so far. If it fails, everything is undone when this is dropped.
struct Undo {
    made: Made,
    /// The user's folder was empty, or not there.
    new_upper: Option<NewUpper>,
    done: bool,
}

/// A user's folder for what is written, before its first use.
#[derive(Clone, Copy)]
struct NewUpper {
    was_there: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let _ = end_tree(self.made.tree.as_deref(), &self.made.mountpoint);
        if let Some(NewUpper { was_there }) = self.new_upper {
            // Nothing was written above an image that was never mounted.
            let upper = &self.made.upper;
            let _ = fs::remove_file(upper.join(OF_IMAGE));
            let _ = ["upper", "work"].map(|name| made::remove_tree(&upper.join(name)));
            if !was_there {
                let _ = fs::remove_dir(upper);
            }
        }
        let _ = self.made.forget();
    }
}

fn mount(args: &MountArgs, term: Term) -> Result<u8> {
    as_root()?;
    let say = |line: &str| term.say(line);
    // A signal between two steps would leave what the first has made.
    signals::block();
    let mountpoint = mounts::absolute(&args.mountpoint)?;
    check_free(&mountpoint)?;
    // What asks a store comes before the lock that all commands want.
    let tree = split(&args.volume).map(|(name, _)| made::tree_at(Path::new(name)));
    let _tree = tree.map(|at| made::lock_tree(&at, &say)).transpose()?;
    let (place, tree) = folder_of(args)?;
    // No record has it yet.
    let give_back = |_: &Failure| drop(end_tree(tree.as_deref(), Path::new("")));
    let found = find(&OnMount::new(&place), &args.image);
    let found = found.and_then(|found| lower_of(&place, &found).map(|_| found)).inspect_err(give_back)?;
    let _lock = made::lock(&say).inspect_err(give_back)?;
    check_free(&mountpoint).inspect_err(give_back)?;
    let upper = match &args.upper {
        Some(folder) => mounts::absolute(folder)?,
        None => made::upper_of(&mountpoint),
    };
    let made = Made {
        version: 1,
        image: found.named.name.clone(),
        manifest: found.named.manifest.digest,
        made_mountpoint: !mountpoint.exists(),
        mountpoint,
        volume: args.volume.clone(),
        upper,
        upper_is_ours: args.upper.is_none(),
        tree,
    };
    let mut undo = Undo { made: made.clone(), new_upper: None, done: false };
    undo.new_upper = check_upper(&made).inspect_err(|_| undo.made.upper_is_ours = false)?;
    if undo.new_upper.is_some() {
        made::write(&made.upper.join(OF_IMAGE), format!("{}\n", made.manifest).as_bytes())?;
    }
    // The record comes first, so that nothing is left that no command knows.
    made.keep()?;
    stack(&place, &found, &made)?;
    undo.done = true;
    term.result(&made, || {
        let Made { image, manifest, mountpoint, upper, upper_is_ours, .. } = &made;
        let (mountpoint, upper) = (mountpoint.display(), upper.join("upper"));
        let kept = if *upper_is_ours { "removed at the unmount" } else { "kept" };
        let upper = upper.display();
        format!(
            "Mounted {image} ({manifest}) at {mountpoint}; what is written goes to {upper}, and is {kept}."
        )
    });
    Ok(0)
}

/// No image is, or was, mounted there.
fn check_free(mountpoint: &Path) -> Result<()> {
    let shown = mountpoint.display();
    if let Some(there) = fuse::mount::find(mountpoint) {
        return Err(Failure::new("in-use", format!("{shown} is a mountpoint already"))
            .why(format!("{} is mounted there", there.source))
            .next("unmount it, or name another folder"));
    }
    if mountpoint.exists() && !mountpoint.is_dir() {
        return Err(Failure::usage(format!("{shown} is not a folder"))
            .next("name an empty folder, or one that is not there yet"));
    }
    match made::of(mountpoint)? {
        Some(left) => Err(Failure::new("in-use", format!("{} was mounted at {shown}", left.image))
            .why("it is not mounted any more, and was not unmounted by this program")
            .next(format!("remove what is left of it: covey image umount {shown}"))),
        None => Ok(()),
    }
}

/// Mounts the layers.
fn stack(place: &Path, found: &Found, made: &Made) -> Result<()> {
    let lower = lower_of(place, found)?;
    let (upper, work) = (made.upper.join("upper"), made.upper.join("work"));
    [&upper, &work].into_iter().try_for_each(|folder| fs::create_dir_all(folder).at("make", folder))?;
    like(&lower[0], &upper)?;
    if made.made_mountpoint {
        fs::create_dir(&made.mountpoint).at("make", &made.mountpoint)?;
    }
    let overlay = Overlay { lower: &lower, upper: &upper, work: &work, temporary: made.upper_is_ours };
    overlay.mount(&made.mountpoint)
}

/// The folder of images on a mount. Mounts a published tree if that is needed, and then says where.
fn folder_of(args: &MountArgs) -> Result<(PathBuf, Option<PathBuf>)> {
    let Some((name, inner)) = split(&args.volume) else {
        return Ok((tree::on_mount(&args.volume, &args.more)?, None));
    };
    let inner = inner.trim_start_matches('/');
    let at = made::tree_at(Path::new(name));
    let shown = fuse::mount::all().into_iter().filter(mounts::is_covey);
    if let Some(mount) = shown.into_iter().find(|mount| api::source::tree(&mount.source) == Some(name)) {
        if mounts::life(&mount)? == Life::Dead {
            return Err(dead_tree(name, &mount.path)?);
        }
        let tree = (mount.path == at).then_some(at);
        return Ok((images_at(&mount.path.join(inner)), tree));
    }
    tree::mount(name, &args.more, &at)?;
    Ok((images_at(&at.join(inner)), Some(at)))
}

/// The failure for a tree whose daemon was killed. Its mount goes with its last image.
fn dead_tree(name: &str, at: &Path) -> Result<Failure> {
    let failure = Failure::new("stale-mount", format!("the mount of {name} at {} is dead", at.display()))
        .why("its daemon is gone");
    let users = made::all()?.into_iter().filter(|made| made.tree.as_deref() == Some(at));
    let next: Vec<String> =
        users.map(|made| format!("covey image umount {}", made.mountpoint.display())).collect();
    Ok(match next.is_empty() {
        true => failure.next(format!("take it away with: covey umount {}", at.display())),
        false => next.into_iter().fold(failure, Failure::next).next("then start this again"),
    })
}

/// The folders of the layers, the highest first. A layer that an image has twice counts once, as the higher
/// one: it hides and brings again whatever the lower one did.
fn lower_of(place: &Path, found: &Found) -> Result<Vec<PathBuf>> {
    let mut lower: Vec<PathBuf> = Vec::new();
    for layer in found.layers.iter().rev() {
        let inside = folder::layer(layer);
        let path = place.join(&inside);
        // A link in a tree of others would lead to a folder of this machine.
        let why = match place::way(&OnMount::new(place), &inside)? {
            place::Way::Folder => None,
            place::Way::Nothing => Some("is not there"),
            place::Way::Other => Some("is no folder, or is behind a symbolic link"),
        };
        if let Some(why) = why {
            return Err(Failure::new("damaged", format!("{} lacks the layer {layer}", found.named.name))
                .why(format!("{} {why}", path.display()))
                .next("import the image again with --overwrite"));
        }
        if !lower.contains(&path) {
            lower.push(path);
        }
    }
    Ok(lower)
}

/// The folder that takes what is written belongs to one image, as long as it is there. One of a mount that
/// ended without an unmount is temporary, and removed. Returns what a user's folder was before its first use.
fn check_upper(made: &Made) -> Result<Option<NewUpper>> {
    let upper = &made.upper;
    if made.upper_is_ours {
        made::remove_tree(upper)?;
        return made::private_folder(upper).map(|()| None);
    }
    let was_there = upper.exists();
    fs::create_dir_all(upper).at("make", upper)?;
    if let Some(other) = made::all()?.iter().find(|other| other.upper == *upper) {
        return Err(Failure::new("in-use", format!("{} is in use", upper.display()))
            .why(format!("{} is mounted with it at {}", other.image, other.mountpoint.display()))
            .next("name another folder with --upper"));
    }
    let path = upper.join(OF_IMAGE);
    match fs::read_to_string(&path) {
        Ok(text) if text.trim() == made.manifest.to_string() => Ok(None),
        Ok(text) => Err(Failure::new("other-image", format!("{} is for another image", upper.display()))
            .why(format!("what is there was written above {}", text.trim()))
            .next("name another folder with --upper, or remove this one")),
        Err(error) if error.kind() == ErrorKind::NotFound && upper.join("upper").exists() => {
            Err(Failure::new("exists", format!("{} holds something else", upper.display()))
                .next("name a new folder with --upper"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(NewUpper { was_there })),
        Err(error) => Err(error).at("read", &path),
    }
}

/// Gives the top folder the owner and the mode of the highest layer's, since it covers it.
fn like(layer: &Path, top: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let about = layer.metadata().at("look at", layer)?;
    std::os::unix::fs::chown(top, Some(about.uid()), Some(about.gid())).at("change the owner of", top)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(about.mode() & 0o7777);
    fs::set_permissions(top, mode).at("change the mode of", top)
}

fn umount(mountpoint: &Path, term: Term) -> Result<u8> {
    as_root()?;
    let say = |line: &str| term.say(line);
    signals::block();
    let mountpoint = mounts::absolute(mountpoint)?;
    let tree_of = || Ok::<_, Failure>(made::of(&mountpoint)?.and_then(|made| made.tree));
    let tree = tree_of()?;
    let _tree = tree.as_deref().map(|at| made::lock_tree(at, &say)).transpose()?;
    let _lock = made::lock(&say)?;
    if tree_of()? != tree {
        return Err(Failure::new("busy", format!("{} was mounted anew meanwhile", mountpoint.display()))
            .next("try again"));
    }
    let Some(made) = made::of(&mountpoint)? else {
        return Err(Failure::new("not-mounted", format!("no image is mounted at {}", mountpoint.display()))
            .next("covey image ls lists those that are"));
    };
    let was_there = overlay::is_at(&mountpoint);
    if was_there {
        let (at, shown) = (mountpoint.clone(), mountpoint.display());
        let step = match made.upper_is_ours {
            true => format!("unmounting {shown}"),
            false => format!("unmounting {shown}, and writing out the disk of {}", made.upper.display()),
        };
        patiently(&say, &step, move || {
            overlay::end(&at).map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => busy(&at),
                _ => Failure::io(format!("cannot unmount {}", at.display()), &error),
            })
        })?;
    }
    if let Some(tree) = made.tree.clone() {
        let (step, at) = (format!("unmounting the tree at {}", tree.display()), mountpoint.clone());
        patiently(&say, &step, move || end_tree(Some(&tree), &at))?;
    }
    let (step, left) = (format!("removing what belongs to {}", mountpoint.display()), made.clone());
    patiently(&say, &step, move || left.forget())?;
    term.result(&made, || {
        let image = &made.image;
        let kept = match made.upper_is_ours {
            true => "what was written is removed".to_owned(),
            false => format!("what was written is in {}", made.upper.join("upper").display()),
        };
        match was_there {
            true => format!("Unmounted {image} from {}; {kept}.", mountpoint.display()),
            false => format!("{image} was not mounted at {} any more; {kept}.", mountpoint.display()),
        }
    });
    Ok(0)
}

/// Unmounts the tree that was mounted for images, unless an image at another mountpoint needs it.
fn end_tree(tree: Option<&Path>, mountpoint: &Path) -> Result<()> {
    let Some(tree) = tree else { return Ok(()) };
    let needs = |other: &Made| other.tree.as_deref() == Some(tree) && other.mountpoint != mountpoint;
    if made::all()?.iter().any(needs) {
        return Ok(());
    }
    if let Some(mount) = mounts::at(tree)?.filter(mounts::is_covey) {
        crate::cmd::umount::end_idle(&mount)?;
    }
    match fs::remove_dir(tree) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).at("remove", tree),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use oci::digest::Digest;
    use oci::folder::Named;
    use oci::manifest::{Descriptor, Platform};

    use super::*;

    /// The link led to a folder of the machine that mounts the image.
    #[test]
    fn regression_a_layer_that_is_a_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        let [real, linked] = ["real", "linked"].map(|text| Digest::of(text.as_bytes()));
        fs::create_dir_all(place.join(folder::layer(&real))).unwrap();
        std::os::unix::fs::symlink("/etc", place.join(folder::layer(&linked))).unwrap();
        let manifest = Descriptor::of("", b"manifest");
        let text =
            format!("{{\"schemaVersion\":2,\"config\":{},\"layers\":[]}}", serde_json::json!(manifest));
        let found = |layers: &[Digest]| Found {
            named: Named {
                version: 1,
                name: "app:1".to_owned(),
                manifest: manifest.clone(),
                platform: Platform::here(),
                source: "test".to_owned(),
            },
            config: Vec::new(),
            manifest: serde_json::from_str(&text).unwrap(),
            created: None,
            layers: layers.to_vec(),
        };
        assert_eq!(lower_of(place, &found(&[real])).unwrap(), [place.join(folder::layer(&real))]);
        let refused = lower_of(place, &found(&[real, linked])).unwrap_err();
        assert!(refused.code == "damaged" && refused.in_one_line().contains("symbolic link"), "{refused}");
        // The folder of all layers may be no link either.
        let other = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(place.join("layers"), other.path().join("layers")).unwrap();
        assert_eq!(lower_of(other.path(), &found(&[real])).unwrap_err().code, "damaged");
    }
}
