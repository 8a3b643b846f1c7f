//! Sockets that only root may use.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dir::{Dir, Mode, Name};
use nix::unistd::Uid;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::warn;

use crate::authority::LocalAuthority;

/// Of the directories that hold sockets.
const PRIVATE: Mode = Mode::S_IRWXU;
const SOCKET_MODE: u32 = 0o600;
/// After a failed accept (too many open files): it would fail again at once.
const PAUSE: Duration = Duration::from_millis(100);

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

/// A socket and its file; dropped, the file is gone.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    dir: Dir,
    name: Name,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(reason) = self.dir.remove_file(&self.name)
            && !reason.is_not_found()
        {
            warn!(socket = %self.path.display(), error = &reason as &dyn std::error::Error, "socket stays behind");
        }
    }
}

impl Socket {
    /// Listens at `parent/directory/name`. Makes the directory, and takes the place of a socket that an unclean end
    /// left.
    pub(crate) fn bind(parent: &Path, directory: &str, name: &str) -> Result<Self, ServeError> {
        let path = parent.join(directory).join(name);
        let named = |text| Name::try_from(text).map_err(|_| ServeError::Path { path: path.clone() });
        let (directory, name) = (named(directory)?, named(name)?);
        let dir = Dir::open(parent)
            .and_then(|parent| parent.ensure_dir(&directory, PRIVATE))
            .map_err(|source| ServeError::Directory { path: path.clone(), source })?
            .into_inner();
        match dir.remove_file(&name) {
            Err(source) if !source.is_not_found() => return Err(ServeError::Stale { path, source }),
            Ok(()) | Err(_) => {}
        }
        // bind(2) takes a path only. The directory is ours alone, so nobody sees the mode change.
        let listener = UnixListener::bind(&path).map_err(|source| ServeError::Bind { path: path.clone(), source })?;
        let file = SocketFile { path, dir, name };
        fs::set_permissions(&file.path, Permissions::from_mode(SOCKET_MODE))
            .map_err(|source| ServeError::Bind { path: file.path.clone(), source })?;
        Ok(Self { listener, file })
    }

    /// Serves until `end`, then finishes the calls that run.
    pub(crate) async fn serve(
        self,
        peer: Uid,
        routes: Routes,
        end: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let Self { listener, file } = self;
        let served = Server::builder().add_routes(routes).serve_with_incoming_shutdown(incoming(listener, peer), end);
        served.await.map_err(|source| ServeError::Transport { path: file.path.clone(), source })
    }
}

/// Connections of `peer` alone, whatever authority it names. Never ends and never fails: the server would end with it.
fn incoming(listener: UnixListener, peer: Uid) -> impl Stream<Item = Result<LocalAuthority<UnixStream>, Infallible>> {
    futures::stream::unfold(listener, move |listener| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(found) if found.uid() == peer.as_raw() => {
                        return Some((Ok(LocalAuthority::new(stream)), listener));
                    }
                    Ok(found) => warn!(uid = found.uid(), pid = found.pid(), "connection of another user refused"),
                    Err(reason) => {
                        warn!(error = &reason as &dyn std::error::Error, "connection of an unknown user refused");
                    }
                },
                Err(reason) => {
                    warn!(error = &reason as &dyn std::error::Error, "connection cannot be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}
