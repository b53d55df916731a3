//! Targets of texts: of the S3 gateway (bodies in chunks, words, the file of keys), corpora, and what a
//! memory server reads.

use base::Must;
use bytes::Bytes;
use gateway::attributes::{Parts, Sum};
use gateway::chunks::Divider;
use gateway::keyring::Keyring;
use gateway::keys::Key;
use gateway::{answers, tags};
use memory::handshake;
use memory::list::{List, Span};

/// What the divider passes on of a body that arrives in pieces. `None`: it refuses the body.
fn passed(signed: bool, body: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut divider = Divider::new(signed);
    let mut out = Vec::new();
    for bytes in body.chunks(piece) {
        out.extend_from_slice(&divider.take(Bytes::copy_from_slice(bytes)).ok()?);
    }
    Some(out)
}

/// The data of the chunks at the beginning of a body, and what follows the last whole chunk.
fn content(mut body: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut data = Vec::new();
    while let Some((size, rest)) = chunk(body) {
        data.extend_from_slice(rest.get(..size).unwrap_or_default());
        body = rest.get(size + 2..).unwrap_or_default();
    }
    (data, body)
}

/// A whole chunk of plain form at the beginning: its size, and what follows its line.
fn chunk(body: &[u8]) -> Option<(usize, &[u8])> {
    let end = body.iter().position(|&byte| byte == b'\n')?;
    let line = std::str::from_utf8(body.get(..end)?.strip_suffix(b"\r")?).ok()?;
    let size = usize::from_str_radix(line, 16).ok().filter(|size| (1..1 << 20).contains(size))?;
    let rest = body.get(end + 1..)?;
    (rest.get(size..size + 2) == Some(b"\r\n")).then_some((size, rest))
}

/// The first byte says whether chunks are signed, and in which pieces the body arrives.
pub fn chunks(data: &[u8]) {
    let Some((&how, body)) = data.split_first() else { return };
    let (signed, piece) = (how & 1 == 1, usize::from(how >> 1) + 1);
    let whole = passed(signed, body, body.len().max(1));
    let pieces = passed(signed, body, piece);
    assert_eq!(whole.is_some(), pieces.is_some(), "how a body arrives decides nothing");
    let (Some(whole), Some(pieces)) = (whole, pieces) else { return };
    // A byte becomes a chunk of at most six bytes.
    assert!(pieces.len() <= 6 * body.len() + 16, "{} of {}", pieces.len(), body.len());
    if signed {
        assert!(body.starts_with(&pieces) && pieces == whole, "signed chunks are not changed");
    } else {
        assert_eq!(content(&whole).0, content(&pieces).0, "the data is the same");
    }
}

pub fn chunks_seeds() -> Vec<Vec<u8>> {
    let signed = b"\x015;chunk-signature=00\r\nhello\r\n0;chunk-signature=00\r\n\r\n";
    vec![
        b"\x005\r\nhello\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n".to_vec(),
        b"\x06a;x=y\r\n0123456789\r\n0\r\n\r\n".to_vec(),
        signed.to_vec(),
        b"\x00ffffffff\r\nxx".to_vec(),
    ]
}

/// Continuation tokens, keys, tags, and what is kept of checksums and parts.
pub fn s3_words(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert_eq!(answers::from_token(&answers::token(text)).ok().as_deref(), Some(text));
    if let Ok(after) = answers::from_token(text) {
        let again = answers::from_token(&answers::token(&after)).must("a token of our own is read");
        assert_eq!(again, after);
    }
    if let Ok(key) = Key::parse(text) {
        let mut path: Vec<&[u8]> = key.above().collect();
        path.push(key.name());
        assert_eq!(path.join(&b'/'), text.strip_suffix('/').unwrap_or(text).as_bytes());
        assert!(path.iter().all(|part| !matches!(*part, b"" | b"." | b"..")));
    }
    if let Ok(pairs) = tags::from_text(text)
        && let Ok(kept) = tags::to_text(&pairs)
    {
        let again = tags::from_text(&kept).must("kept tags are read");
        assert_eq!(tags::to_text(&again).ok(), Some(kept), "tags are kept as they are read");
    }
    if let Some(sum) = Sum::from_text(text) {
        assert_eq!(Sum::from_text(&sum.to_text()), Some(sum));
    }
    for size in [0, 10, u64::MAX] {
        if let Some(parts) = Parts::from_text(text, size) {
            assert_eq!(Parts::from_text(&parts.to_text(), size), Some(parts));
        }
    }
}

pub fn s3_words_seeds() -> Vec<Vec<u8>> {
    let token = answers::token("a/b c");
    let mut parts = Parts::default();
    parts.push(7);
    parts.push(3);
    [token.as_str(), "a/b/c/", "k=v&x=a%20b", "CRC32 FULL_OBJECT AAAAAA==", parts.to_text().as_str()]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// A file of keys. An error never quotes the file.
pub fn keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(ring) = Keyring::parse(text) {
        assert!(ring.count() > 0 && ring.any().is_some_and(|(_, secret)| secret.len() >= 16));
    }
}

pub fn keys_seeds() -> Vec<Vec<u8>> {
    let row = "[[key]]\naccess_key = \"A\"\nsecret_key = \"0123456789abcdef\"\nbuckets = { data = \"read\", \"*\" = \"write\" }\n";
    vec![
        row.as_bytes().to_vec(),
        format!("{row}{}", row.replace('A', "B")).into_bytes(),
        b"key = []".to_vec(),
    ]
}

pub fn corpus_spec(data: &[u8]) {
    use corpus::spec::Spec;
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(spec) = text.parse::<Spec>() {
        assert_eq!(spec.to_string().parse(), Ok(spec), "a corpus is written as it was read");
        assert!(spec.bytes() > 0);
    }
}

pub fn corpus_seeds() -> Vec<Vec<u8>> {
    ["corpus:7,1000,64K", "0,1,16", "18446744073709551615,10000000,4G"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

/// The regions that a VMM sends.
pub fn regions(data: &[u8]) {
    const LEN: u64 = 1 << 40;
    if let Ok(Some(regions)) = handshake::decode(data)
        && let Ok(regions) = handshake::check(regions, LEN)
    {
        assert!(regions.iter().map(|region| region.size).sum::<u64>() <= LEN);
        assert!(regions.windows(2).all(|pair| pair[0].base + pair[0].size <= pair[1].base));
    }
}

pub fn regions_seeds() -> Vec<Vec<u8>> {
    let one = r#"[{"base_host_virt_addr":140737018572800,"size":268435456,"offset":0,"page_size":4096}]"#;
    let two = r#"[{"base_host_virt_addr":4194304,"size":2097152,"offset":2097152,"page_size_kib":2048},
        {"base_host_virt_addr":8388608,"size":2097152,"offset":0,"page_size":2097152,"more":[1]}]"#;
    [one, two, "[]"].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A list of what a clone touched.
pub fn memory_list(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(list) = List::decode(text, 1 << 30, "x") {
        assert!(list.spans().iter().all(|span| span.len > 0 && span.offset + span.len <= 1 << 30));
        assert_eq!(List::decode(&list.encode(1 << 30, "x"), 1 << 30, "x"), Ok(list));
    }
}

pub fn memory_list_seeds() -> Vec<Vec<u8>> {
    let mut list = List::default();
    for offset in [65_536, 131_072, 0, 1 << 20] {
        list.push(Span { offset, len: 65_536 });
    }
    vec![list.encode(1 << 30, "x").into_bytes(), List::default().encode(1 << 30, "x").into_bytes()]
}
