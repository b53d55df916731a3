//! Object tags: at most ten pairs, kept as the text of the x-amz-tagging header.

use std::collections::HashSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::dto::Tag;
use s3s::s3_error;

use crate::errors::Result;

/// The most tags of an object.
const TAGS_MAX: usize = 10;
/// The longest key, in characters.
const KEY_MAX: usize = 128;
/// The longest value, in characters.
const VALUE_MAX: usize = 256;
/// Bytes that are written as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The text that is kept.
pub fn to_text(tags: &[Tag]) -> Result<String> {
    if tags.len() > TAGS_MAX {
        return Err(s3_error!(InvalidTag, "an object has at most 10 tags"));
    }
    let mut keys = HashSet::new();
    let mut pairs = Vec::new();
    for tag in tags {
        let (key, value) = (tag.key.as_deref().unwrap_or(""), tag.value.as_deref().unwrap_or(""));
        let fits = (1..=KEY_MAX).contains(&key.chars().count()) && value.chars().count() <= VALUE_MAX;
        if !fits || !keys.insert(key) {
            return Err(s3_error!(
                InvalidTag,
                "a tag has a key of 1 to 128 characters, once, and a value of at most 256"
            ));
        }
        let pair = format!("{}={}", utf8_percent_encode(key, PLAIN), utf8_percent_encode(value, PLAIN));
        pairs.push((key, pair));
    }
    pairs.sort();
    let pairs: Vec<String> = pairs.into_iter().map(|(_, pair)| pair).collect();
    Ok(pairs.join("&"))
}

/// The tags of a text.
pub fn from_text(text: &str) -> Result<Vec<Tag>> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().map(|text| text.into_owned());
        decoded.map_err(|_| s3_error!(InvalidTag, "a tag is not UTF-8"))
    };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok(Tag { key: Some(decode(key)?), value: Some(decode(value)?) })
        })
        .collect()
}

/// The tags of the x-amz-tagging header, in the form that is kept.
pub fn from_header(header: Option<&str>) -> Result<Option<String>> {
    header.map(|header| to_text(&from_text(header)?)).transpose()
}

/// How many tags a text holds.
pub fn count(text: Option<&str>) -> Option<i32> {
    let count = text?.split('&').filter(|pair| !pair.is_empty()).count();
    i32::try_from(count).ok().filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(key: &str, value: &str) -> Tag {
        Tag { key: Some(key.to_owned()), value: Some(value.to_owned()) }
    }

    #[test]
    fn tags_come_back() {
        let tags = [tag("a b", "1&2=3"), tag("b", "")];
        let text = to_text(&tags).unwrap();
        assert_eq!(from_text(&text).unwrap(), tags);
        assert_eq!(count(Some(&text)), Some(2));
        assert_eq!(from_header(Some("k2=1&k=2")).unwrap().as_deref(), Some("k=2&k2=1"));
        assert_eq!(from_header(Some("k=a+b")).unwrap().as_deref(), Some("k=a%20b"));
    }

    #[test]
    fn too_many_or_equal_tags_are_refused() {
        let many: Vec<Tag> = (0..11).map(|n| tag(&n.to_string(), "")).collect();
        assert!(to_text(&many).is_err() && to_text(&many[..10]).is_ok());
        for bad in [vec![tag("", "")], vec![tag("a", "1"), tag("a", "2")], vec![tag(&"k".repeat(129), "")]] {
            assert_eq!(to_text(&bad).unwrap_err().code().as_str(), "InvalidTag");
        }
        assert!(from_text("%ff=1").is_err());
    }
}
