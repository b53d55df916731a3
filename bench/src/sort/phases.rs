//! What one node does, on files: it makes its input, splits it by key, and sorts its own share.
//!
//! ```text
//!   generate    MNT/input                                its share of the records
//!   partition   MNT/input  -> MNT/shuffle/0 .. P-1       by the key's place
//!   sort        MNT/shuffle/p, FROM_j/p -> MNT/sorted/p  each part of its own share, from all nodes
//! ```
//!
//! Node n sorts the n-th share of the parts. The two phases are those of 3FS's GraySort: a shuffle by
//! prefixes of keys, then a sort of each part in memory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::check::{Summary, fill};
use super::records::{Form, Maker};
use crate::Result;

/// Bytes of one read or write.
const PIECE: usize = 1 << 20;

/// One node's part in the work. Every node has the same values but `node`, `mnt` and `from`.
#[derive(Clone, Debug)]
pub struct Share {
    /// The form of records.
    pub form: Form,
    /// This node, from 0 on.
    pub node: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// Records of each node's input.
    pub records: u64,
    /// Parts that each node sorts.
    pub parts: usize,
    /// The node's own volume.
    pub mnt: PathBuf,
    /// Where each node's `shuffle` folder is. Its own is in its own volume.
    pub from: Vec<PathBuf>,
}

impl Share {
    /// Makes this node's input.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn generate(&self) -> Result<Value> {
        let mut maker = Maker::new(self.form, self.node as u64 * self.records);
        let mut file = create(&self.input())?;
        let mut buf = Vec::with_capacity(PIECE + self.form.size());
        for _ in 0..self.records {
            maker.push(&mut buf);
            if buf.len() >= PIECE {
                write(&mut file, &mut buf)?;
            }
        }
        write(&mut file, &mut buf)?;
        Ok(json!({}))
    }

    /// Splits the input into parts by key.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn partition(&self) -> Result<Value> {
        let (size, count) = (self.form.size(), self.nodes * self.parts);
        fs::create_dir_all(self.mnt.join("shuffle"))?;
        let paths = (0..count).map(|part| self.mnt.join("shuffle").join(part.to_string()));
        let mut files = paths.map(|path| create(&path)).collect::<Result<Vec<File>>>()?;
        let mut buffers: Vec<Vec<u8>> = vec![Vec::with_capacity(PIECE + size); count];
        let mut input = open(&self.input())?;
        let mut read = vec![0; PIECE - PIECE % size];
        loop {
            let len = fill(&mut input, &mut read)?;
            if len == 0 {
                break;
            }
            for record in read[..len].chunks_exact(size) {
                let part = ((u128::from(self.form.place(record)) * count as u128) >> 64) as usize;
                let buffer = &mut buffers[part];
                buffer.extend_from_slice(record);
                if buffer.len() >= PIECE {
                    write(&mut files[part], buffer)?;
                }
            }
        }
        for (file, buffer) in files.iter_mut().zip(&mut buffers) {
            write(file, buffer)?;
        }
        Ok(json!({}))
    }

    /// Sorts each part of this node's share.
    ///
    /// # Errors
    /// A file cannot be read or written, or ends within a record.
    pub fn sort(&self) -> Result<Value> {
        fs::create_dir_all(self.mnt.join("sorted"))?;
        let (mut records, mut remote) = (Vec::new(), 0);
        for part in self.own_parts() {
            records.clear();
            // Each node begins with another one's part, so that not all ask the same.
            for from in (0..self.nodes).map(|turn| (self.node + 1 + turn) % self.nodes) {
                let path = self.from[from].join(part.to_string());
                let before = records.len();
                open(&path)?.read_to_end(&mut records).map_err(|error| named(&path, error))?;
                remote += if from == self.node { 0 } else { records.len() - before };
            }
            self.write_sorted(&records, &self.mnt.join("sorted").join(part.to_string()))?;
        }
        Ok(json!({ "remote": remote }))
    }

    /// What this node sorted, and its input, for the check.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn summary(&self) -> Result<Value> {
        let sorted: Vec<PathBuf> =
            self.own_parts().map(|part| self.mnt.join("sorted").join(part.to_string())).collect();
        let input = self.input();
        Ok(json!({
            "input": Summary::of_files(self.form, [input.as_path()])?.to_json(),
            "sorted": Summary::of_files(self.form, sorted.iter().map(PathBuf::as_path))?.to_json(),
        }))
    }

    fn own_parts(&self) -> std::ops::Range<usize> {
        self.node * self.parts..(self.node + 1) * self.parts
    }

    fn input(&self) -> PathBuf {
        self.mnt.join("input")
    }

    /// Writes records in order of their keys, and makes them durable.
    fn write_sorted(&self, records: &[u8], path: &Path) -> Result<()> {
        let (size, key) = (self.form.size(), self.form.key());
        if !records.len().is_multiple_of(size) {
            return Err(format!("a part for {} ends within a record", path.display()).into());
        }
        let first =
            |record: &[u8]| record.iter().take(8).fold(0_u64, |all, &byte| all << 8 | u64::from(byte));
        let mut order: Vec<(u64, u32)> =
            (0..).zip(records.chunks_exact(size)).map(|(at, record)| (first(record), at)).collect();
        let record = |at: u32| &records[at as usize * size..][..size];
        match key {
            8 => order.sort_unstable(),
            _ => order.sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| record(a.1)[8..key].cmp(&record(b.1)[8..key])).then(a.1.cmp(&b.1))
            }),
        }
        let (mut file, mut buf) = (create(path)?, Vec::with_capacity(PIECE + size));
        for (_, at) in order {
            buf.extend_from_slice(record(at));
            if buf.len() >= PIECE {
                write(&mut file, &mut buf)?;
            }
        }
        write(&mut file, &mut buf)?;
        Ok(file.sync_all().map_err(|error| named(path, error))?)
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|error| named(path, error).into())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| named(path, error).into())
}

fn write(file: &mut File, buf: &mut Vec<u8>) -> io::Result<()> {
    file.write_all(buf)?;
    buf.clear();
    Ok(())
}

fn named(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole sort on plain folders, where every node's folder is its own mount.
    fn sorted(form: Form, nodes: usize, parts: usize, records: u64) -> (Summary, Summary) {
        let folder = tempfile::tempdir().unwrap();
        let mnt = |node: usize| folder.path().join(node.to_string());
        let share = |node: usize| {
            let from = (0..nodes).map(|from| mnt(from).join("shuffle")).collect();
            Share { form, node, nodes, records, parts, mnt: mnt(node), from }
        };
        for node in 0..nodes {
            fs::create_dir(mnt(node)).unwrap();
            share(node).generate().unwrap();
            share(node).partition().unwrap();
        }
        let (mut input, mut output) = (Summary::new(form), Summary::new(form));
        for node in 0..nodes {
            share(node).sort().unwrap();
            let found = share(node).summary().unwrap();
            input.join(&Summary::from_json(form, &found["input"]).unwrap());
            output.join(&Summary::from_json(form, &found["sorted"]).unwrap());
        }
        (input, output)
    }

    #[test]
    fn every_record_is_sorted_on_any_number_of_nodes() {
        for form in [Form::Plain, Form::Gensort] {
            for (nodes, parts) in [(1, 1), (2, 1), (3, 4)] {
                let (input, output) = sorted(form, nodes, parts, 2_000);
                assert_eq!(input.records(), 2_000 * nodes as u64);
                output.must_be_sorted_from(&input).unwrap();
            }
        }
    }

    #[test]
    fn no_records_are_sorted_too() {
        let (input, output) = sorted(Form::Plain, 2, 2, 0);
        output.must_be_sorted_from(&input).unwrap();
    }
}
