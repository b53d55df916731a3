//! What is refused before a request reaches s3s: what this gateway does not offer, and what s3s lets pass.

use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use s3s::s3_error;

use crate::answers::OWNER;
use crate::errors::Result;

/// Headers that need not be signed: the body is compared with the first, and the second says nothing.
const FREE: [&str; 2] = ["x-amz-content-sha256", "x-amz-user-agent"];

/// The longest time for which a URL is valid, in seconds.
const EXPIRES_MAX: u32 = 7 * 86_400;

/// Checks the head of a request.
pub fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if method == Method::POST && text("content-type").is_some_and(is_form) {
        return Err(s3_error!(NotImplemented, "uploads by HTML forms are not offered"));
    }
    let authorization = text("authorization");
    if headers.get_all("authorization").iter().count() > 1 {
        return Err(s3_error!(InvalidRequest, "there is more than one Authorization header"));
    }
    let owners = ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"];
    if owners.iter().any(|name| headers.get(*name).is_some_and(|owner| owner != OWNER)) {
        return Err(s3_error!(AccessDenied, "the bucket has another owner: all belong to {OWNER}"));
    }
    let expires = query(uri, "X-Amz-Expires").map(|seconds| seconds.parse::<u32>().unwrap_or(0));
    if expires.is_some_and(|seconds| !(1..=EXPIRES_MAX).contains(&seconds)) {
        return Err(s3_error!(AccessDenied, "a URL is valid for 1 second to 7 days"));
    }
    if authorization.is_some_and(|value| value.starts_with("AWS ")) || query(uri, "Signature").is_some() {
        return Err(s3_error!(
            InvalidRequest,
            "sign with AWS4-HMAC-SHA256; older signatures are not accepted"
        ));
    }
    let Some(signed) = signed_headers(uri, headers)? else { return Ok(()) };
    let is_signed = |name: &str| signed.split(';').any(|word| word.eq_ignore_ascii_case(name));
    let unsigned = headers.keys().map(|name| name.as_str());
    let unsigned = unsigned.chain(["host"]).find(|name| {
        let must = *name == "host" || name.starts_with("x-amz-") && !FREE.contains(name);
        must && !is_signed(name)
    });
    match unsigned {
        Some(name) => Err(s3_error!(AccessDenied, "the header {name} is not signed")),
        None => Ok(()),
    }
}

/// The list of signed headers, from the place that s3s verifies. `None`: the request is not signed. A list of
/// one place must never stand for a signature in the other, so a request that names both is refused.
fn signed_headers(uri: &Uri, headers: &HeaderMap) -> Result<Option<String>> {
    let by_url = query(uri, "X-Amz-SignedHeaders");
    let Some(value) = headers.get("authorization") else { return Ok(by_url) };
    if by_url.is_some() || query(uri, "X-Amz-Signature").is_some() {
        return Err(s3_error!(
            InvalidArgument,
            "sign in the URL or in the Authorization header, not in both"
        ));
    }
    let unreadable = || s3_error!(InvalidRequest, "the Authorization header is not of AWS4-HMAC-SHA256");
    let value = value.to_str().map_err(|_| unreadable())?;
    let mut lists = value.strip_prefix("AWS4-HMAC-SHA256 ").ok_or_else(unreadable)?.split("SignedHeaders=");
    match (lists.next(), lists.next(), lists.next()) {
        (Some(_), Some(list), None) => Ok(list.split(',').next().map(|list| list.trim().to_owned())),
        _ => Err(unreadable()),
    }
}

fn is_form(kind: &str) -> bool {
    kind.trim_start().get(..19).is_some_and(|begin| begin.eq_ignore_ascii_case("multipart/form-data"))
}

/// A parameter of the query.
fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut values = pairs.filter(|(key, _)| percent_decode_str(key).decode_utf8_lossy() == name);
    values.next().map(|(_, value)| percent_decode_str(value).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(method: Method, uri: &str, headers: &[(&'static str, &str)]) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let done = check(&method, &uri.parse().unwrap(), &map);
        done.map_or_else(|error| error.code().as_str().to_owned(), |()| "fine".to_owned())
    }

    #[test]
    fn headers_of_amazon_must_be_signed() {
        let signed = "AWS4-HMAC-SHA256 Credential=K/20260101/r/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00";
        let with = |extra: &'static str| {
            code(Method::PUT, "/b/k", &[("authorization", signed), ("x-amz-date", "1"), (extra, "x")])
        };
        assert_eq!(with("content-type"), "fine");
        assert_eq!(with("x-amz-content-sha256"), "fine");
        assert_eq!(with("x-amz-copy-source"), "AccessDenied");
        let url = "/b/k?X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=00";
        assert_eq!(code(Method::PUT, url, &[("x-amz-acl", "private")]), "fine");
        assert_eq!(code(Method::PUT, url, &[("x-amz-meta-a", "b")]), "AccessDenied");
        assert_eq!(code(Method::PUT, "/b/k?X-Amz-SignedHeaders=x", &[]), "AccessDenied");
    }

    #[test]
    fn regression_another_list_of_signed_headers_does_not_stand_for_the_signed_one() {
        let url = "/b/k?X-Amz-SignedHeaders=host&X-Amz-Signature=00";
        let copies = ("x-amz-copy-source", "/b/secret");
        assert_eq!(code(Method::PUT, url, &[copies]), "AccessDenied");
        let other = ("authorization", "x SignedHeaders=host;x-amz-copy-source");
        assert_eq!(code(Method::PUT, url, &[other, copies]), "InvalidArgument");
        assert_eq!(code(Method::PUT, "/b/k?X-Amz-Signature=00", &[other, copies]), "InvalidArgument");
        let twice = "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-copy-source, Credential=K, SignedHeaders=host";
        for bad in ["x SignedHeaders=host", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 x", "\u{e4}", "", twice] {
            assert_eq!(code(Method::GET, "/b", &[("authorization", bad)]), "InvalidRequest", "{bad}");
        }
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        assert_eq!(
            code(Method::POST, "/b", &[("content-type", "multipart/form-data; boundary=x")]),
            "NotImplemented"
        );
        assert_eq!(code(Method::GET, "/b", &[("authorization", "AWS K:x")]), "InvalidRequest");
        assert_eq!(code(Method::GET, "/b?Signature=x&AWSAccessKeyId=K&Expires=1", &[]), "InvalidRequest");
        assert_eq!(
            code(Method::GET, "/b", &[("authorization", "AWS4"), ("authorization", "AWS4")]),
            "InvalidRequest"
        );
        assert_eq!(code(Method::GET, "/b", &[]), "fine");
        assert_eq!(code(Method::GET, "/b", &[("x-amz-expected-bucket-owner", "1234")]), "AccessDenied");
        assert_eq!(code(Method::GET, "/b", &[("x-amz-expected-bucket-owner", "covey")]), "fine");
        for (seconds, is) in
            [("0", "AccessDenied"), ("-1", "AccessDenied"), ("604801", "AccessDenied"), ("604800", "fine")]
        {
            assert_eq!(code(Method::GET, &format!("/b?X-Amz-Expires={seconds}"), &[]), is, "{seconds}");
        }
    }
}
