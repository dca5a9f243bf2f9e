//! The threads of the generator: each runs the connections that it was dealt on one small runtime.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::error::PerfError;
use super::link::Link;
use super::tally::{Clock, Tally};
use super::uri::Uri;
use super::{churn, consumer, declare, producer, rpc};

/// Connections of a thread that may be in their handshake at once: more would overrun a broker's backlog.
const OPENING_MAX: usize = 64;
/// How long a goodbye may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// What one connection does.
#[derive(Clone, Debug)]
pub enum Order {
    Produce(producer::Order),
    Consume(consumer::Order),
    Request(rpc::Requests),
    Serve(rpc::Serving),
    Declare(declare::Order),
    /// Connections in turn, so many or without end.
    ChurnConnections(Option<u64>),
    /// Channels of one connection in turn, so many or without end.
    ChannelChurn(Option<u64>),
    /// One connection that does nothing.
    Idle,
}

impl Order {
    /// Ends by itself once its count is reached, and the others have little to do without it.
    pub fn is_source(&self) -> bool {
        !matches!(self, Self::Consume(_) | Self::Serve(_))
    }

    async fn run(self, place: Place) -> Result<(), PerfError> {
        match self {
            Self::Produce(order) => producer::produce(order, place).await,
            Self::Consume(order) => consumer::consume(order, place).await,
            Self::Request(requests) => rpc::request(requests, place).await,
            Self::Serve(serving) => rpc::serve(serving, place).await,
            Self::Declare(order) => declare::declare(order, place).await,
            Self::ChurnConnections(count) => churn::connections(count, place).await,
            Self::ChannelChurn(count) => churn::channels(count, place).await,
            Self::Idle => churn::idle(place).await,
        }
    }
}

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Preparing,
    Running,
    Stopping,
}

/// What a connection tells the main thread.
#[derive(Debug)]
pub enum Event {
    /// It waits for the start.
    Ready,
    /// It has done all that it was to do, at this time.
    Done {
        is_source: bool,
        at_ns: u64,
    },
    Failed(PerfError),
}

/// Where an order is carried out: what a connection shares with the others.
#[derive(Debug)]
pub struct Place {
    pub uri: Arc<Uri>,
    pub clock: Clock,
    pub tally: Arc<Tally>,
    is_source: bool,
    phase: watch::Receiver<Phase>,
    events: mpsc::UnboundedSender<Event>,
    opening: Rc<Semaphore>,
}

impl Place {
    /// A connection, once it is its turn to be opened.
    ///
    /// # Errors
    /// See [`Link::open`].
    pub async fn open(&self) -> Result<Link, PerfError> {
        let _turn: SemaphorePermit<'_> = self.opening.acquire().await.expect("it is never closed");
        Link::open(&self.uri).await
    }

    /// Waits for the start; then all begin at once.
    pub async fn start(&self) {
        let _ = self.events.send(Event::Ready);
        // An error means that the main thread has gone.
        let _ = self.phase.clone().wait_for(|phase| *phase >= Phase::Running).await;
    }

    pub fn done(&self) {
        let _ = self.events.send(Event::Done { is_source: self.is_source, at_ns: self.clock.now_ns() });
    }

    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() == Phase::Stopping
    }

    /// Waits until the run ends.
    pub async fn stop(&self) {
        let _ = self.phase.clone().wait_for(|phase| *phase == Phase::Stopping).await;
    }

    /// Polls until it is ready or the run ends.
    ///
    /// # Errors
    /// Those of `poll`.
    pub async fn until_stop(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<(), PerfError>>,
    ) -> Result<(), PerfError> {
        tokio::select! {
            biased;
            () = self.stop() => Ok(()),
            result = poll_fn(&mut poll) => result,
        }
    }

    /// Polls until it is ready, or for so long.
    ///
    /// # Errors
    /// Those of `poll`.
    pub async fn finish(
        &self,
        patience: Duration,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<(), PerfError>>,
    ) -> Result<(), PerfError> {
        timeout(patience, poll_fn(&mut poll)).await.unwrap_or(Ok(()))
    }

    /// Says goodbye, unless the broker takes too long.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn close(&self, link: &mut Link) -> Result<(), PerfError> {
        timeout(CLOSE_PATIENCE, link.close()).await.unwrap_or(Ok(()))
    }
}

/// What the threads share.
#[derive(Clone, Debug)]
pub struct Stage {
    pub uri: Arc<Uri>,
    pub clock: Clock,
    pub phase: watch::Receiver<Phase>,
    pub events: mpsc::UnboundedSender<Event>,
}

/// Starts a thread that carries out all these orders.
///
/// # Errors
/// The operating system gives no thread.
pub fn spawn(stage: Stage, orders: Vec<Order>, tally: Arc<Tally>) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("perf".to_owned()).spawn(move || {
        let local = LocalSet::new();
        let opening = Rc::new(Semaphore::new(OPENING_MAX));
        for order in orders {
            let place = Place {
                uri: stage.uri.clone(),
                clock: stage.clock,
                tally: tally.clone(),
                is_source: order.is_source(),
                phase: stage.phase.clone(),
                events: stage.events.clone(),
                opening: opening.clone(),
            };
            let events = stage.events.clone();
            local.spawn_local(async move {
                if let Err(error) = order.run(place).await {
                    let _ = events.send(Event::Failed(error));
                }
            });
        }
        runtime.block_on(local);
    })
}
