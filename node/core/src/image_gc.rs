//! Removes unused images when containerd's part of the data disk is nearly full.
//!
//! An XFS project limits this part. The kubelet reads the size of the whole file system (`statfs` of the mount),
//! would therefore reach its own thresholds too late, and has them disabled; it removes only images that were unused
//! for a week. This service uses the quota of the part, and removes images through the Container Runtime Interface, the
//! least recently used one first. Pinned images, which are those of the node image, stay.

mod metrics;
mod plan;
mod runtime;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fsquota::{GetError, Quota};
use supervisor::Context;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

pub(crate) use self::metrics::Metrics;
use self::plan::{Fill, HIGH, History, Phase, Step, plan};
use self::runtime::Runtime;
use crate::error::StepError;

/// Interval between two reads of the quota, which are one system call each. The kernel does not notify of usage below a
/// hard limit. A pull that does not fit fills the part only for a few seconds, until containerd has removed its data;
/// the kubelet repeats the pull later. Between two removals, XFS frees the blocks of removed files in the background.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two lists of images and containers, which record the images in use.
const LISTING: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
struct Progress {
    phase: Phase,
    listed: Option<Instant>,
}

#[derive(Debug)]
pub struct ImageGc {
    /// containerd's directory in the project that limits images and writable layers.
    directory: PathBuf,
    socket: PathBuf,
    metrics: Metrics,
    /// Survives restarts of the service.
    history: Mutex<History>,
}

impl ImageGc {
    pub fn new(directory: PathBuf, socket: PathBuf, metrics: Metrics) -> Self {
        Self { directory, socket, metrics, history: Mutex::default() }
    }

    /// Healthy after the first pass. Done if the directory has no limits.
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), StepError> {
        let mut runtime = Runtime::at(&self.socket)?;
        let mut progress = Progress { phase: Phase::Idle, listed: None };
        loop {
            let round = cx.round(self.round(&mut runtime, progress), Result::is_ok);
            let next = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                next = round => next?,
            };
            let Some(next) = next else {
                info!(path = %self.directory.display(), "no limit for images, the kubelet alone removes unused ones");
                cx.done();
                return Ok(());
            };
            progress = next;
            cx.healthy();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(INTERVAL) => {}
            }
        }
    }

    async fn round(&self, runtime: &mut Runtime, progress: Progress) -> Result<Option<Progress>, StepError> {
        let Some(quota) = self.quota().await? else { return Ok(None) };
        self.metrics.set(&quota);
        let Progress { phase, listed } = progress;
        let (fill, now) = (Fill::of(&quota), Instant::now());
        let is_due = match phase {
            Phase::Removing => true,
            Phase::Idle if fill >= HIGH => true,
            Phase::Idle | Phase::Exhausted => listed.is_none_or(|listed| now.duration_since(listed) >= LISTING),
        };
        if !is_due {
            return Ok(Some(progress));
        }
        Ok(Some(Progress { phase: self.pass(runtime, fill, phase, now).await?, listed: Some(now) }))
    }

    /// `None` if the directory has no project: an earlier release filled it without limits.
    async fn quota(&self) -> Result<Option<Quota>, StepError> {
        let path = self.directory.clone();
        let read = spawn_blocking(move || {
            let shown = path.display();
            let opened = File::open(&path);
            let directory = opened.map_err(StepError::of(format!("cannot open containerd's directory {shown}")))?;
            match fsquota::get(&directory) {
                Err(GetError::NotFound) => Ok(None),
                quota => quota.map(Some).map_err(StepError::of(format!("cannot read the quota of {shown}"))),
            }
        });
        match read.await {
            Ok(read) => read,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and drops this future.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Removes at most one image. Lists the images even if none has to be removed, to record the images in use.
    async fn pass(&self, runtime: &mut Runtime, fill: Fill, phase: Phase, now: Instant) -> Result<Phase, StepError> {
        let images = runtime.images().await?;
        let step = {
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            history.record(&images, now);
            let step = plan(fill, phase, &images, &history, now);
            if let Step::Remove(image) = step {
                history.tried(image, now);
            }
            step
        };
        Ok(match step {
            Step::Enough => Phase::Idle,
            Step::Wait => Phase::Removing,
            Step::Remove(image) => {
                runtime.remove(image).await?;
                self.metrics.removed();
                info!(image = image.name, %fill, "unused image removed");
                Phase::Removing
            }
            Step::Exhausted => {
                if phase != Phase::Exhausted {
                    warn!(
                        %fill,
                        "images and writable layers fill their part of the data disk, and no image is unused; \
                         remove pods, or enlarge the disk"
                    );
                }
                Phase::Exhausted
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::cri::image_service_server::{ImageService, ImageServiceServer};
    use proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
    use proto::cri::{
        Container, Image, ListContainersRequest, ListContainersResponse, ListImagesRequest, ListImagesResponse,
        RemoveImageRequest, RemoveImageResponse,
    };
    use tokio::net::UnixListener;
    use tokio::task::JoinSet;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::image_gc::plan::LEAST_AGE;

    /// A container runtime with these images, one of them pinned, and a container that uses one of them.
    #[derive(Clone, Debug)]
    struct Fake(Arc<Mutex<Vec<&'static str>>>);

    #[tonic::async_trait]
    impl ImageService for Fake {
        async fn list_images(&self, _: Request<ListImagesRequest>) -> Result<Response<ListImagesResponse>, Status> {
            let image = |id: &&str| Image { id: (*id).to_owned(), pinned: *id == "pinned", ..Image::default() };
            let images = self.0.lock().unwrap().iter().map(image).collect();
            Ok(Response::new(ListImagesResponse { images }))
        }

        async fn remove_image(
            &self,
            request: Request<RemoveImageRequest>,
        ) -> Result<Response<RemoveImageResponse>, Status> {
            let id = request.into_inner().image.unwrap().image;
            if id == "held" {
                return Err(Status::internal("cannot be removed"));
            }
            self.0.lock().unwrap().retain(|image| *image != id);
            Ok(Response::new(RemoveImageResponse {}))
        }
    }

    #[tonic::async_trait]
    impl RuntimeService for Fake {
        async fn list_containers(
            &self,
            _: Request<ListContainersRequest>,
        ) -> Result<Response<ListContainersResponse>, Status> {
            let container = Container { id: "c".to_owned(), image_id: "used".to_owned() };
            Ok(Response::new(ListContainersResponse { containers: vec![container] }))
        }
    }

    /// The server stops when the returned set is dropped.
    fn serve(fake: &Fake, socket: &Path) -> JoinSet<Result<(), tonic::transport::Error>> {
        let server = Server::builder()
            .add_service(ImageServiceServer::new(fake.clone()))
            .add_service(RuntimeServiceServer::new(fake.clone()))
            .serve_with_incoming(UnixListenerStream::new(UnixListener::bind(socket).unwrap()));
        let mut tasks = JoinSet::new();
        tasks.spawn(server);
        tasks
    }

    #[tokio::test]
    async fn unused_images_are_removed_until_the_part_has_space() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("containerd.sock");
        let fake = Fake(Arc::new(Mutex::new(vec!["a", "b", "pinned", "used"])));
        let _tasks = serve(&fake, &socket);
        let mut runtime = Runtime::at(&socket).unwrap();
        let gc = ImageGc::new(PathBuf::new(), socket, Metrics::new().unwrap());
        let start = Instant::now();
        let mut phase = Phase::Idle;
        for (fill, seconds, next, left) in [
            (99, 0, Phase::Removing, &["a", "b", "pinned", "used"][..]),
            (84, LEAST_AGE.as_secs(), Phase::Removing, &["b", "pinned", "used"]),
            (80, LEAST_AGE.as_secs(), Phase::Idle, &["b", "pinned", "used"]),
            (85, LEAST_AGE.as_secs(), Phase::Removing, &["pinned", "used"]),
            (81, LEAST_AGE.as_secs(), Phase::Exhausted, &["pinned", "used"]),
        ] {
            let now = start + Duration::from_secs(seconds);
            phase = gc.pass(&mut runtime, Fill(fill), phase, now).await.unwrap();
            assert_eq!((phase, &**fake.0.lock().unwrap()), (next, left), "{fill} % full");
        }
        assert_eq!(gc.metrics.total(), 2);
    }

    /// Regression: the service tried no other image.
    #[tokio::test]
    async fn an_image_that_cannot_be_removed_does_not_keep_the_others() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("containerd.sock");
        let fake = Fake(Arc::new(Mutex::new(vec!["held", "other"])));
        let _tasks = serve(&fake, &socket);
        let mut runtime = Runtime::at(&socket).unwrap();
        let gc = ImageGc::new(PathBuf::new(), socket, Metrics::new().unwrap());
        let start = Instant::now();
        gc.pass(&mut runtime, Fill(99), Phase::Idle, start).await.unwrap();
        let later = start + LEAST_AGE;
        let error = gc.pass(&mut runtime, Fill(99), Phase::Idle, later).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot remove the image held from containerd, will try the others first");
        gc.pass(&mut runtime, Fill(99), Phase::Idle, later).await.unwrap();
        assert_eq!(**fake.0.lock().unwrap(), ["held"]);
    }

    #[tokio::test]
    async fn a_runtime_without_an_answer_is_an_error() {
        let mut runtime = Runtime::at("/nonexistent/containerd.sock".as_ref()).unwrap();
        let error = runtime.images().await.unwrap_err();
        assert_eq!(error.to_string(), "cannot list the images in containerd");
    }
}
