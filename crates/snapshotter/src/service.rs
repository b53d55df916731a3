//! gRPC: which operation a path means, and answers and status codes as containerd expects them.
//!
//! The operations wait for a disk, so each runs on a helper of the runtime.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::proto::{Commit, Empty, Infos, List, Mounts, NewSnapshot, OfKey, OneInfo, Update, Usage};
use crate::snapshots::{Code, Outcome, Refusal, Snapshots};

/// What paths begin with.
const SERVICE: &str = "/containerd.services.snapshots.v1.Snapshots/";
/// Snapshots in one message of the answer to List. Thousands of them would be longer than a message may be.
const AT_A_TIME: usize = 100;

type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service, as tonic's server calls it.
#[derive(Clone)]
pub struct Service(pub Arc<Snapshots>);

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Soon<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let snapshots = Arc::clone(&self.0);
        Box::pin(async move { Ok(answer(snapshots, request).await) })
    }
}

async fn answer(all: Arc<Snapshots>, request: http::Request<Body>) -> http::Response<Body> {
    let method = request.uri().path().strip_prefix(SERVICE).unwrap_or("").to_owned();
    match method.as_str() {
        "Prepare" => {
            one(all, request, |all, new: NewSnapshot| Ok(Mounts { mounts: all.prepare(&new)? })).await
        }
        "View" => one(all, request, |all, new: NewSnapshot| Ok(Mounts { mounts: all.view(&new)? })).await,
        "Mounts" => one(all, request, |all, of: OfKey| Ok(Mounts { mounts: all.mounts(&of.key)? })).await,
        "Commit" => one(all, request, |all, commit: Commit| all.commit(&commit).map(|()| Empty {})).await,
        "Remove" => one(all, request, |all, of: OfKey| all.remove(&of.key).map(|()| Empty {})).await,
        "Stat" => one(all, request, |all, of: OfKey| Ok(OneInfo { info: Some(all.stat(&of.key)?) })).await,
        "Update" => one(all, request, update).await,
        "Usage" => one(all, request, |all, of: OfKey| Ok::<Usage, _>(all.usage(&of.key)?.told())).await,
        "Cleanup" => one(all, request, |all, _: Empty| all.cleanup().map(|()| Empty {})).await,
        "List" => Grpc::new(ProstCodec::default()).server_streaming(Listing(all), request).await,
        _ => Status::unimplemented(format!("this snapshotter has no {}", request.uri().path())).into_http(),
    }
}

fn update(all: &Snapshots, update: Update) -> Outcome<OneInfo> {
    let paths = update.mask.unwrap_or_default().paths;
    Ok(OneInfo { info: Some(all.update(&update.info.unwrap_or_default(), &paths)?) })
}

type Work<Q, A> = fn(&Snapshots, Q) -> Outcome<A>;

/// Answers one request with one message.
async fn one<Q, A>(
    all: Arc<Snapshots>,
    request: http::Request<Body>,
    work: Work<Q, A>,
) -> http::Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    Grpc::new(ProstCodec::<A, Q>::default()).unary(Call { all, work }, request).await
}

struct Call<Q, A> {
    all: Arc<Snapshots>,
    work: Work<Q, A>,
}

impl<Q: Send + 'static, A: Send + 'static> UnaryService<Q> for Call<Q, A> {
    type Response = A;
    type Future = Soon<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (all, work) = (Arc::clone(&self.all), self.work);
        Box::pin(async move { helped(move || work(&all, request.into_inner())).await.map(Response::new) })
    }
}

struct Listing(Arc<Snapshots>);

impl ServerStreamingService<List> for Listing {
    type Response = Infos;
    type ResponseStream = stream::Iter<std::vec::IntoIter<Result<Infos, Status>>>;
    type Future = Soon<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<List>) -> Self::Future {
        let all = Arc::clone(&self.0);
        Box::pin(async move {
            let infos = helped(move || all.list(&request.into_inner().filters)).await?;
            let parts: Vec<_> =
                infos.chunks(AT_A_TIME).map(|part| Ok(Infos { info: part.to_vec() })).collect();
            Ok(Response::new(stream::iter(parts)))
        })
    }
}

/// Runs an operation on a helper.
async fn helped<T: Send + 'static>(work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Status::internal("the operation failed unexpectedly"))?.map_err(Status::from)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let code = match refusal.code {
            Code::NotFound => tonic::Code::NotFound,
            Code::AlreadyExists => tonic::Code::AlreadyExists,
            Code::FailedPrecondition => tonic::Code::FailedPrecondition,
            Code::InvalidArgument => tonic::Code::InvalidArgument,
            Code::Unavailable => tonic::Code::Unavailable,
            Code::Internal => tonic::Code::Internal,
        };
        Status::new(code, refusal.message)
    }
}
