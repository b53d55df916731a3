//! Many ranges of many files at once.
//!
//! Ranges of one file that are near each other become one read: a request to the store costs more than the
//! bytes between them. Large ranges are cut, so that all threads have work. The reads run in parallel, and
//! each ends within the deadline of a call.

use base::Deadline;
use fs::api::Attr;
use node::reader::{Failed, Outcome, Reader};

use crate::errors;

/// Ranges with a smaller gap between them become one read: the unit of a fetch.
const NEAR: u64 = 64 << 10;
/// A read of joined ranges, or of a part of a large one, is not longer.
const LONGEST: u64 = 4 << 20;

/// A wanted range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The place of its file in the list of files.
    pub file: usize,
    /// The first byte.
    pub start: u64,
    /// The end, at most the file's.
    pub end: u64,
}

/// A read, and the wanted ranges that have bytes in it, by their places in the list.
struct Job {
    file: usize,
    start: u64,
    end: u64,
    wanted: Vec<usize>,
}

/// The reads for these ranges.
fn plan(wanted: &[Wanted]) -> Vec<Job> {
    let mut order: Vec<usize> = (0..wanted.len()).filter(|at| wanted[*at].start < wanted[*at].end).collect();
    order.sort_by_key(|at| (wanted[*at].file, wanted[*at].start));
    let mut jobs: Vec<Job> = Vec::new();
    for at in order {
        let Wanted { file, start, end } = wanted[at];
        if let Some(last) = jobs.last_mut()
            && last.file == file
            && start >= last.start
            && start <= last.end.saturating_add(NEAR)
            && end.max(last.end) - last.start <= LONGEST
        {
            last.end = last.end.max(end);
            last.wanted.push(at);
            continue;
        }
        let mut from = start;
        while from < end {
            let until = end.min(from + LONGEST);
            jobs.push(Job { file, start: from, end: until, wanted: vec![at] });
            from = until;
        }
    }
    jobs
}

/// What was read of a job.
type Read = (Job, Outcome<Vec<u8>>);

/// Reads all ranges on up to so many threads. The result has the bytes of each, or its error.
pub fn read(
    reader: &Reader,
    files: &[Outcome<Attr>],
    wanted: &[Wanted],
    threads: usize,
) -> Vec<Outcome<Vec<u8>>> {
    let deadline = reader.deadline();
    let done = std::sync::Mutex::new(Vec::new());
    let jobs: Vec<std::sync::Mutex<Option<Job>>> =
        plan(wanted).into_iter().map(|job| std::sync::Mutex::new(Some(job))).collect();
    let work = |job: &std::sync::Mutex<Option<Job>>| {
        let Some(job) = job.lock().ok().and_then(|mut job| job.take()) else { return Ok(()) };
        let bytes = read_one(reader, files, &job, deadline);
        if let Ok(mut done) = done.lock() {
            done.push((job, bytes));
        }
        Ok::<(), ()>(())
    };
    // No work fails: errors are kept with their job.
    let _ = base::thread::for_each("covey-python", threads, &jobs, work);
    let done = done.into_inner().unwrap_or_default();
    assemble(files, wanted, done)
}

fn read_one(reader: &Reader, files: &[Outcome<Attr>], job: &Job, deadline: Deadline) -> Outcome<Vec<u8>> {
    let file = files[job.file].as_ref().map_err(Failed::clone)?;
    let mut bytes = errors::zeros(job.end - job.start)?;
    let read = deadline.scope(|| reader.read(file, job.start, &mut bytes))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Gives each range its bytes.
fn assemble(files: &[Outcome<Attr>], wanted: &[Wanted], mut done: Vec<Read>) -> Vec<Outcome<Vec<u8>>> {
    done.sort_by_key(|(job, _)| (job.file, job.start));
    let mut results: Vec<Outcome<Vec<u8>>> = wanted
        .iter()
        .map(|one| files[one.file].as_ref().map(|_| Vec::new()).map_err(Failed::clone))
        .collect();
    for (job, bytes) in done {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(failed) => {
                job.wanted.iter().for_each(|at| results[*at] = Err(failed.clone()));
                continue;
            }
        };
        if let [only] = job.wanted[..]
            && wanted[only].start == job.start
            && wanted[only].end == job.end
            && results[only].is_ok()
        {
            results[only] = Ok(bytes);
            continue;
        }
        for at in job.wanted {
            let Ok(result) = &mut results[at] else { continue };
            // A part of a long range follows the part before it; a joined range lies within the job.
            let from = wanted[at].start.max(job.start) - job.start;
            let until = wanted[at].end.min(job.end) - job.start;
            let have = bytes.len() as u64;
            let own = &bytes[from.min(have) as usize..until.min(have) as usize];
            if result.try_reserve(own.len()).is_ok() {
                result.extend_from_slice(own);
            } else {
                results[at] = Err(errors::NO_MEMORY.into());
            }
        }
    }
    results
}
