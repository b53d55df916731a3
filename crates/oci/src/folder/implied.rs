//! Folders that a layer leaves out: they are those of the layers below it.
//!
//! The paths are in order, so a walk goes from one to the next without going back to the top. A path of a
//! thousand folders costs a thousand steps in each layer, and not a thousand for each of its folders.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use api::error::Result;

use crate::place::{Look, Place, Walk, Way};

/// What the layers looked at so far say of a path.
#[derive(Clone, Copy)]
enum Said {
    /// Nothing: a lower one decides.
    Nothing,
    /// A folder with this owner, mode and times.
    Look(Look),
    /// There is no folder below.
    No,
}

/// Gives folders of `layer` (`paths`, in order) owner, mode and times of the layers below it, `lower`, the
/// highest first. What an opaque folder hides gives nothing.
///
/// # Errors
/// Something cannot be seen or changed.
pub(super) fn complete(place: &dyn Place, layer: &Path, lower: &[PathBuf], paths: &[PathBuf]) -> Result<()> {
    let mut said = vec![Said::Nothing; paths.len()];
    // An opaque folder hides what is in it, and is itself the one of the layers below.
    visit(place, layer, paths, |_| true, &mut |at, _, is_hidden, _| {
        if is_hidden {
            said[at] = Said::No;
        }
        Ok(())
    })?;
    for other in lower {
        let is_open: Vec<bool> = said.iter().map(|said| matches!(said, Said::Nothing)).collect();
        visit(place, other, paths, |at| is_open[at], &mut |at, way, is_hidden, walk| {
            said[at] = match way {
                Way::Folder => Said::Look(walk.look()?),
                Way::Nothing if !is_hidden => Said::Nothing,
                Way::Nothing | Way::Other => Said::No,
            };
            Ok(())
        })?;
    }
    visit(place, layer, paths, |at| matches!(said[at], Said::Look(_)), &mut |at, _, _, walk| match said[at] {
        Said::Look(look) => walk.dress(look),
        Said::Nothing | Said::No => Ok(()),
    })
}

/// What is told of a path: its number, what is there, whether an opaque folder above it hides lower
/// layers, and the walk, which is at the folder if there is one.
type Each<'a> = dyn FnMut(usize, Way, bool, &dyn Walk) -> Result<()> + 'a;

/// Walks from path to path below `top`.
fn visit(
    place: &dyn Place,
    top: &Path,
    paths: &[PathBuf],
    wanted: impl Fn(usize) -> bool,
    each: &mut Each<'_>,
) -> Result<()> {
    if !(0..paths.len()).any(&wanted) {
        return Ok(());
    }
    let Some(mut walk) = place.walk(top)? else { return Ok(()) };
    // The folders down to the position, and whether one of them is opaque.
    let mut stack: Vec<(&OsStr, bool)> = Vec::new();
    for (at, path) in paths.iter().enumerate().filter(|(at, _)| wanted(*at)) {
        let names: Vec<&OsStr> = path.iter().collect();
        let common = stack.iter().zip(&names).take_while(|(there, name)| there.0 == **name).count();
        while stack.len() > common {
            walk.up()?;
            stack.pop();
        }
        let mut way = Way::Folder;
        for name in &names[common..] {
            way = walk.down(name)?;
            if way != Way::Folder {
                break;
            }
            let above = stack.last().is_some_and(|(_, is_opaque)| *is_opaque);
            stack.push((name, above || walk.is_opaque()?));
        }
        let above = if way == Way::Folder { names.len().saturating_sub(1) } else { stack.len() };
        let is_hidden = above.checked_sub(1).is_some_and(|last| stack[last].1);
        each(at, way, is_hidden, &*walk)?;
    }
    Ok(())
}
