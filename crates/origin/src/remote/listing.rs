//! Pages of listings, as stores send them: XML of S3 and of Azure.
//!
//! The `object_store` crate lists keys, too. But it has only keys that are paths: one key with an empty part
//! makes its whole listing fail, and a `/` at the end of a key is lost. So the page is taken from the wire
//! and read here ([`super::wire::Tap`]).
//!
//! A page is a flat list. Text holds no `<`, so an element is found by its tags. Comments and CDATA sections
//! are not understood: no store sends them.

use base::Timestamp;

use super::answers::Object;
use super::fault::{Fault, first_words};

/// One page of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) objects: Vec<Object>,
    /// With what the next page is asked for. None: this is the last page.
    pub(crate) next: Option<String>,
}

/// Reads a page of the keys that begin with `prefix`.
///
/// # Errors
/// [`Fault::Odd`]: it is no page of a listing, or only a part of one.
pub(crate) fn read(text: &str, prefix: &str) -> Result<Page, Fault> {
    let odd = |what: &str| Fault::Odd(format!("a listing {what}"));
    let azure = match (text.contains("</ListBucketResult>"), text.contains("</EnumerationResults>")) {
        (true, _) => false,
        (_, true) => true,
        _ => return Err(odd("that is none, or is cut off")),
    };
    let (of_object, of_next) = match azure {
        true => ("Blob", "NextMarker"),
        false => ("Contents", "NextContinuationToken"),
    };
    let mut objects = Vec::new();
    let mut left = text;
    // Elements beside the objects, such as the prefix itself, come before and after them.
    while let Some((element, rest)) = element(left, of_object) {
        let object = object(element.text, azure).map_err(|what| odd(&what))?;
        let key = object.key.strip_prefix(prefix);
        let key = key.ok_or_else(|| odd("with keys that were not asked for"))?.to_owned();
        objects.push(Object { key, ..object });
        left = rest;
    }
    let next = element(left, of_next).map(|(next, _)| unescape(next.text)).filter(|next| !next.is_empty());
    let truncated =
        !azure && element(text, "IsTruncated").is_some_and(|(flag, _)| flag.text.trim() == "true");
    match (truncated, next.or_else(|| before(text, of_object, of_next))) {
        (true, None) => Err(odd("that has more pages and does not say where")),
        (_, next) => Ok(Page { objects, next }),
    }
}

/// The token of the next page, if it stands before the objects.
fn before(text: &str, of_object: &str, of_next: &str) -> Option<String> {
    let head = text.split(&format!("<{of_object}>")).next()?;
    element(head, of_next).map(|(next, _)| unescape(next.text)).filter(|next| !next.is_empty())
}

fn object(text: &str, azure: bool) -> Result<Object, String> {
    let of = |name: &str| element(text, name).map(|(found, _)| found);
    let without = |what: &str| format!("of objects without {what}");
    let (name, size, etag) = if azure { ("Name", "Content-Length", "Etag") } else { ("Key", "Size", "ETag") };
    let name = of(name).ok_or_else(|| without("keys"))?;
    let mut key = unescape(name.text);
    if name.attributes.contains("Encoded=\"true\"") {
        key = decode_percent(&key);
    }
    // Azure with folders: they are listed as objects without bytes.
    if azure && of("ResourceType").is_some_and(|kind| kind.text == "directory") && !key.ends_with('/') {
        key.push('/');
    }
    let size = of(size).and_then(|size| size.text.trim().parse().ok()).ok_or_else(|| without("sizes"))?;
    let etag = of(etag).map_or_else(String::new, |etag| unescape(etag.text));
    let modified = if azure { "Last-Modified" } else { "LastModified" };
    let modified = of(modified).and_then(|time| moment(time.text.trim())).ok_or_else(|| without("times"))?;
    Ok(Object { key, size, etag: bare(&etag).to_owned(), modified })
}

/// An ETag without its quotes. Some listings have them, others do not.
pub(crate) fn bare(etag: &str) -> &str {
    let etag = etag.trim();
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

struct Element<'a> {
    attributes: &'a str,
    text: &'a str,
}

/// The first element of this name, and what follows it.
fn element<'a>(xml: &'a str, name: &str) -> Option<(Element<'a>, &'a str)> {
    let (open, close) = (format!("<{name}"), format!("</{name}>"));
    let mut left = xml;
    loop {
        let rest = left.get(left.find(&open)? + open.len()..)?;
        let (attributes, inner) = rest.split_once('>')?;
        // Another name may only begin like this one.
        if !(attributes.is_empty() || attributes.starts_with([' ', '/', '\t', '\n', '\r'])) {
            left = rest;
            continue;
        }
        if attributes.ends_with('/') {
            return Some((Element { attributes, text: "" }, inner));
        }
        let (text, after) = inner.split_once(&close)?;
        return Some((Element { attributes, text }, after));
    }
}

/// Replaces the references in a text. What is no reference stays as it is.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut left = text;
    while let Some(at) = left.find('&') {
        out.push_str(&left[..at]);
        left = &left[at..];
        let end = left.bytes().take(11).position(|byte| byte == b';');
        match end.and_then(|end| Some((reference(&left[1..end])?, end))) {
            Some((character, end)) => {
                out.push(character);
                left = &left[end + 1..];
            }
            None => {
                out.push('&');
                left = &left[1..];
            }
        }
    }
    out.push_str(left);
    out
}

fn reference(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let digits = name.strip_prefix('#')?;
            let hex = digits.strip_prefix(['x', 'X']);
            let code = hex.map_or_else(|| digits.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
            code.and_then(char::from_u32)
        }
    }
}

fn decode_percent(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let Some((&byte, rest)) = left.split_first() {
        left = rest;
        let code = rest.get(..2).filter(|_| byte == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                out.push(code);
                left = &rest[2..];
            }
            None => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads `2026-11-26T05:51:16.123Z`, as S3 writes it, or `Thu, 26 Nov 2026 05:51:16 GMT`, as Azure does.
pub(super) fn moment(text: &str) -> Option<Timestamp> {
    if let Ok(time) = httpdate::parse_http_date(text) {
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        return Some(Timestamp::from_parts(i64::try_from(since.as_secs()).ok()?, 0));
    }
    let (date, time) = text.strip_suffix('Z').unwrap_or(text).split_once('T')?;
    let numbers = |text: &str, by: char| -> Option<[i64; 3]> {
        let all: Vec<i64> = text.split(by).map(|part| part.parse().ok()).collect::<Option<_>>()?;
        all.try_into().ok()
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
    if !is_time || !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(0..10_000).contains(&year) {
        return None;
    }
    let nanos = format!("{:0<9}", first_words(fraction, 9).trim_end_matches('.')).parse().ok()?;
    // Days since 1970. The year begins in March here, so that a leap day is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    Some(Timestamp::from_parts(days * 86_400 + hour * 3_600 + minute * 60 + second, nanos))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S3: &str = r#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Name>b</Name><Prefix>p/</Prefix><NextContinuationToken>a&amp;b</NextContinuationToken><KeyCount>2</KeyCount>
<IsTruncated>true</IsTruncated>
<Contents><Key>p/a//b</Key><LastModified>2026-11-26T05:51:16.120Z</LastModified><ETag>&quot;x-2&quot;</ETag>
<Size>7</Size></Contents>
<Contents><Key>p/&lt;&#x1;&amp;lt;&#10;/</Key><LastModified>1970-01-01T00:00:01Z</LastModified><Size>0</Size></Contents>
</ListBucketResult>"#;

    const AZURE: &str = r#"<EnumerationResults ServiceEndpoint="x"><Prefix>p/</Prefix><Blobs>
<Blob><Name>p/f</Name><Properties><Last-Modified>Thu, 01 Jan 1970 00:01:00 GMT</Last-Modified><Etag>0x8D</Etag>
<ResourceType>file</ResourceType><Content-Length>5</Content-Length></Properties></Blob>
<Blob><Name Encoded="true">p%2Fd%01</Name><Properties><Last-Modified>Thu, 01 Jan 1970 00:01:00 GMT</Last-Modified>
<Etag>"0x8E"</Etag><ResourceType>directory</ResourceType><Content-Length>0</Content-Length></Properties></Blob>
</Blobs><NextMarker/></EnumerationResults>"#;

    #[test]
    fn pages_of_both_kinds_are_read() {
        let page = read(S3, "p/").unwrap();
        assert_eq!(page.next.as_deref(), Some("a&b"));
        let keys: Vec<_> = page.objects.iter().map(|object| &*object.key).collect();
        assert_eq!(keys, ["a//b", "<\u{1}&lt;\n/"]);
        let first = &page.objects[0];
        assert_eq!((first.size, &*first.etag, first.modified.nanos()), (7, "x-2", 120_000_000));
        assert_eq!((&*page.objects[1].etag, page.objects[1].modified.seconds()), ("", 1));
        let page = read(AZURE, "p/").unwrap();
        assert_eq!(page.next, None);
        let seen: Vec<_> =
            page.objects.iter().map(|object| (&*object.key, &*object.etag, object.size)).collect();
        assert_eq!(seen, [("f", "0x8D", 5), ("d\u{1}/", "0x8E", 0)]);
        assert_eq!(page.objects[0].modified.seconds(), 60);
    }

    #[test]
    fn a_page_that_is_cut_or_foreign_is_an_error() {
        for len in (0..S3.len() - 1).filter(|len| S3.is_char_boundary(*len)) {
            assert!(read(&S3[..len], "p/").is_err(), "{len}");
        }
        assert!(read("<html></html>", "").is_err());
        assert!(read(S3, "other/").is_err());
        let no_token = S3.replace("NextContinuationToken", "Other");
        assert!(read(&no_token, "p/").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(at in 0usize..1200, len in 0usize..300, put in "[<>/&;#x0-9A-Za-z\"%é\\pC]{0,30}") {
            for page in [S3, AZURE] {
                let mut text: Vec<char> = page.chars().collect();
                let start = at.min(text.len());
                text.splice(start..(start + len).min(text.len()), put.chars());
                let text: String = text.into_iter().collect();
                if let Ok(page) = read(&text, "p/") {
                    prop_assert!(page.objects.len() <= 2);
                }
                let _ = (read(&put, ""), unescape(&put), decode_percent(&put), moment(&put));
            }
        }
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        let seconds = |text| moment(text).map(|time| time.seconds());
        assert_eq!(seconds("2000-02-29T00:00:00.000Z"), Some(951_782_400));
        assert_eq!(seconds("2026-11-26T05:51:16.000Z"), Some(1_795_672_276));
        assert_eq!(seconds("1969-12-31T23:59:59Z"), Some(-1));
        for bad in ["", "2026-13-01T00:00:00Z", "2026-01-01", "2026-01-01T25:00:00Z", "x-y-zT0:0:0"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
