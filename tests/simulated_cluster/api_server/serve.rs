//! The way of a request: parsed, given its fate, carried out, answered.

use std::{io, sync::Arc, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tokio::time::{sleep, timeout};

use super::{
    Shared,
    failure::{Failure, Unserved},
    faults::{Dropped, Fate, Outcome, RequestInfo, Verb},
    reads,
    request::{self, Action, Request},
    watches,
    writes::{self, Change},
};

/// After this time the real server gives up a request, and answers that it does not know what became of it
/// (`requestTimeoutUpperBound`).
const LONGEST: Duration = Duration::from_secs(34);

type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Answer = Result<Reply, tower::BoxError>;

/// Serves one request of the client with this name.
pub(super) async fn serve(shared: Arc<Shared>, client: Arc<str>, request: http::Request<Body>) -> Answer {
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if !shared.running.load(Ordering::Relaxed) {
        return Err(refused());
    }
    let request = match request::parse(&parts, &body, &client, number) {
        Ok(request) => request,
        Err(Unserved::Failed(failure)) => return Ok(failed(&failure)),
        Err(Unserved::Unsupported) => {
            let described = request::described(&parts);
            shared.unsupported.lock().push(format!("{client}: {described}"));
            return Ok(failed(&Failure::unsupported(&described)));
        }
    };
    let fate = shared.fates.lock().fate(&request.info);
    if fate.dropped == Dropped::CarriedOut {
        let task = tokio::spawn(until_stopped(shared, request, fate));
        return task.await?;
    }
    until_stopped(shared, request, fate).await
}

async fn until_stopped(shared: Arc<Shared>, request: Request, fate: Fate) -> Answer {
    tokio::select! {
        biased;
        () = shared.stopping.notified() => Err(lost()),
        answer = meet(&shared, request, fate) => answer,
    }
}

/// Lets the request meet its fate.
async fn meet(shared: &Arc<Shared>, request: Request, fate: Fate) -> Answer {
    wait(fate.before).await;
    let answer = match fate.outcome {
        Outcome::Refused => return Err(refused()),
        Outcome::Failed(refusal) => Ok(failed(&refusal.failure())),
        Outcome::Hung => std::future::pending().await,
        Outcome::Served => Ok(carry_out(shared, request).await),
        Outcome::FailedAfterwards(refusal) => {
            drop(carry_out(shared, request).await);
            Ok(failed(&refusal.failure()))
        }
        Outcome::AnswerLost => {
            drop(carry_out(shared, request).await);
            Err(lost())
        }
        Outcome::HungAfterwards => {
            drop(carry_out(shared, request).await);
            std::future::pending().await
        }
        Outcome::SentAgain(later) => {
            drop(carry_out(shared, request.clone()).await);
            wait(later).await;
            Ok(carry_out(shared, request).await)
        }
        Outcome::ArrivesAgain(later) => {
            let answer = carry_out(shared, request.clone()).await;
            arrives_again(shared.clone(), request, later);
            Ok(answer)
        }
    };
    wait(fate.after).await;
    answer
}

/// Lets a request arrive once more, unless the server stops before.
fn arrives_again(shared: Arc<Shared>, request: Request, later: Duration) {
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = shared.stopping.notified() => {}
            () = async { wait(later).await; drop(carry_out(&shared, request).await) } => {}
        }
    });
}

async fn wait(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

async fn carry_out(shared: &Arc<Shared>, request: Request) -> Reply {
    let Request { info, action } = request;
    if let Action::Watch(watch) = action {
        return match watches::watch(shared, &info, watch) {
            Ok(events) => Response::new(StreamBody::new(events).boxed_unsync()),
            Err(error) => answered(StatusCode::OK, error),
        };
    }
    let is_new = info.verb == Verb::Create;
    match timeout(LONGEST, perform(shared, &info, action)).await {
        Ok(Ok(text)) => answered(if is_new { StatusCode::CREATED } else { StatusCode::OK }, text),
        Ok(Err(failure)) => failed(&failure),
        Err(_) => failed(&Failure::timeout()),
    }
}

async fn perform(shared: &Arc<Shared>, info: &RequestInfo, action: Action) -> Result<Bytes, Failure> {
    match action {
        Action::Get { view, freshness } => reads::get(shared, info, view, freshness),
        Action::List(list) => reads::list(shared, info, &list).await,
        Action::Create(value) => writes::create(shared, info, value).await,
        Action::Update(value) => writes::change(shared, info, Change::Update(value)).await,
        Action::Patch(patch) => writes::change(shared, info, Change::Patch(patch)).await,
        Action::Delete(options) => writes::delete(shared, info, &options).await,
        Action::Watch(_) => unreachable!("watches have been started before"),
    }
}

fn answered(code: StatusCode, text: Bytes) -> Reply {
    let mut response = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = code;
    response
}

fn failed(failure: &Failure) -> Reply {
    let code = StatusCode::from_u16(failure.code).expect("the code of a failure is one of HTTP");
    answered(code, failure.text().into())
}

fn refused() -> tower::BoxError {
    io::Error::from(io::ErrorKind::ConnectionRefused).into()
}

fn lost() -> tower::BoxError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}
