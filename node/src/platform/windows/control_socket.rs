//! Where commands meet the node: a named pipe, whose name is in a file in the node's data folder.
//!
//! The name is drawn at each start. Who cannot read the folder does not learn it before the node has the pipe, and may not write
//! to it afterwards: the system lets only the owner, administrators and itself do so.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
    time::Duration,
};

use tokio::{
    io::split,
    net::windows::named_pipe::{ClientOptions, NamedPipeClient, NamedPipeServer, ServerOptions},
    time::sleep,
};

/// `ERROR_PIPE_BUSY` of the system: all ends are taken, and the node makes the next one.
const BUSY: i32 = 231;
/// How often a busy pipe is tried, and how long after each time.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of the name that are drawn.
const DRAWN: usize = 16;

/// What is read from the other side.
pub type ReadHalf = Box<dyn tokio::io::AsyncRead + Send + Unpin>;
/// What is written to it.
pub type WriteHalf = Box<dyn tokio::io::AsyncWrite + Send + Unpin>;

/// The node's end.
#[derive(Debug)]
pub struct Listener {
    name: String,
    next: NamedPipeServer,
}

impl Listener {
    /// Opens a pipe and writes its name to `path`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let mut drawn = [0; DRAWN];
        getrandom::fill(&mut drawn).map_err(io::Error::other)?;
        let name = format!(r"\\.\pipe\shoal-{}", data_encoding::HEXLOWER.encode(&drawn));
        let next = ServerOptions::new().first_pipe_instance(true).create(&name)?;
        p2p::blob::sparse::replace(path, &[name.as_bytes()]).map_err(io::Error::other)?;
        Ok(Self { name, next })
    }

    /// The next caller.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn accept(&mut self) -> io::Result<(ReadHalf, WriteHalf)> {
        self.next.connect().await?;
        let next = ServerOptions::new().create(&self.name)?;
        let (read, write) = split(std::mem::replace(&mut self.next, next));
        Ok((Box::new(read), Box::new(write)))
    }
}

/// The caller's end.
///
/// # Errors
/// When no node listens there.
pub async fn connect(path: &Path) -> io::Result<(ReadHalf, WriteHalf)> {
    let name = fs::read_to_string(path)?;
    let (read, write) = split(open(&name).await?);
    Ok((Box::new(read), Box::new(write)))
}

async fn open(name: &str) -> io::Result<NamedPipeClient> {
    for _ in 0..TRIES {
        match ClientOptions::new().open(name) {
            Err(error) if error.raw_os_error() == Some(BUSY) => sleep(PAUSE).await,
            done => return done,
        }
    }
    ClientOptions::new().open(name)
}

/// Whether a node listens there.
pub fn is_open(path: &Path) -> bool {
    let Ok(name) = fs::read_to_string(path) else { return false };
    match OpenOptions::new().read(true).write(true).open(name) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(BUSY),
    }
}
