//! Requests that keep coming while something else happens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use deltagate_proto::v1::{
    ClassifyRequest, ClassifyResponse, classifier_service_client::ClassifierServiceClient,
};
use tonic::{Code, Status};

use crate::calls::{channel, reason};

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was sent.
    pub sent: Instant,
    /// How long it took.
    pub took: Duration,
    /// The answer, or the code and reason of the refusal.
    pub result: Result<ClassifyResponse, (Code, String)>,
}

/// Running workers.
#[derive(Debug)]
pub struct Traffic {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    workers: Vec<tokio::task::JoinHandle<Vec<Sample>>>,
}

impl Traffic {
    /// `workers` workers, each with a connection of its own, that send one request after another, with `pause` between.
    pub fn start(
        gateway: u16,
        workers: usize,
        pause: Duration,
        request: &ClassifyRequest,
    ) -> Result<Self, Status> {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..workers {
            let mut client = ClassifierServiceClient::new(channel(gateway)?);
            let (stop, done, request) = (Arc::clone(&stop), Arc::clone(&done), request.clone());
            tasks.push(tokio::spawn(async move {
                let mut samples = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let mut call = tonic::Request::new(request.clone());
                    call.set_timeout(Duration::from_secs(20));
                    let sent = Instant::now();
                    let answer = client.classify(call).await;
                    let result = answer
                        .map(tonic::Response::into_inner)
                        .map_err(|status| (status.code(), reason(&status)));
                    samples.push(Sample {
                        sent,
                        took: sent.elapsed(),
                        result,
                    });
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(pause).await;
                }
                samples
            }));
        }
        Ok(Self {
            stop,
            done,
            workers: tasks,
        })
    }

    /// Requests that have ended so far.
    pub fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends it and gives every sample, by the time it was sent.
    pub async fn end(self) -> anyhow::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut samples = Vec::new();
        for worker in self.workers {
            samples.extend(worker.await?);
        }
        samples.sort_by_key(|s| s.sent);
        Ok(samples)
    }
}
