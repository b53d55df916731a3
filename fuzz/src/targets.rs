//! The fuzz targets: each decoder of bytes from other programs, with a few inputs to start from, made by the
//! encoders.
//!
//! A target fails by panicking. It also asserts what must hold after every successful decode. `make fuzz`
//! runs each target under libFuzzer. The `decoders` test feeds each target its seeds with random changes. A
//! new decoder gets a row in [`TARGETS`].

use std::time::Duration;

use archive::acl;
use archive::import::{Item, Kind, Step, wire};
use archive::read::Reader;
use archive::write::Writer;
use base::{BlobId, Ino, Must, PackNo, Timestamp};
use blob::Sums;
use blob::claim::{self, Claim};
use blob::extent::{Extent, ExtentPage};
use fs::api::{Lock, LockKind, LockRange, LockStyle};
use fs::locks::row;
use meta::journal::format;
use meta::key::Key;
use meta::quota::{Limits, QuotaRow, State};
use meta::record;
use meta::trash::{Setting, TrashRow};
use net::frame::{self, ErrorKind, Get, HEADER, Header, ListAsk, Refusal, Texted, Type};
use net::id::{Member, NodeId, Role, Seen, Zone};
use net::message::{Answer, Ask, Group, Note, What};
use net::transport::{Listed, Prefix, Roll};
use tree::known::Known;
use tree::node::{Leaf, Node, Pointer};
use tree::root::{Owner, Root, Signer};

#[path = "datagrams.rs"]
mod datagrams;
#[path = "guests.rs"]
mod guests;
#[path = "images.rs"]
mod images;
#[path = "requests.rs"]
mod requests;
#[path = "rings.rs"]
mod rings;
#[path = "texts.rs"]
mod texts;

/// A decoder under test.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Feeds it one input.
    pub run: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "gossip", run: datagrams::gossip, seeds: datagrams::gossip_seeds },
    Target { name: "sealed", run: datagrams::sealed, seeds: datagrams::sealed_seeds },
    Target { name: "directory", run: datagrams::questions, seeds: datagrams::questions_seeds },
    Target { name: "frames", run: frames, seeds: frames_seeds },
    Target { name: "tree", run: tree_node, seeds: tree_seeds },
    Target { name: "root", run: root, seeds: root_seeds },
    Target { name: "known", run: known, seeds: known_seeds },
    Target { name: "claim", run: claim, seeds: claim_seeds },
    Target { name: "sums", run: sums, seeds: sums_seeds },
    Target { name: "rows", run: rows, seeds: rows_seeds },
    Target { name: "locks", run: locks, seeds: locks_seeds },
    Target { name: "journal", run: journal, seeds: journal_seeds },
    Target { name: "archive", run: archive_members, seeds: archive_seeds },
    Target { name: "import", run: import, seeds: import_seeds },
    Target { name: "acl", run: acl_text, seeds: acl_seeds },
    Target { name: "corpus", run: texts::corpus_spec, seeds: texts::corpus_seeds },
    Target { name: "index", run: index, seeds: index_seeds },
    Target { name: "guests", run: guests::stream, seeds: guests::stream_seeds },
    Target { name: "virtio", run: rings::virtqueue, seeds: rings::virtqueue_seeds },
    Target { name: "requests", run: requests::requests, seeds: requests::requests_seeds },
    Target { name: "image", run: images::image, seeds: images::image_seeds },
    Target { name: "layer", run: images::layer, seeds: images::layer_seeds },
    Target { name: "registry", run: images::registry, seeds: images::registry_seeds },
    Target { name: "orchestrators", run: images::orchestrators, seeds: images::orchestrators_seeds },
    Target { name: "chunks", run: texts::chunks, seeds: texts::chunks_seeds },
    Target { name: "s3_words", run: texts::s3_words, seeds: texts::s3_words_seeds },
    Target { name: "regions", run: texts::regions, seeds: texts::regions_seeds },
    Target { name: "memory_list", run: texts::memory_list, seeds: texts::memory_list_seeds },
    Target { name: "keys", run: texts::keys, seeds: texts::keys_seeds },
];

/// The row of a file's locks in a shared volume.
fn locks(data: &[u8]) {
    if let Ok(table) = row::decode(data) {
        assert_eq!(row::encode(&table).ok().flatten().as_deref(), Some(data));
    }
}

fn locks_seeds() -> Vec<Vec<u8>> {
    let mut table = row::Table::default();
    for number in 1..4 {
        let owner = row::Owner { node: 1, epoch: 2, number };
        let range = LockRange { start: 10 * number, end: 10 * number + 5 };
        let lock = Lock { owner, style: LockStyle::Range, range, kind: LockKind::Write, pid: 7 };
        let whole = Lock { style: LockStyle::Flock, range: LockRange::ALL, kind: LockKind::Read, ..lock };
        let _ = (table.set(&lock), table.set(&whole));
    }
    row::encode(&table).ok().flatten().into_iter().collect()
}

/// A header, and every payload decoder on what follows it, because a fuzzer cannot find valid checksums.
fn frames(data: &[u8]) {
    let (head, payload) = data.split_at(data.len().min(HEADER));
    let mut whole = [0; HEADER];
    whole[..head.len()].copy_from_slice(head);
    for sealed in [false, true] {
        if sealed {
            whole[..3].copy_from_slice(b"CV\x01");
            let own = blob::sums::crc32c(&whole[..28]);
            whole[28..].copy_from_slice(&own.to_le_bytes());
        }
        if let Ok(header) = Header::decode(&whole) {
            assert!(header.length <= header.kind.most(), "what a frame may have is known before it is read");
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }
    if let Ok(ask) = frame::decode_ask(payload) {
        assert_eq!(frame::encode_ask(&ask), payload);
    }
    if let Ok(answers) = frame::decode_answers(payload) {
        assert_eq!(frame::encode_answers(&answers), payload);
    }
    if let Ok(notes) = frame::decode_notes(payload) {
        assert_eq!(frame::encode_notes(&notes), payload);
    }
    if let Ok(ask) = frame::PackAsk::decode(payload) {
        assert_eq!(ask.encode()[..], *payload);
    }
    if let Ok(part) = frame::PackPart::decode(payload) {
        assert_eq!(part.encode(), payload);
    }
    if let Ok(ask) = frame::KeepAsk::decode(payload) {
        assert_eq!(ask.encode(), payload);
    }
    if let Ok(run) = frame::decode_kept(payload) {
        assert_eq!(run.to_le_bytes(), payload);
    }
    if let Ok(ask) = frame::LendAsk::decode(payload) {
        assert_eq!(ask.encode(), payload);
    }
    if let Ok(loan) = frame::LoanPart::decode(payload) {
        assert!(payload.len() > SMALL || frame::LoanPart::encode(loan.as_ref()) == payload);
    }
    if let Ok(returned) = frame::Returned::decode(payload) {
        assert_eq!(returned.encode(), payload);
    }
    if let Ok(ask) = frame::RecallAsk::decode(payload) {
        assert_eq!(ask.encode()[..], *payload);
    }
    if let Ok(listed) = frame::decode_listed(payload) {
        assert!(payload.len() > SMALL || frame::encode_listed(&listed) == payload);
    }
    if let Ok(roll) = frame::decode_roll(payload) {
        assert_eq!(frame::encode_roll(&roll), payload);
    }
    if let Ok(filled) = frame::decode_filled(payload) {
        assert_eq!([filled as u8], payload);
    }
    if let Ok(list) = ListAsk::decode(payload) {
        assert_eq!(list.encode(), payload);
    }
    if let Ok(get) = Get::decode(payload) {
        assert_eq!(get.encode(), payload);
        assert!(get.range(1000).is_none_or(|(start, end)| start <= end && end <= 1000));
    }
    let line = |text: &str| assert!(!text.contains(char::is_control), "a text is one line");
    let _ = Texted::<ErrorKind>::decode(payload).map(|said| line(&said.text));
    let _ = Texted::<Refusal>::decode(payload).map(|said| line(&said.text));
}

/// Longer lists than one answer can hold are cut.
const SMALL: usize = 60_000;

fn frames_seeds() -> Vec<Vec<u8>> {
    let (blob, node) = (BlobId([1; 32]), NodeId([2; 16]));
    let time = Duration::from_millis(300);
    let ask = Ask {
        group: Group(1),
        blobs: vec![blob; 3],
        backlog: 3,
        not: vec![node; 2],
        sender: Some(node),
        part: false,
    };
    let answers = [
        Answer::Serve,
        Answer::Go { first: node, second: None },
        Answer::Go { first: node, second: Some(node) },
        Answer::Lease { lease: 7, time },
        Answer::Wait { parent: node, time },
        Answer::NotMine,
    ];
    let whats = [What::Have, What::Gone, What::Failed { lease: 7 }, What::Refused { by: node }];
    let notes = whats.map(|what| Note { group: Group(1), blob, what });
    let get = Get { blob, offset: 5, len: Get::REST };
    let list = ListAsk { prefix: Prefix { value: 1 << 31, bits: 1 }, most: 9 };
    let keep = frame::KeepAsk { pack: PackNo(9), offset: 1, what: frame::Keep::Sync, bytes: vec![3; 5] };
    let error = Texted { kind: ErrorKind::Missing, text: "no".to_owned() };
    let refused = Texted { kind: Refusal::Secret, text: "no".to_owned() };
    let member = Member {
        node,
        generation: 1 << 16,
        address: ([10, 0, 0, 1], 7171).into(),
        zone: Zone::default(),
        role: Role::Depot,
        weight: 100,
        free: 9,
        load: 1,
    };
    let seen = Seen { member, is_own: false, is_suspect: true };
    let lend = frame::LendAsk { unit: Ino(5), to: 6, returns: true, keys: vec![vec![1; 9]; 2] };
    let loan = a_loan(time);
    let payloads = [
        (Type::Ask, frame::encode_ask(&ask)),
        (Type::Answers, frame::encode_answers(&answers)),
        (Type::Notes, frame::encode_notes(&notes)),
        (Type::Listed, frame::encode_listed(&Listed { blobs: vec![blob; 3], more: true })),
        (Type::List, list.encode()),
        (Type::Roll, frame::encode_roll(&Roll { members: vec![seen; 2], more: true })),
        (Type::Filled, vec![1]),
        (Type::Pack, frame::PackAsk { pack: PackNo(9), offset: 1, len: 2 }.encode().to_vec()),
        (Type::PackPart, frame::PackPart::Bytes(vec![3; 5]).encode()),
        (Type::Keep, keep.encode()),
        (Type::Kept, vec![9; 8]),
        (Type::Lend, lend.encode()),
        (Type::Loan, frame::LoanPart::encode(Some(&loan))),
        (Type::Recall, frame::RecallAsk { unit: Ino(5), seq: 6 }.encode().to_vec()),
        (Type::Returned, frame::Returned { unit: Ino(5), from: 6, number: 7 }.encode()),
        (Type::Get, get.encode().to_vec()),
        (Type::Error, error.encode()),
        (Type::Refuse, refused.encode()),
        (Type::Ping, Vec::new()),
    ];
    let whole = |(kind, payload): &(Type, Vec<u8>)| {
        [&Header::with(*kind, 1, payload).encode()[..], payload.as_slice()].concat()
    };
    payloads.iter().map(whole).collect()
}

fn a_loan(lasts: Duration) -> frame::LoanPart {
    frame::LoanPart {
        has_names: true,
        seq: 1,
        number: 2,
        version: 3,
        lasts,
        rows: vec![(vec![1; 9], Some(vec![2; 5])), (vec![1; 10], None)],
        bytes: vec![(PackNo(9), 1, vec![3; 5])],
    }
}

fn tree_node(data: &[u8]) {
    let own = BlobId([7; 32]);
    if let Ok((Node::Leaf(leaf), _)) = Node::decode(data, own) {
        let mut stored = vec![0];
        stored.extend_from_slice(&leaf.encode());
        assert!(Node::decode(&stored, own).is_ok(), "a leaf that was read can be written");
        (0..leaf.len()).for_each(|place| assert!(leaf.row(place).is_some()));
    }
}

fn tree_seeds() -> Vec<Vec<u8>> {
    let mut leaf = Leaf::default();
    for n in 0..40u8 {
        leaf.push(&[1, 0, n, n], &vec![n; usize::from(n)]);
    }
    let plain = |content: Vec<u8>| [vec![0], content].concat();
    // An inner node with two children: level, children, blobs, and for each child a key and its location.
    let mut inner = vec![1, 2, 0];
    for n in 0..2u8 {
        inner.extend_from_slice(&[0, 2, 1, n]);
        inner.extend_from_slice(&[n; 32]);
        inner.extend_from_slice(&[5, 0, n * 50, 50]);
    }
    vec![plain(Leaf::default().encode()), plain(leaf.encode()), plain(inner), vec![1, 0, 0, 1, 0]]
}

fn root(data: &[u8]) {
    // A fuzzer cannot find a valid signature, but this covers what is read before the signature is checked.
    let _ = Root::decode("main", data);
    if let Ok(owner) = Owner::decode(data) {
        // Not byte by byte: of a great many keys, only the last ones are written.
        assert!(Owner::decode(&owner.encode()).is_ok(), "an owner's record that was read can be written");
    }
}

fn root_seeds() -> Vec<Vec<u8>> {
    let owner = Owner {
        volume: [1; 16],
        owner: [2; 16],
        generation: 3,
        note: "a note".to_owned(),
        keys: vec![[4; 32]],
    };
    let signer = Signer::from_seed(&[9; 32]).must("any 32 bytes are a key");
    let hash = [5; 32];
    let root = Root {
        name: "main".to_owned(),
        volume: [1; 16],
        sequence: 7,
        moment: Timestamp(5),
        inodes: 1,
        bytes: 2,
        top: Pointer { hash, blob: BlobId(hash), offset: 0, len: 100, rows: 3 },
        level: 1,
        nodes: 2,
        before: Some(hash),
        source: None,
        key: signer.key(),
    };
    let record = root.encode(&signer);
    let (url, endpoint) = ("s3://b/p".to_owned(), Some("http://127.0.0.1:9000".to_owned()));
    let of_a_bucket = Root { source: Some(tree::Source { url, endpoint, region: None }), ..root.clone() };
    assert!(
        Root::decode("main", &record).is_ok_and(|read| read == root),
        "a record is written as it was read"
    );
    vec![record, of_a_bucket.encode(&signer), owner.encode(), vec![0; 400]]
}

/// A reader's memory of an origin: what was decoded must have the same meaning after encoding.
fn known(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(known) = Known::decode(text)
    {
        assert_eq!(Known::decode(&known.encode()).ok(), Some(known));
    }
}

fn known_seeds() -> Vec<Vec<u8>> {
    let key = "07".repeat(32);
    let text =
        format!("covey known 1\norigin s3://b/p\nkey {key}\nname latest 5 -1 {key}\nname v1.0 -7 3 {key}\n");
    vec![text.replace(" -1 ", " 1 ").into_bytes(), text.into_bytes(), b"covey known 1\norigin x\n".to_vec()]
}

fn claim(data: &[u8]) {
    // A matching checksum gives access to the code behind the check.
    let mut summed = data.to_vec();
    summed.extend_from_slice(&blob::sums::crc32c(data).to_be_bytes());
    for record in [data, &summed] {
        if let Ok(claim) = Claim::decode(record) {
            assert_eq!(claim.encode(), record, "a claim is written as it was read");
        }
    }
}

fn claim_seeds() -> Vec<Vec<u8>> {
    let claim = Claim {
        epoch: 7,
        volume: [1; 16],
        token: [2; 16],
        after: Some([3; 16]),
        folder: [4; 16],
        kind: claim::Kind::Renewed,
        moment: Timestamp(5),
        place: "host:/srv/volume".to_owned(),
    };
    let first =
        Claim { epoch: 1, after: None, kind: claim::Kind::Open, place: String::new(), ..claim.clone() };
    // With and without their checksums.
    let records = [claim.encode(), first.encode()];
    records.iter().flat_map(|record| [record.clone(), record[..record.len() - 4].to_vec()]).collect()
}

fn sums(data: &[u8]) {
    if let Ok(sums) = Sums::decode(data) {
        assert_eq!(sums.encode(), data, "sums are written as they were read");
        let _ = sums.check(0, &[0; 100]);
        let _ = sums.check_group(0, &[0; 100]);
        let _ = sums.segment_around(u32::MAX);
    }
}

fn sums_seeds() -> Vec<Vec<u8>> {
    [0, 1, 40_000, 200_000].map(|len| Sums::of(&vec![5; len]).encode()).to_vec()
}

fn rows(data: &[u8]) {
    let _ = record::InodeRecord::decode(data);
    let _ = record::Dentry::decode(data);
    let _ = (record::PackRow::decode(data), record::ForeignRow::decode(data));
    let _ = (record::ContentRow::decode(data), record::HeldRow::decode(data));
    let _ = (record::decode_i64(Some(data)), record::decode_u64(Some(data)));
    let _ = (record::DoomedRow::decode(data), Setting::decode(Some(data)));
    if let Ok(row) = QuotaRow::decode(data) {
        assert!(QuotaRow::decode(&row.encode()).is_ok_and(|again| again == row));
    }
    if let Ok(row) = TrashRow::decode(data) {
        assert!(TrashRow::decode(&row.encode()).is_ok_and(|again| again == row));
    }
    if let Ok(page) = ExtentPage::decode(data) {
        let again = ExtentPage::decode(&page.encode());
        assert!(
            again.is_ok_and(|again| again.extents() == page.extents()),
            "a page is written as it was read"
        );
        assert!(page.parts(0, page.covered_bytes()).count() < 100_000);
    }
    let key = Key::from_bytes(data);
    let _ = (key.tag(), key.number(), key.as_dentry(), key.as_extents(), key.as_xattr(), key.as_pack_user());
    let _ = (key.as_blob_pack(), key.as_held(), key.as_content(), key.successor());
}

fn rows_seeds() -> Vec<Vec<u8>> {
    let mut page = ExtentPage::new();
    for n in 0..5 {
        page.insert(Extent { at: n * 5000, len: 4000, pack: PackNo(u64::from(n)), offset: n });
    }
    let keys =
        [Key::inode(Ino(5)), Key::dentry(Ino(1), b"name"), Key::extents(Ino(5), 1), Key::pack(PackNo(3))];
    let mut seeds: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
    let moment = record::moment_to_u64(Timestamp(1));
    let limits = Limits { bytes: Some(5), inodes: None };
    let quota = QuotaRow { limits, state: State::Set, outer: Ino(7) };
    let name: Box<[u8]> = (*b"name").into();
    let lost = TrashRow { at: Timestamp(5), parent: Ino(1), name, kind: 0o100_000, size: 9, dir: None };
    seeds.extend([quota.encode().to_vec(), lost.encode().to_vec()]);
    seeds.extend([page.encode(), record::encode_i64(-5).to_vec(), record::encode_u64(moment).to_vec()]);
    seeds
}

fn journal(data: &[u8]) {
    let _ = format::SegmentHeader::decode(data);
    let place = format::Place { segment: 1, seq: 1, key: 0 };
    let payload = match format::find(data, place) {
        format::Found::Record(_, payload) => payload,
        // A fuzzer cannot find a valid checksum, so what it would guard is also fed without it.
        _ => data,
    };
    if let Some((rows, fresh)) = format::get_commit(payload) {
        let mut again = Vec::new();
        format::put_commit(&mut again, &rows, &fresh);
        assert_eq!(again, payload, "a commit is written as it was read");
    }
    let _ = (format::get_data(payload), format::get_mark(payload));
}

fn journal_seeds() -> Vec<Vec<u8>> {
    let row = (Key::inode(Ino(5)), Some(vec![1, 2, 3].into()));
    let fresh = meta::store::FreshData { pack: PackNo(1), offset: 2, len: 3, crc: 4 };
    let mut payload = Vec::new();
    format::put_commit(&mut payload, &[row, (Key::inode(Ino(6)), None)], &[fresh]);
    let mut record = Vec::new();
    format::begin(&mut record);
    record.extend_from_slice(&payload);
    format::finish(&mut record, format::Kind::Commit, format::Place { segment: 1, seq: 1, key: 0 });
    let header = format::SegmentHeader {
        version: format::VERSION,
        log_id: [1; 16],
        segment: 1,
        first_seq: 1,
        len: 1 << 20,
    };
    vec![payload, record, header.encode()]
}

/// The index opens a file: each thread has one, which is rewritten for each input.
fn with_index<T>(data: &[u8], use_it: impl FnOnce(&std::path::Path) -> T) -> T {
    thread_local!(static FOLDER: tempfile::TempDir = tempfile::tempdir().must("a fuzzer has a folder to write to"));
    FOLDER.with(|folder| {
        let path = folder.path().join("index");
        std::fs::write(&path, data).must("a fuzzer has a folder to write to");
        use_it(&path)
    })
}

fn index(data: &[u8]) {
    use cache::residency::index::Index;
    with_index(data, |path| {
        let mut count = 0;
        let opened = Index::open(path, &mut |_| count += 1).must("a fuzzer has a folder to write to");
        assert_eq!(opened.records(), count);
        drop(opened);
        let again = Index::open(path, &mut |_| ()).must("a fuzzer has a folder to write to");
        assert_eq!(again.records(), count, "what was cut off stays cut off");
    });
}

fn index_seeds() -> Vec<Vec<u8>> {
    use cache::residency::index::{Index, Record};
    let bytes = with_index(&[], |path| {
        let mut index = Index::open(path, &mut |_| ()).must("a fuzzer has a folder to write to");
        let records = [
            Record::Gone(BlobId([1; 32])),
            Record::Ranked(BlobId([2; 32]), cache::residency::Rank::Kept),
            Record::Settled(BlobId([3; 32])),
        ];
        index.append(&records).must("a fuzzer has a folder to write to");
        drop(index);
        std::fs::read(path).unwrap_or_default()
    });
    vec![bytes]
}

/// The most memory that one member of an archive may hold at a time, including a map of holes.
const MEMBER_MAX: usize = 24 << 20;

fn archive_members(data: &[u8]) {
    let mut reader = Reader::new(data);
    for _ in 0..10_000 {
        let Ok(Some(entry)) = reader.next_member() else { return };
        let attributes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let held = entry.path.len() + entry.link.len() + attributes + entry.data.len() * 16;
        assert!(held < MEMBER_MAX, "{held} bytes are held of one member");
        let mut end = 0;
        for (start, len) in &entry.data {
            assert!(*start >= end && *len > 0, "ranges are in order and hold something");
            end = start + len;
        }
        assert!(end <= entry.size && i64::try_from(entry.size).is_ok(), "data lies within the file");
        let mut got = 0;
        if reader
            .data(&entry, &mut |_, piece| {
                got += piece.len();
                got <= data.len()
            })
            .is_err()
        {
            return;
        }
        assert!(got <= data.len(), "no byte comes from nowhere");
        for (_, text) in &entry.acls {
            acl_text(text);
        }
    }
}

fn import(mut data: &[u8]) {
    let mut before = data;
    while let Ok(Some(message)) = wire::take(&mut data) {
        let mut again = Vec::new();
        match message {
            wire::Message::Step(step) => wire::put(&step, &mut again).must("it was as short before"),
            wire::Message::Finish => wire::put_finish(&mut again),
        }
        assert_eq!(again, before[..before.len() - data.len()], "each message has one form");
        before = data;
    }
}

fn import_seeds() -> Vec<Vec<u8>> {
    let (kind, xattrs, time) = (Kind::File { size: 9 }, vec![(b"a".to_vec(), vec![1; 9])], Timestamp(-1));
    let item = Item { path: "a/b".into(), kind, perm: 0, uid: 1, gid: 2, atime: time, mtime: time, xattrs };
    let steps = [Step::Item(item), Step::Ranges(vec![]), Step::Piece(8, vec![7]), Step::End, Step::Abandon];
    let mut all = Vec::new();
    steps.iter().for_each(|step| wire::put(step, &mut all).must("it is short"));
    vec![all]
}

fn archive_seeds() -> Vec<Vec<u8>> {
    let member =
        |kind, path: &[u8]| archive::Entry { kind, path: path.to_vec(), ..archive::Entry::default() };
    let file = archive::Entry { size: 5, data: vec![(0, 5)], ..member(b'0', b"file") };
    let holes = archive::Entry { size: 5000, data: vec![(512, 5)], ..member(b'0', b"holes") };
    let long = archive::Entry { link: vec![b'l'; 300], ..member(b'2', &[b'n'; 300]) };
    let list = acl::parse(b"user::rw-,user:7:r--,group::r--,mask::r--,other::---", &|_, _| None);
    let xattrs = vec![(acl::ACCESS.to_vec(), list.unwrap_or_default()), (b"user.a=b".to_vec(), vec![1; 20])];
    let attributes = archive::Entry { xattrs, ..member(b'5', b"folder/") };
    let write = |entries: &[&archive::Entry]| {
        let mut writer = Writer::new(Vec::new());
        for entry in entries {
            writer.begin(entry).must("a vector takes all");
            if !entry.data.is_empty() {
                writer.data(b"bytes").must("a vector takes all");
            }
            writer.end().must("a vector takes all");
        }
        writer.finish().must("a vector takes all")
    };
    vec![write(&[&file, &holes]), write(&[&long]), write(&[&attributes, &file]), write(&[])]
}

fn acl_text(data: &[u8]) {
    let find = |_, name: &str| name.len().is_multiple_of(2).then_some(name.len() as u32);
    if let Ok(bytes) = acl::parse(data, &find) {
        let text = acl::text(&bytes).must("a list that was read can be written");
        assert_eq!(acl::parse(text.as_bytes(), &|_, _| None), Ok(bytes), "a list is written as it was read");
    }
    let _ = acl::text(data);
}

fn acl_seeds() -> Vec<Vec<u8>> {
    let text = b"user::rw-,user:lisa:r--:1001,group::r--,group:77:rwx,mask::r--,other::---";
    let bytes = acl::parse(text, &|_, _| None).unwrap_or_default();
    vec![text.to_vec(), b"u::6\nmask:rw- # all\no::0\n".to_vec(), bytes]
}
