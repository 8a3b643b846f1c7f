//! Sockets that only root may use.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::future::{Future, pending};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dir::{Dir, Mode, Name};
use nix::unistd::Uid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{AcquireError, Notify, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{info, warn};

use crate::authority::LocalAuthority;
use crate::connection::{Connection, Ends};

/// Of the directories that hold sockets.
const PRIVATE: Mode = Mode::S_IRWXU;
const SOCKET_MODE: u32 = 0o600;
/// After a failed accept (too many open files): it would fail again at once.
const PAUSE: Duration = Duration::from_millis(100);
/// At a time. kubelet makes one for each call and closes it.
const CONNECTIONS: usize = 64;
/// Calls at a time on one connection. More wait.
const CALLS: u32 = 64;
/// Whether a client is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The largest message that is read. CSI's fields are paths and names.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// A socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory of the socket cannot be made or opened.
    #[error("cannot prepare the directory of socket {}", path.display())]
    Directory {
        /// The socket.
        path: PathBuf,
        /// What failed.
        #[source]
        source: dir::Error,
    },
    /// The socket's path holds no file names.
    #[error("{} is no path of a socket", path.display())]
    Path {
        /// The socket.
        path: PathBuf,
    },
    /// An old socket stays in the way.
    #[error("cannot remove the old socket {}", path.display())]
    Stale {
        /// The socket.
        path: PathBuf,
        /// What failed.
        #[source]
        source: dir::Error,
    },
    /// The socket cannot be made.
    #[error("cannot make socket {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The thread that makes it panicked.
    #[error("making socket {} ended early", path.display())]
    Panicked {
        /// The socket.
        path: PathBuf,
        /// What failed.
        #[source]
        source: tokio::task::JoinError,
    },
    /// Serving ended.
    #[error("serving on socket {} failed", path.display())]
    Transport {
        /// The socket.
        path: PathBuf,
        /// What failed.
        #[source]
        source: tonic::transport::Error,
    },
}

/// Where a socket is, and who may use it.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// An existing directory.
    pub(crate) parent: PathBuf,
    /// The directory in it that holds the socket. It is made.
    pub(crate) directory: &'static str,
    /// Of the socket.
    pub(crate) name: String,
    /// The only user that may connect.
    pub(crate) peer: Uid,
    /// How often it is looked whether the socket is still in its place.
    pub(crate) look: Duration,
    /// How long a stop waits for calls that run.
    pub(crate) grace: Duration,
}

/// A socket and its file; dropped, the file is gone.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    file: SocketFile,
    address: Address,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    dir: Dir,
    name: Name,
    /// File system and inode, if it was there after it was made.
    made: Option<(u64, u64)>,
}

impl SocketFile {
    /// Whether the path still leads to it.
    fn is_in_place(&self) -> bool {
        self.made.is_some() && found(&self.path) == self.made
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another one may have taken its place.
        if self.is_in_place()
            && let Err(reason) = self.dir.remove_file(&self.name)
            && !reason.is_not_found()
        {
            warn!(socket = %self.path.display(), error = &reason as &dyn std::error::Error, "socket stays behind");
        }
    }
}

fn found(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Socket {
    /// Listens. Makes the directory, and takes the place of a socket that an unclean end left.
    pub(crate) async fn bind(address: Address) -> Result<Self, ServeError> {
        let path = address.path();
        let made = spawn_blocking(move || Self::make(address)).await;
        made.map_err(|source| ServeError::Panicked { path, source })?
    }

    fn make(address: Address) -> Result<Self, ServeError> {
        let path = address.path();
        let named = |text| Name::try_from(text).map_err(|_| ServeError::Path { path: path.clone() });
        let (directory, name) = (named(address.directory)?, named(&address.name)?);
        let dir = Dir::open(&address.parent)
            .and_then(|parent| parent.ensure_dir(&directory, PRIVATE))
            .map_err(|source| ServeError::Directory { path: path.clone(), source })?
            .into_inner();
        match dir.remove_file(&name) {
            Err(source) if !source.is_not_found() => return Err(ServeError::Stale { path, source }),
            Ok(()) | Err(_) => {}
        }
        // bind(2) takes a path only. The directory is ours alone, so nobody sees the mode change.
        let listener = UnixListener::bind(&path).map_err(|source| ServeError::Bind { path: path.clone(), source })?;
        let made = found(&path);
        let file = SocketFile { path, dir, name, made };
        fs::set_permissions(&file.path, Permissions::from_mode(SOCKET_MODE))
            .map_err(|source| ServeError::Bind { path: file.path.clone(), source })?;
        Ok(Self { listener, file, address })
    }

    /// Serves until `end`, then finishes the calls that run, as long as there is time for that.
    ///
    /// The socket is made anew whenever `anew` says so, and when it is not in its place any more; `made` hears of it.
    /// Connections that were accepted before go on.
    pub(crate) async fn serve(
        self,
        routes: Routes,
        anew: Arc<Notify>,
        made: impl Fn() + Send,
        end: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let (path, grace, ends) = (self.file.path.clone(), self.address.grace, Ends::default());
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(routes);
        let stop = async {
            end.await;
            ends.stopping.cancel();
        };
        let incoming = incoming(Arrivals { socket: self, anew, ends: ends.clone() }, made);
        let served = server.serve_with_incoming_shutdown(incoming, stop);
        let cut = async {
            ends.stopping.cancelled().await;
            sleep(grace).await;
            ends.cut.cancel();
            pending::<()>().await;
        };
        tokio::select! {
            served = served => served.map_err(|source| ServeError::Transport { path, source }),
            () = cut => Ok(()),
        }
    }
}

impl Address {
    pub(crate) fn path(&self) -> PathBuf {
        self.parent.join(self.directory).join(&self.name)
    }
}

struct Arrivals {
    socket: Socket,
    anew: Arc<Notify>,
    ends: Ends,
}

/// Connections of the allowed user alone, whatever authority it names. Never ends and never fails: the server would end
/// with it.
fn incoming(
    arrivals: Arrivals,
    made: impl Fn(),
) -> impl Stream<Item = Result<Connection<LocalAuthority<UnixStream>>, Infallible>> {
    let mut looks = interval(arrivals.socket.address.look);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    futures::stream::unfold(
        (arrivals, looks, places, made),
        move |(mut arrivals, mut looks, places, made)| async move {
            loop {
                let Arrivals { socket, anew, ends } = &mut arrivals;
                let accept = async {
                    let place = Arc::clone(&places).acquire_owned().await;
                    (socket.listener.accept().await, place)
                };
                let lost = tokio::select! {
                    (accepted, place) = accept => {
                        if let Some(stream) = admit(accepted, socket.address.peer).await
                            && let Ok::<_, AcquireError>(place) = place
                        {
                            let connection = Connection::new(LocalAuthority::new(stream), ends, place);
                            return Some((Ok(connection), (arrivals, looks, places, made)));
                        }
                        continue;
                    }
                    () = anew.notified() => true,
                    _ = looks.tick() => {
                        let lost = !socket.file.is_in_place();
                        if lost {
                            info!(socket = %socket.file.path.display(), "socket is gone, it is made anew");
                        }
                        lost
                    }
                };
                if lost {
                    match Socket::bind(socket.address.clone()).await {
                        Ok(new) => {
                            *socket = new;
                            made();
                        }
                        // The next look finds it missing still.
                        Err(reason) => {
                            warn!(error = &reason as &dyn std::error::Error, "socket cannot be made anew");
                        }
                    }
                }
            }
        },
    )
}

/// A connection of the allowed user.
async fn admit(accepted: io::Result<(UnixStream, tokio::net::unix::SocketAddr)>, peer: Uid) -> Option<UnixStream> {
    match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?, stream))) {
        Ok((found, stream)) if found.uid() == peer.as_raw() => return Some(stream),
        Ok((found, _)) => warn!(uid = found.uid(), pid = found.pid(), "connection of another user refused"),
        Err(reason) => {
            warn!(error = &reason as &dyn std::error::Error, "connection cannot be accepted");
            sleep(PAUSE).await;
        }
    }
    None
}
