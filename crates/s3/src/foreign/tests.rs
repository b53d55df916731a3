//! Answers from a store in memory that counts, changes and fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use super::send::Wanted;
use super::*;

/// The length of a piece.
const PIECE: u64 = 4;

/// Objects by key: ETag and bytes.
#[derive(Default)]
struct Memory {
    objects: Mutex<BTreeMap<String, (String, Vec<u8>)>>,
    heads: AtomicU64,
    down: AtomicBool,
    /// Requests other than HEAD: the query and the body.
    passed: Mutex<Vec<(String, String)>>,
    /// The object is replaced when a read reaches this offset.
    replaced_at: Mutex<Option<u64>>,
}

impl Memory {
    fn put(&self, key: &str, etag: &str, bytes: &str) {
        self.objects.lock().insert(key.to_owned(), (etag.to_owned(), bytes.as_bytes().to_vec()));
    }
}

#[async_trait::async_trait]
impl Upstream for Memory {
    fn place(&self) -> (&str, &str) {
        ("there", "p/")
    }

    async fn pass(
        &self,
        request: Passed,
    ) -> std::result::Result<http::Response<UnsyncBoxBody<Bytes, StdError>>, Away> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Away("connection refused".to_owned()));
        }
        let empty = http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync();
        let mut answer = http::Response::new(empty);
        if request.method != Method::HEAD {
            let mut bytes = Vec::new();
            if let Some(body) = request.body {
                bytes.extend_from_slice(&body.collect().await.unwrap().to_bytes());
            }
            self.passed.lock().push((request.query, String::from_utf8(bytes).unwrap()));
            return Ok(answer);
        }
        self.heads.fetch_add(1, Ordering::SeqCst);
        match self.objects.lock().get(request.key.as_deref().unwrap_or("")) {
            None => *answer.status_mut() = StatusCode::NOT_FOUND,
            Some((etag, bytes)) => {
                let etag = HeaderValue::from_str(&format!("\"{etag}\"")).unwrap();
                answer.headers_mut().insert(header::ETAG, etag);
                answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            }
        }
        Ok(answer)
    }

    fn piece(&self) -> u64 {
        PIECE
    }

    fn read(&self, version: &Version, offset: u64, buf: &mut [u8]) -> std::result::Result<(), Unread> {
        let replaced = self.replaced_at.lock().take_if(|at| offset >= *at).is_some();
        if replaced {
            self.put(&version.key, "new", "a new version");
        }
        if self.down.load(Ordering::SeqCst) {
            return Err(Unread::Away("connection refused".to_owned()));
        }
        match self.objects.lock().get(&version.key) {
            Some((etag, bytes)) if *etag == version.etag => {
                buf.copy_from_slice(&bytes[offset as usize..][..buf.len()]);
                Ok(())
            }
            _ => Err(Unread::Stale),
        }
    }
}

fn foreign(revalidate: Revalidate) -> (Arc<Memory>, Arc<Foreign>) {
    let memory = Arc::new(Memory::default());
    memory.put("key", "old", "the old version");
    let made = Made { name: "here".to_owned(), upstream: memory.clone(), revalidate };
    (memory, Arc::new(Foreign::new(made)))
}

/// The status of an answer, and its bytes if its body did not break.
async fn get(foreign: &Arc<Foreign>, key: &str) -> std::result::Result<Option<String>, String> {
    let answer = foreign.send(key, &Wanted::all()).await;
    let answer = answer.map_err(|error| error.code().as_str().to_owned())?.unwrap();
    let body = answer.output.collect().await.ok();
    Ok(body.map(|body| String::from_utf8(body.to_bytes().to_vec()).unwrap()))
}

#[tokio::test]
async fn an_object_is_asked_for_once_and_a_replaced_one_is_never_mixed() {
    let (memory, foreign) = foreign(Revalidate::Never);
    for _ in 0..3 {
        assert_eq!(get(&foreign, "key").await, Ok(Some("the old version".to_owned())));
    }
    assert_eq!(memory.heads.load(Ordering::SeqCst), 1);
    // Before the first byte, the answer is made anew.
    *memory.replaced_at.lock() = Some(0);
    assert_eq!(get(&foreign, "key").await, Ok(Some("a new version".to_owned())));
    assert_eq!(memory.heads.load(Ordering::SeqCst), 2);
    // Behind it, the body breaks. The next answer is whole.
    memory.put("key", "third", "the third version");
    assert_eq!(get(&foreign, "key").await, Ok(Some("the third version".to_owned())));
    *memory.replaced_at.lock() = Some(2 * PIECE);
    assert_eq!(get(&foreign, "key").await, Ok(None));
    assert_eq!(get(&foreign, "key").await, Ok(Some("a new version".to_owned())));
    assert_eq!(get(&foreign, "other").await, Err("NoSuchKey".to_owned()));
}

#[tokio::test]
async fn a_store_that_is_away_is_not_asked_for_what_is_fresh() {
    let (memory, foreign) = foreign(Revalidate::Never);
    memory.put("empty", "e", "");
    assert_eq!(get(&foreign, "empty").await, Ok(Some(String::new())));
    memory.down.store(true, Ordering::SeqCst);
    assert_eq!(get(&foreign, "empty").await, Ok(Some(String::new())));
    assert_eq!(get(&foreign, "key").await, Err("ServiceUnavailable".to_owned()));
    memory.down.store(false, Ordering::SeqCst);
    assert_eq!(get(&foreign, "key").await, Ok(Some("the old version".to_owned())));
}

#[tokio::test]
async fn always_asks_each_time() {
    let (memory, foreign) = foreign(Revalidate::Every(Duration::ZERO));
    for heads in 1..4 {
        get(&foreign, "key").await.unwrap();
        assert_eq!(memory.heads.load(Ordering::SeqCst), heads);
    }
    memory.objects.lock().clear();
    assert_eq!(get(&foreign, "key").await, Err("NoSuchKey".to_owned()));
}

/// Passes a request on. Returns the code of an error.
async fn pass(foreign: &Arc<Foreign>, method: Method, key: Option<&str>, uri: &str, body: &str) -> String {
    let request = S3Request {
        input: Body::from(Bytes::from(body.to_owned())),
        method,
        uri: uri.parse().unwrap(),
        headers: HeaderMap::new(),
        extensions: http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    };
    let passed = foreign.pass(key.map(str::to_owned), request).await;
    passed.map_or_else(|error| error.code().as_str().to_owned(), |_| "fine".to_owned())
}

#[tokio::test]
async fn regression_no_key_to_delete_is_passed_on_without_the_prefix() {
    let (memory, foreign) = foreign(Revalidate::Never);
    for key in ["<Key>v2/x</Key>", "<Key >v2/x</Key >", "<Key xmlns='u'>v2/x</Key>", "<Key><!---->v2/x</Key>"]
    {
        let delete = format!("<Delete><Object>{key}</Object></Delete>");
        assert_eq!(pass(&foreign, Method::POST, None, "/here?delete", &delete).await, "fine", "{key}");
        let (_, sent) = memory.passed.lock().pop().unwrap();
        assert!(sent.contains("<Object><Key>p/v2/x</Key></Object>"), "{sent}");
    }
    for key in ["<s:Key>v2/x</s:Key>", "<Key><![CDATA[v2/x]]></Key>", "<Key>../x</Key>"] {
        let delete = format!("<Delete><Object>{key}</Object></Delete>");
        assert_eq!(
            pass(&foreign, Method::POST, None, "/here?delete", &delete).await,
            "MalformedXML",
            "{key}"
        );
    }
    assert!(memory.passed.lock().is_empty());
}

#[tokio::test]
async fn regression_no_name_of_a_parameter_becomes_another_parameter() {
    let (memory, foreign) = foreign(Revalidate::Never);
    let query = |uri: &'static str, key: Option<&'static str>| {
        let (memory, foreign) = (memory.clone(), foreign.clone());
        async move {
            let code = pass(&foreign, Method::GET, key, uri, "").await;
            memory.passed.lock().pop().map_or(code, |(query, _)| query)
        }
    };
    assert_eq!(query("/here?prefix=a/&x-amz-a=b", None).await, "prefix=p%2Fa%2F&x-amz-a=b");
    assert_eq!(query("/here?x-amz-a%26prefix%3Dv2%2F", None).await, "NotImplemented");
    assert_eq!(query("/here?x-amz-a%26prefix%3Dv2%2F=x", None).await, "NotImplemented");
    let named = query("/here/key?response-a%26versionId%3Dx=1", Some("key")).await;
    assert_eq!(named, "response-a%26versionId%3Dx=1");
    let copies = "/here/key?X-Amz-Copy-Source=%2Fthere%2Fv2%2Fx";
    assert_eq!(pass(&foreign, Method::PUT, Some("key"), copies, "").await, "NotImplemented");
}

#[tokio::test]
async fn regression_an_empty_object_has_no_last_bytes() {
    let (memory, foreign) = foreign(Revalidate::Never);
    memory.put("empty", "e", "");
    let end = Wanted::part(s3s::dto::Range::parse("bytes=-5").ok());
    let answer = foreign.send("empty", &end).await;
    assert_eq!(answer.err().map(|error| error.code().as_str().to_owned()), Some("InvalidRange".to_owned()));
}
