//! XML of the store and of clients, with keys of the one as keys of the other: the prefix is taken away or
//! put before, and the bucket's name is replaced. The prefix has only characters that XML and URLs write as
//! they are: `node` refuses others. So text of the store can be compared without decoding it; a `/` may be
//! `%2F`. The prefix is a border for clients, so their XML is read by a parser.

use s3s::xml::{DeError, DeResult, Deserializer};

/// Elements whose text is a key or the beginning of one.
const KEYS: [&str; 7] = ["Key", "Prefix", "Marker", "NextMarker", "StartAfter", "KeyMarker", "NextKeyMarker"];
/// Elements whose text is the bucket's name.
const BUCKETS: [&str; 3] = ["Name", "Bucket", "BucketName"];

/// Calls `change` with the name of each element that has only text, and with its text. Puts together what it
/// returns; `None` leaves the text as it is.
fn changed(xml: &str, mut change: impl FnMut(&str, &str) -> Option<String>) -> String {
    let mut out = String::with_capacity(xml.len());
    let mut rest = xml;
    while let Some((before, tagged)) = rest.split_once('<') {
        out.push_str(before);
        let Some((tag, after)) = tagged.split_once('>') else {
            out.push('<');
            out.push_str(tagged);
            return out;
        };
        out.push('<');
        out.push_str(tag);
        out.push('>');
        let end = after.find('<').unwrap_or(after.len());
        let (text, next) = after.split_at(end);
        let closes = next.strip_prefix("</").is_some_and(|next| next.starts_with(tag));
        match closes.then(|| change(tag, text)).flatten() {
            Some(new) => out.push_str(&new),
            None => out.push_str(text),
        }
        rest = next;
    }
    out.push_str(rest);
    out
}

/// XML of the store for a client: without the prefix, and with the bucket's name here.
pub fn to_client(xml: &str, prefix: &str, bucket: &str) -> String {
    let encoded = prefix.replace('/', "%2F");
    changed(xml, |tag, text| {
        if KEYS.contains(&tag) {
            let stripped = text.strip_prefix(prefix).or_else(|| text.strip_prefix(&encoded));
            return stripped.map(str::to_owned);
        }
        BUCKETS.contains(&tag).then(|| bucket.to_owned())
    })
}

/// XML of a client that deletes several keys, for the store: keys with the prefix. Also the keys without it.
/// `None` if it is not understood.
///
/// A parser reads the keys, and they are written anew. So there is no XML that shows the store a key without
/// the prefix, because this program did not take it for one.
pub fn deletion(xml: &str, prefix: &str) -> Option<(String, Vec<String>)> {
    // The parser leaves such text out of keys.
    if xml.contains("<![CDATA[") {
        return None;
    }
    let mut keys = Vec::new();
    let mut out = String::from(DELETE);
    let mut reader = Deserializer::new(xml.as_bytes());
    let read = reader.named_element("Delete", |reader| {
        reader.for_each_element(|reader, name| match name {
            b"Object" => {
                out.push_str("<Object>");
                keys.push(object(reader, prefix, &mut out)?);
                out.push_str("</Object>");
                Ok(())
            }
            b"Quiet" => reader.text(|text| {
                write(&mut out, "Quiet", text);
                Ok(())
            }),
            _ => Err(DeError::UnexpectedTagName),
        })
    });
    read.and_then(|()| reader.expect_eof()).ok()?;
    out.push_str("</Delete>");
    (!keys.is_empty()).then_some((out, keys))
}

/// The beginning of what [`deletion`] writes.
const DELETE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
    <Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
/// What an object to delete has beside its key.
const BESIDE: [&str; 4] = ["VersionId", "ETag", "LastModifiedTime", "Size"];

/// Reads an object to delete and writes it with the prefix. Returns its key.
fn object(reader: &mut Deserializer<'_>, prefix: &str, out: &mut String) -> DeResult<String> {
    let mut key = None;
    reader.for_each_element(|reader, name| {
        let beside = BESIDE.into_iter().find(|known| known.as_bytes() == name);
        reader.text(|text| match beside {
            Some(known) => {
                write(out, known, text);
                Ok(())
            }
            None if name == b"Key" && key.is_none() && is_below(text) => {
                write(out, "Key", &format!("{prefix}{text}"));
                key = Some(text.to_owned());
                Ok(())
            }
            None => Err(DeError::InvalidContent),
        })
    })?;
    key.ok_or(DeError::MissingField)
}

/// Whether a key behind a prefix is below it for every store.
fn is_below(key: &str) -> bool {
    !key.is_empty() && !key.split('/').any(|part| matches!(part, "." | ".."))
}

/// Writes an element. What a parser might change in text is written as references.
fn write(out: &mut String, name: &str, text: &str) {
    out.push_str(&format!("<{name}>"));
    for letter in text.chars() {
        if letter.is_control() || matches!(letter, '<' | '>' | '&' | '"' | '\'' | '\u{2028}') {
            out.push_str(&format!("&#x{:x};", u32::from(letter)));
        } else {
            out.push(letter);
        }
    }
    out.push_str(&format!("</{name}>"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lose_the_prefix_and_get_it_back() {
        let store = "<?xml version=\"1.0\"?><R><Name>b</Name><Prefix>p/q/x</Prefix><Contents>\
            <Key>p/q/a&amp;b</Key><Owner/></Contents><CommonPrefixes><Prefix>p%2Fq%2Fd/</Prefix>\
            </CommonPrefixes><Key>other</Key></R>";
        let client = to_client(store, "p/q/", "here");
        assert!(client.contains("<Name>here</Name><Prefix>x</Prefix>"), "{client}");
        assert!(client.contains("<Key>a&amp;b</Key><Owner/>"), "{client}");
        assert!(
            client.contains("<Prefix>d/</Prefix>") && client.contains("<Key>other</Key></R>"),
            "{client}"
        );
        assert_eq!(to_client(store, "", "b"), store);
        for odd in ["", "<", "<a", "a<b>c", "<Key>", "<Key>x</Other>", "&", "&;&x"] {
            to_client(odd, "p", "b");
            assert_eq!(deletion(odd, "p"), None, "{odd}");
        }
    }

    #[test]
    fn keys_to_delete_get_the_prefix() {
        let delete = "<?xml version='1.0'?><Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Quiet>true</Quiet> <Object><Key>a&amp;b&#x20;c&#13;</Key><VersionId>v</VersionId>\
            <ETag>&quot;e&quot;</ETag></Object><Object><Key>d</Key></Object></Delete>";
        let (store, keys) = deletion(delete, "p/").unwrap();
        assert_eq!(keys, ["a&b c\r", "d"]);
        assert_eq!(
            store.strip_prefix(DELETE).unwrap(),
            "<Quiet>true</Quiet><Object><Key>p/a&#x26;b c&#xd;</Key><VersionId>v</VersionId>\
            <ETag>&#x22;e&#x22;</ETag></Object><Object><Key>p/d</Key></Object></Delete>"
        );
    }

    #[test]
    fn regression_no_form_of_a_key_passes_the_prefix() {
        for written in ["<Key >x</Key >", "<Key xmlns='u'>x</Key>", "<Key><!-- y -->x</Key>"] {
            let delete = format!("<Delete><Object>{written}</Object></Delete>");
            let (store, keys) = deletion(&delete, "p/").unwrap();
            assert_eq!(keys, ["x"], "{written}");
            assert_eq!(&store[DELETE.len()..], "<Object><Key>p/x</Key></Object></Delete>", "{written}");
        }
        for refused in [
            "<s:Key>x</s:Key>",
            "<Key><![CDATA[x]]></Key>",
            "<Key>a</Key><Key>b</Key>",
            "<Key><Key>x</Key></Key>",
            "<Key/>",
            "<Key>../x</Key>",
            "<Key>&own;</Key>",
            "<VersionId>v</VersionId>",
        ] {
            let delete = format!("<Delete><Object>{refused}</Object></Delete>");
            assert_eq!(deletion(&delete, "p/"), None, "{refused}");
        }
        let twice = "<Delete><Object><Key>a</Key></Object></Delete>".repeat(2);
        for refused in ["<Delete></Delete>", "<Delete><Key>x</Key></Delete>", "<Other/>", &twice] {
            assert_eq!(deletion(refused, "p/"), None, "{refused}");
        }
    }
}
