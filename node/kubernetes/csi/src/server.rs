//! Unix sockets that serve one user.

use std::convert::Infallible;
use std::error::Error;
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

use crate::connection::{Connection, Shutdown};
use crate::localhost::LocalhostStream;

/// Mode of directories with sockets.
const PRIVATE: Mode = Mode::S_IRWXU;
const SOCKET_MODE: u32 = 0o600;
/// Delay after a failed accept, for example with too many open files: a retry at once would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Concurrent connections. The kubelet opens one per call.
pub(crate) const CONNECTIONS: usize = 64;
/// Concurrent calls of a connection. Further calls wait.
const CALLS: u32 = 64;
/// Interval and timeout of pings to idle clients.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Largest message that the plugin accepts, in bytes. CSI's fields are paths and names. tonic rejects a longer one with
/// `OUT_OF_RANGE`. Its own limit is 4 MiB.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} socket {}", path.display())]
pub struct ServeError {
    action: &'static str,
    path: PathBuf,
    source: Box<dyn Error + Send + Sync>,
}

impl ServeError {
    fn new<E: Into<Box<dyn Error + Send + Sync>>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self { action, path: path.to_owned(), source: source.into() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// An existing directory.
    pub(crate) parent: PathBuf,
    /// Directory of the socket in `parent`, created if missing.
    pub(crate) directory: &'static str,
    pub(crate) name: String,
    /// The only user that may connect.
    pub(crate) peer: Uid,
    /// Interval of the check that the socket file exists.
    pub(crate) look: Duration,
    /// Time for running calls at shutdown.
    pub(crate) grace: Duration,
}

/// A socket and its file, which is removed on drop.
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
    /// File system and inode after the bind.
    id: Option<(u64, u64)>,
}

impl SocketFile {
    fn is_in_place(&self) -> bool {
        self.id.is_some() && file_id(&self.path) == self.id
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced the socket.
        if self.is_in_place()
            && let Err(reason) = self.dir.remove_file(&self.name)
            && !reason.is_not_found()
        {
            warn!(socket = %self.path.display(), error = &reason as &dyn std::error::Error, "cannot remove socket");
        }
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl Socket {
    /// Creates the directory if missing, and replaces the socket of a process that was killed.
    pub(crate) async fn bind(address: Address) -> Result<Self, ServeError> {
        let path = address.path();
        let created = spawn_blocking(move || Self::create(address)).await;
        created.map_err(ServeError::new("create", &path))?
    }

    fn create(address: Address) -> Result<Self, ServeError> {
        let path = address.path();
        let named = |text| Name::try_from(text).map_err(ServeError::new("name", &path));
        let (directory, name) = (named(address.directory)?, named(&address.name)?);
        let dir = Dir::open(&address.parent)
            .and_then(|parent| parent.ensure_dir(&directory, PRIVATE))
            .map_err(ServeError::new("open the directory of", &path))?
            .into_inner();
        match dir.remove_file(&name) {
            Err(error) if !error.is_not_found() => return Err(ServeError::new("remove the old", &path)(error)),
            Ok(()) | Err(_) => {}
        }
        // bind(2) accepts only a path. The directory has mode 0700, so no other user connects before the chmod.
        let listener = UnixListener::bind(&path).map_err(ServeError::new("create", &path))?;
        let id = file_id(&path);
        let file = SocketFile { path, dir, name, id };
        fs::set_permissions(&file.path, Permissions::from_mode(SOCKET_MODE))
            .map_err(ServeError::new("set the mode of", &file.path))?;
        Ok(Self { listener, file, address })
    }

    /// Serves until `end`, then completes running calls within the grace period. Creates the socket again on `again`
    /// and when its file is missing, and then calls `created`. Accepted connections continue.
    pub(crate) async fn serve(
        self,
        routes: Routes,
        again: Arc<Notify>,
        created: impl Fn() + Send,
        end: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let (path, grace, shutdown) = (self.file.path.clone(), self.address.grace, Shutdown::default());
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(routes);
        let stop = async {
            end.await;
            shutdown.stopping.cancel();
        };
        let incoming = incoming(Incoming { socket: self, again, shutdown: shutdown.clone() }, created);
        let served = server.serve_with_incoming_shutdown(incoming, stop);
        let cut = async {
            shutdown.stopping.cancelled().await;
            sleep(grace).await;
            shutdown.cut.cancel();
            pending::<()>().await;
        };
        tokio::select! {
            served = served => served.map_err(ServeError::new("serve", &path)),
            () = cut => Ok(()),
        }
    }
}

impl Address {
    pub(crate) fn path(&self) -> PathBuf {
        self.parent.join(self.directory).join(&self.name)
    }
}

struct Incoming {
    socket: Socket,
    again: Arc<Notify>,
    shutdown: Shutdown,
}

/// Connections of the allowed user. The stream never ends and never fails, because the server would end with it.
fn incoming(
    incoming: Incoming,
    created: impl Fn(),
) -> impl Stream<Item = Result<Connection<LocalhostStream<UnixStream>>, Infallible>> {
    let mut looks = interval(incoming.socket.address.look);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    futures::stream::unfold(
        (incoming, looks, places, created),
        move |(mut incoming, mut looks, places, created)| async move {
            loop {
                let Incoming { socket, again, shutdown } = &mut incoming;
                let accept = async {
                    let place = Arc::clone(&places).acquire_owned().await;
                    (socket.listener.accept().await, place)
                };
                let lost = tokio::select! {
                    (accepted, place) = accept => {
                        if let Some(stream) = admit(accepted, socket.address.peer).await
                            && let Ok::<_, AcquireError>(place) = place
                        {
                            let connection = Connection::new(LocalhostStream::new(stream), shutdown, place);
                            return Some((Ok(connection), (incoming, looks, places, created)));
                        }
                        continue;
                    }
                    () = again.notified() => true,
                    _ = looks.tick() => {
                        let lost = !socket.file.is_in_place();
                        if lost {
                            info!(socket = %socket.file.path.display(), "socket file is missing, creating the socket again");
                        }
                        lost
                    }
                };
                if lost {
                    match Socket::bind(socket.address.clone()).await {
                        Ok(new) => {
                            *socket = new;
                            created();
                        }
                        // The next check tries again.
                        Err(reason) => {
                            warn!(error = &reason as &dyn std::error::Error, "cannot create the socket again");
                        }
                    }
                }
            }
        },
    )
}

async fn admit(accepted: io::Result<(UnixStream, tokio::net::unix::SocketAddr)>, peer: Uid) -> Option<UnixStream> {
    match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?, stream))) {
        Ok((found, stream)) if found.uid() == peer.as_raw() => return Some(stream),
        Ok((found, _)) => warn!(uid = found.uid(), pid = found.pid(), "connection of another user rejected"),
        Err(reason) => {
            warn!(error = &reason as &dyn std::error::Error, "cannot accept a connection");
            sleep(ACCEPT_PAUSE).await;
        }
    }
    None
}
