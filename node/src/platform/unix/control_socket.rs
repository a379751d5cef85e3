//! Where commands meet the node: a socket in its data folder, which only its owner may use.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{fs::PermissionsExt, net::UnixStream as BlockingStream},
    path::Path,
};

use tokio::net::{UnixListener, UnixStream};

pub use tokio::net::unix::{OwnedReadHalf as ReadHalf, OwnedWriteHalf as WriteHalf};

/// The node's end.
#[derive(Debug)]
pub struct Listener(UnixListener);

impl Listener {
    /// Opens the socket at `path` in place of one that a dead node left.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Self(listener))
    }

    /// The next caller.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn accept(&mut self) -> io::Result<(ReadHalf, WriteHalf)> {
        Ok(self.0.accept().await?.0.into_split())
    }
}

/// The caller's end.
///
/// # Errors
/// When no node listens there.
pub async fn connect(path: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    Ok(UnixStream::connect(path).await?.into_split())
}

/// Whether a node listens there.
pub fn is_open(path: &Path) -> bool {
    BlockingStream::connect(path).is_ok()
}
