//! XML of the store and of clients, with keys of the one as keys of the other: the prefix is taken away or
//! put before, and the bucket's name is replaced. The prefix has only characters that XML and URLs write as
//! they are: `node` refuses others. So text can be compared without decoding it; a `/` may be `%2F`.

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

/// XML of a client for the store: keys with the prefix.
pub fn to_store(xml: &str, prefix: &str) -> String {
    changed(xml, |tag, text| (tag == "Key").then(|| format!("{prefix}{text}")))
}

/// The keys in XML, decoded.
pub fn keys(xml: &str) -> Vec<String> {
    let mut keys = Vec::new();
    changed(xml, |tag, text| {
        if tag == "Key" {
            keys.push(decoded(text));
        }
        None
    });
    keys
}

/// Text without its references.
fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, reference)) = rest.split_once('&') {
        out.push_str(before);
        let Some((name, after)) = reference.split_once(';') else {
            out.push('&');
            rest = reference;
            continue;
        };
        let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        let letter = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => name.strip_prefix("#x").map_or_else(
                || name.strip_prefix('#').and_then(|digits| number(digits, 10)),
                |digits| number(digits, 16),
            ),
        };
        out.extend(letter);
        rest = after;
    }
    out + rest
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
        let delete = "<Delete><Object><Key>a&amp;b&#x20;c</Key></Object></Delete>";
        assert_eq!(keys(delete), ["a&b c"]);
        assert!(to_store(delete, "p/").contains("<Key>p/a&amp;b&#x20;c</Key>"));
        assert_eq!(to_client(store, "", "b"), store);
        for odd in ["", "<", "<a", "a<b>c", "<Key>", "<Key>x</Other>", "&", "&;&x"] {
            to_client(odd, "p", "b");
            keys(odd);
            assert_eq!(to_store(odd, ""), odd);
        }
    }
}
