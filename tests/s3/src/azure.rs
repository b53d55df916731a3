//! The part of Azure Blob Storage that an origin uses, in memory: whole block blobs, ranges other than "the
//! last bytes", listings in one page. Signatures are not checked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const DATE: &str = "Sat, 21 Nov 2026 12:00:00 GMT";

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    metadata: Vec<(String, String)>,
}

type Objects = Arc<Mutex<BTreeMap<String, Object>>>;

/// A storage account in which every container exists. See the [module](self).
pub struct Azure {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Azure {
    /// Starts one on a free port.
    pub fn start() -> Azure {
        let runtime = crate::runtime("azure-server");
        let listener = crate::wait(&runtime, async { TcpListener::bind("127.0.0.1:0").await.unwrap() });
        let address = listener.local_addr().unwrap();
        let objects = Objects::default();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let objects = Arc::clone(&objects);
                tokio::spawn(async move {
                    let serve = service_fn(|request| answer(Arc::clone(&objects), request));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), serve).await;
                });
            }
        });
        Azure { address, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Azure {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn answer(objects: Objects, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(refuse(StatusCode::BAD_REQUEST, "IncompleteBody")) };
    let mut objects = objects.lock().unwrap();
    let query = parts.uri.query().unwrap_or("");
    if query.contains("comp=list") {
        return Ok(list(&objects, query));
    }
    if query.contains("comp=batch") {
        return Ok(batch(&mut objects, &String::from_utf8_lossy(&body.to_bytes())));
    }
    let name = name_in(parts.uri.path());
    Ok(match parts.method {
        Method::PUT if parts.headers.contains_key("if-none-match") && objects.contains_key(&name) => {
            refuse(StatusCode::CONFLICT, "BlobAlreadyExists")
        }
        Method::PUT => {
            let own = parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("x-ms-meta-"));
            let metadata = own.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
            objects.insert(name, Object { bytes: body.to_bytes(), metadata: metadata.collect() });
            plain(StatusCode::CREATED, Bytes::new())
        }
        Method::DELETE if objects.remove(&name).is_some() => plain(StatusCode::ACCEPTED, Bytes::new()),
        Method::GET | Method::HEAD => match objects.get(&name) {
            Some(object) => give(object, &parts.method, &parts.headers),
            None => refuse(StatusCode::NOT_FOUND, "BlobNotFound"),
        },
        Method::DELETE => refuse(StatusCode::NOT_FOUND, "BlobNotFound"),
        _ => refuse(StatusCode::NOT_IMPLEMENTED, "UnsupportedHttpVerb"),
    })
}

/// The object's name in a path, without the container's.
fn name_in(path: &str) -> String {
    path.trim_start_matches('/').split_once('/').map_or("", |(_, name)| name).to_owned()
}

/// Many removals in one request. Anything else in its parts is ignored.
fn batch(objects: &mut BTreeMap<String, Object>, body: &str) -> Response<Full<Bytes>> {
    let paths = body.lines().filter_map(|line| line.strip_prefix("DELETE ")?.split(' ').next());
    let answers = paths.enumerate().map(|(i, path)| {
        let status = if objects.remove(&name_in(path)).is_some() { "202 Accepted" } else { "404 Not Found" };
        format!(
            "--b\r\nContent-Type: application/http\r\nContent-ID: {i}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: 2018-11-09\r\n\r\n\r\n"
        )
    });
    let text: String = answers.collect::<String>() + "--b--\r\n";
    let mut answer = plain(StatusCode::ACCEPTED, Bytes::from(text));
    answer.headers_mut().insert("content-type", "multipart/mixed; boundary=b".parse().unwrap());
    answer
}

fn plain(status: StatusCode, bytes: Bytes) -> Response<Full<Bytes>> {
    let answer = Response::builder().status(status).header("etag", "\"e\"").header("last-modified", DATE);
    answer.header("x-ms-version", "2023-11-03").body(Full::new(bytes)).unwrap()
}

fn refuse(status: StatusCode, code: &str) -> Response<Full<Bytes>> {
    let mut answer = plain(status, Bytes::from(crate::fault::error_body(code, "")));
    answer.headers_mut().insert("x-ms-error-code", code.parse().unwrap());
    answer
}

fn give(object: &Object, method: &Method, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let size = object.bytes.len();
    let range = ["x-ms-range", "range"].iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let mut answer = match range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) {
        None => plain(StatusCode::OK, object.bytes.clone()),
        Some(("", _)) => return refuse(StatusCode::BAD_REQUEST, "InvalidHeaderValue"),
        Some((from, to)) => {
            let from: usize = from.parse().unwrap();
            let to = to.parse().map_or(size, |to: usize| (to + 1).min(size));
            if from >= size {
                return refuse(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
            }
            let mut answer = plain(StatusCode::PARTIAL_CONTENT, object.bytes.slice(from..to));
            let said = format!("bytes {from}-{}/{size}", to - 1);
            answer.headers_mut().insert("content-range", said.parse().unwrap());
            answer
        }
    };
    for (name, value) in &object.metadata {
        answer.headers_mut().insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
    }
    if *method == Method::HEAD {
        answer.headers_mut().insert("content-length", size.into());
        *answer.body_mut() = Full::new(Bytes::new());
    }
    answer
}

fn list(objects: &BTreeMap<String, Object>, query: &str) -> Response<Full<Bytes>> {
    let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or("");
    let prefix = prefix.replace("%2F", "/");
    let blobs = objects.iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(name, object)| {
        let size = object.bytes.len();
        format!(
            "<Blob><Name>{name}</Name><Properties><Last-Modified>{DATE}</Last-Modified><Etag>e</Etag>\
             <Content-Length>{size}</Content-Length><Content-Type>x</Content-Type></Properties></Blob>"
        )
    });
    let blobs: String = blobs.collect();
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Prefix>{prefix}</Prefix><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
    );
    plain(StatusCode::OK, Bytes::from(text))
}
