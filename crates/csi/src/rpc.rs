//! The table of calls: the path of each method, and the function that serves it.
//!
//! This is what a generator would write from the specification's file. By hand it is one line for each
//! method, and it needs no compiler of that language. A call runs on a helper thread, because it waits for
//! disks, databases and other processes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use node::log;
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::refuse::Answer;
use crate::{Driver, Services};

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The services of a driver, as one service of the HTTP server.
#[derive(Clone)]
pub struct Calls(pub Arc<Driver>);

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let driver = self.0.clone();
        Box::pin(async move { Ok(route(driver, request).await) })
    }
}

async fn route(driver: Arc<Driver>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    let services = driver.options.services;
    match service {
        "csi.v1.Identity" => identity(driver, method, request).await,
        "csi.v1.Controller" if services != Services::Node => controller(driver, method, request).await,
        "csi.v1.Node" if services != Services::Controller => node_side(driver, method, request).await,
        _ => unknown(&path),
    }
}

fn unknown(path: &str) -> Response<Body> {
    Status::unimplemented(format!("this driver has no call {path}")).into_http()
}

async fn identity(driver: Arc<Driver>, method: &str, request: Request<Body>) -> Response<Body> {
    match method {
        "GetPluginInfo" => unary(driver, request, "GetPluginInfo", Driver::plugin_info).await,
        "GetPluginCapabilities" => {
            unary(driver, request, "GetPluginCapabilities", Driver::plugin_capabilities).await
        }
        "Probe" => unary(driver, request, "Probe", Driver::probe).await,
        other => unknown(other),
    }
}

async fn controller(driver: Arc<Driver>, method: &str, request: Request<Body>) -> Response<Body> {
    match method {
        "CreateVolume" => unary(driver, request, "CreateVolume", Driver::create_volume).await,
        "DeleteVolume" => unary(driver, request, "DeleteVolume", Driver::delete_volume).await,
        "ValidateVolumeCapabilities" => {
            unary(driver, request, "ValidateVolumeCapabilities", Driver::validate).await
        }
        "ListVolumes" => unary(driver, request, "ListVolumes", Driver::list_volumes).await,
        "ControllerGetCapabilities" => {
            unary(driver, request, "ControllerGetCapabilities", Driver::controller_capabilities).await
        }
        "ControllerExpandVolume" => {
            unary(driver, request, "ControllerExpandVolume", Driver::expand_volume).await
        }
        other => unknown(other),
    }
}

async fn node_side(driver: Arc<Driver>, method: &str, request: Request<Body>) -> Response<Body> {
    match method {
        "NodeStageVolume" => unary(driver, request, "NodeStageVolume", Driver::stage).await,
        "NodeUnstageVolume" => unary(driver, request, "NodeUnstageVolume", Driver::unstage).await,
        "NodePublishVolume" => unary(driver, request, "NodePublishVolume", Driver::publish).await,
        "NodeUnpublishVolume" => unary(driver, request, "NodeUnpublishVolume", Driver::unpublish).await,
        "NodeGetVolumeStats" => unary(driver, request, "NodeGetVolumeStats", Driver::stats).await,
        "NodeExpandVolume" => unary(driver, request, "NodeExpandVolume", Driver::node_expand).await,
        "NodeGetCapabilities" => {
            unary(driver, request, "NodeGetCapabilities", Driver::node_capabilities).await
        }
        "NodeGetInfo" => unary(driver, request, "NodeGetInfo", Driver::node_info).await,
        other => unknown(other),
    }
}

/// Decodes one message, serves it, and encodes the answer.
async fn unary<Q, A>(
    driver: Arc<Driver>,
    request: Request<Body>,
    name: &'static str,
    work: fn(&Driver, Q) -> Answer<A>,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    Grpc::new(ProstCodec::<A, Q>::default()).unary(Call { driver, name, work }, request).await
}

/// One method.
struct Call<Q, A> {
    driver: Arc<Driver>,
    name: &'static str,
    work: fn(&Driver, Q) -> Answer<A>,
}

impl<Q, A> UnaryService<Q> for Call<Q, A>
where
    Q: Send + 'static,
    A: Send + 'static,
{
    type Response = A;
    type Future = Later<Result<tonic::Response<A>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let Call { driver, name, work } = self;
        let (driver, name, work) = (driver.clone(), *name, *work);
        Box::pin(async move {
            let begun = base::time::monotonic();
            let serve = {
                let driver = driver.clone();
                move || work(&driver, request.into_inner())
            };
            // The work goes on when the caller has gone: what was begun is finished or undone.
            let ended = tokio::task::spawn_blocking(serve).await;
            let answer =
                ended.unwrap_or_else(|_| Err(Status::internal(format!("{name} failed; the log says why"))));
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            driver.metrics.count(name, code, base::time::monotonic() - begun);
            if let Err(status) = &answer {
                log::warn(&format!("{name}: {code:?}: {}", status.message()));
            }
            answer.map(tonic::Response::new)
        })
    }
}
