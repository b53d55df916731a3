//! A million files: import, walk, find, reopening after kill -9, memory and disk for each. The same run
//! measures ext4 for comparison.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use covey_tests::loopfs::LoopFs;
use covey_tests::{Need, Rng, Volume, proc, program, requires, run_ok, say};

const LIMIT: Duration = Duration::from_secs(7_200);
const PER_FOLDER: u64 = 1_000;

/// Writes a tar of `files` small files, a thousand to a folder. Returns the bytes in them.
fn make_tar(path: &Path, files: u64) -> u64 {
    let mut tar = BufWriter::with_capacity(1 << 20, fs::File::create(path).unwrap());
    let mut rng = Rng::new(files);
    let mut total = 0;
    for number in 0..files {
        if number % PER_FOLDER == 0 {
            tar.write_all(&header(&format!("{:05}/", number / PER_FOLDER), 0, b'5')).unwrap();
        }
        // As in a source tree: a fifth are nearly empty, most have a few hundred bytes, the rest a page.
        let len = [rng.below(60), rng.below(800), rng.below(800), rng.below(800), rng.below(4_096)]
            [(number % 5) as usize];
        let name = format!("{:05}/file-{number:07}.txt", number / PER_FOLDER);
        tar.write_all(&header(&name, len, b'0')).unwrap();
        let mut data = rng.bytes(len as usize);
        data.resize(data.len().next_multiple_of(512), 0);
        tar.write_all(&data).unwrap();
        total += len;
    }
    tar.write_all(&[0; 1_024]).unwrap();
    tar.flush().unwrap();
    total
}

/// A ustar header.
fn header(name: &str, len: u64, kind: u8) -> [u8; 512] {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, if kind == b'5' { "0000755" } else { "0000644" });
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{len:011o}"));
    put(136, "14000000000");
    put(148, "        ");
    put(257, "ustar\u{0}00");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// Lists and stats everything. Returns how many files, and how long it took.
fn walk(root: &Path) -> (u64, Duration) {
    let since = Instant::now();
    let (mut files, mut folders) = (0, vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                // ext4 creates a folder of its own in its root.
                if entry.file_name() != "lost+found" {
                    folders.push(entry.path());
                }
            } else {
                files += 1;
            }
        }
    }
    (files, since.elapsed())
}

fn find(root: &Path) -> Duration {
    let since = Instant::now();
    run_ok(Command::new("find").arg(root).args(["-name", "no such name"]), LIMIT);
    since.elapsed()
}

/// One column of the table.
#[derive(Default)]
struct Column {
    import: Duration,
    first_walk: Duration,
    second_walk: Duration,
    find: Duration,
    reopen: Duration,
    disk: u64,
    memory: u64,
    peak: u64,
}

fn on_covey(tar: &Path, files: u64) -> Column {
    let volume = Volume::new();
    let mut column = Column::default();
    let empty = volume.disk_bytes();
    let since = Instant::now();
    let target = format!("{}:/", volume.source.display());
    run_ok(program::covey().arg("import").arg(tar).arg(target), LIMIT);
    column.import = since.elapsed();
    column.disk = volume.disk_bytes() - empty;
    let mounted = volume.mount();
    let pid = mounted.pid().unwrap();
    let before = proc::rss_kib(pid);
    column.find = find(mounted.path());
    let (seen, first) = walk(mounted.path());
    assert_eq!(seen, files);
    (column.first_walk, column.second_walk) = (first, walk(mounted.path()).1);
    column.memory = (proc::rss_kib(pid).saturating_sub(before)) << 10;
    fs::write(mounted.join("last"), "before the kill").unwrap();
    column.peak = proc::peak_rss_kib(pid) << 10;
    mounted.kill();
    let since = Instant::now();
    let mounted = volume.mount();
    assert_eq!(fs::read(mounted.join("last")).unwrap(), b"before the kill");
    column.reopen = since.elapsed();
    mounted.umount();
    volume.must_be_clean();
    column
}

fn on_ext4(tar: &Path, files: u64) -> Column {
    // mkfs creates an inode for every 16 KiB.
    let disk = LoopFs::on_disk((files / 64 + 256) * 5 / 4);
    let mut column = Column::default();
    let empty = disk.used();
    let since = Instant::now();
    run_ok(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(disk.path()), LIMIT);
    rustix::fs::syncfs(fs::File::open(disk.path()).unwrap()).unwrap();
    column.import = since.elapsed();
    column.disk = disk.used() - empty;
    disk.remount();
    column.find = find(disk.path());
    let (seen, first) = walk(disk.path());
    assert_eq!(seen, files);
    (column.first_walk, column.second_walk) = (first, walk(disk.path()).1);
    let since = Instant::now();
    disk.remount();
    column.reopen = since.elapsed();
    column
}

fn report(files: u64, bytes: u64, covey: &Column, ext4: &Column) {
    let row = |what: &str, a: String, b: String, ratio: f64| {
        eprintln!("| {what:<28} | {a:>14} | {b:>14} | {ratio:>6.2} |");
    };
    let time = |what: &str, a: Duration, b: Duration| {
        row(
            what,
            format!("{:.2} s", a.as_secs_f64()),
            format!("{:.2} s", b.as_secs_f64()),
            a.as_secs_f64() / b.as_secs_f64(),
        );
    };
    eprintln!(
        "\n{files} files, {bytes} bytes in them\n| what                         |          covey |           ext4 |  ratio |"
    );
    eprintln!("|---|---|---|---|");
    time("import of a tar", covey.import, ext4.import);
    let rate = |column: &Column| format!("{:.0}/s", files as f64 / column.import.as_secs_f64());
    row("  files", rate(covey), rate(ext4), covey.import.as_secs_f64() / ext4.import.as_secs_f64());
    time("find, nothing in memory", covey.find, ext4.find);
    time("stat walk after it", covey.first_walk, ext4.first_walk);
    time("stat walk again", covey.second_walk, ext4.second_walk);
    time("reopen (covey: after kill -9)", covey.reopen, ext4.reopen);
    let each = |bytes: u64| format!("{:.1} B", bytes as f64 / files as f64);
    row("disk for each file", each(covey.disk), each(ext4.disk), covey.disk as f64 / ext4.disk as f64);
    row(
        "  beyond its own bytes",
        each(covey.disk.saturating_sub(bytes)),
        each(ext4.disk.saturating_sub(bytes)),
        0.0,
    );
    eprintln!("daemon's memory for each file: {} (peak {} MiB)\n", each(covey.memory), covey.peak >> 20);
}

/// The longest time in which a killed volume must open again, on a machine that does much else.
const REOPENED: Duration = Duration::from_secs(300);

fn many_files(files: u64, peak_limit: u64) {
    let folder = covey_tests::scratch();
    let tar = folder.path().join("files.tar");
    let bytes = make_tar(&tar, files);
    let covey = on_covey(&tar, files);
    let ext4 = on_ext4(&tar, files);
    report(files, bytes, &covey, &ext4);
    assert!(covey.peak < peak_limit, "the daemon held {} MiB", covey.peak >> 20);
    // Only a guard: how long it takes depends on what else the machine does.
    assert!(covey.reopen < REOPENED, "reopening after a kill took {:?}", covey.reopen);
    say(format_args!("{files} files: done"));
}

#[test]
fn twenty_thousand_files_are_imported_and_found() {
    requires!(Need::Covey, Need::Ext4);
    many_files(20_000, 200 << 20);
}

#[test]
#[ignore = "minutes: make test-million"]
fn long_a_million_files_are_imported_and_found() {
    requires!(Need::Covey, Need::Ext4, Need::Free(25 << 30));
    many_files(super::setting("COVEY_FILES", 1_000_000), 300 << 20);
}

/// Creates, lists, looks up and removes this many names in one folder. Returns how long each took.
fn one_folder(root: &Path, names: u64) -> [Duration; 4] {
    let folder = root.join("folder");
    fs::create_dir(&folder).unwrap();
    let name = |number: u64| folder.join(format!("a name of ordinary length {number}"));
    let timed = |work: &mut dyn FnMut()| {
        let since = Instant::now();
        work();
        since.elapsed()
    };
    let made = timed(&mut || (0..names).for_each(|number| drop(fs::File::create_new(name(number)).unwrap())));
    let listed = timed(&mut || assert_eq!(fs::read_dir(&folder).unwrap().count() as u64, names));
    let mut rng = Rng::new(names);
    let found =
        timed(&mut || (0..10_000).for_each(|_| assert!(fs::metadata(name(rng.below(names))).is_ok())));
    let removed = timed(&mut || (0..names).for_each(|number| fs::remove_file(name(number)).unwrap()));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir(&folder).unwrap();
    [made, listed, found, removed]
}

fn one_folder_of(names: u64) {
    let volume = Volume::new();
    let mounted = volume.mount();
    let covey = one_folder(mounted.path(), names);
    let peak = mounted.pid().map_or(0, proc::peak_rss_kib) >> 10;
    mounted.umount();
    volume.must_be_clean();
    let disk = LoopFs::on_disk((names / 64 + 256) * 5 / 4);
    let ext4 = one_folder(disk.path(), names);
    eprintln!(
        "\n{names} names in one folder (made, listed, 10,000 looked up, removed); daemon's peak {peak} MiB"
    );
    eprintln!("covey {covey:.2?}\next4  {ext4:.2?}\n");
    assert!(peak < 300, "the daemon held {peak} MiB");
}

#[test]
fn a_folder_of_ten_thousand_names() {
    requires!(Need::Covey, Need::Ext4);
    one_folder_of(10_000);
}

#[test]
#[ignore = "minutes: make test-million"]
fn long_a_folder_of_a_million_names() {
    requires!(Need::Covey, Need::Ext4, Need::Free(25 << 30));
    one_folder_of(super::setting("COVEY_FILES", 1_000_000));
}
