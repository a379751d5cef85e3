//! A process and its child, joined by TCP on loopback.
//!
//! ```text
//! standard input of the child: port u16 | secret, 32 bytes        the child's first bytes over TCP: the secret
//! ```
//!
//! Numbers are little endian. Another process of this machine that connects first does not know the secret and is let go.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener},
    os::windows::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use std::net::TcpStream as BlockingStream;
pub use tokio::net::{
    TcpStream as Stream,
    tcp::{OwnedReadHalf as ReadHalf, OwnedWriteHalf as WriteHalf},
};

/// Bytes of the secret.
const SECRET: usize = 32;
/// The child has this long to connect.
const PATIENCE: Duration = Duration::from_secs(20);
/// What connects has this long to say the secret.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// How often it is looked whether something connects.
const LOOK: Duration = Duration::from_millis(1);
/// `CREATE_NEW_PROCESS_GROUP` of the system: Ctrl-C at a terminal is not for the child.
const NEW_PROCESS_GROUP: u32 = 0x200;
/// `BELOW_NORMAL_PRIORITY_CLASS` of the system: other programs go first.
const GIVES_WAY: u32 = 0x4000;
/// Variables of the environment without which the system gives no sockets, and no folder for temporary files.
const NEEDED: &[&str] = &["SystemRoot", "TEMP", "USERPROFILE"];

/// Starts `command`, which is told where the stream is. Ctrl-C at a terminal is not for it; it `gives_way` to other programs.
///
/// # Errors
/// Those of the system; a child that ends or does not connect.
pub fn spawn(mut command: Command, gives_way: bool) -> io::Result<(Child, BlockingStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let mut secret = [0; SECRET];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let rank = if gives_way { GIVES_WAY } else { 0 };
    command.stdin(Stdio::piped()).creation_flags(NEW_PROCESS_GROUP | rank);
    for name in NEEDED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let mut child = command.spawn()?;
    let port = listener.local_addr()?.port();
    let told = [port.to_le_bytes().as_slice(), &secret].concat();
    let met = match child.stdin.take() {
        Some(mut input) => input.write_all(&told).and_then(|()| accept(&listener, &secret, &mut child)),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    if met.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    met.map(|stream| (child, stream))
}

/// Waits for the child.
fn accept(listener: &TcpListener, secret: &[u8; SECRET], child: &mut Child) -> io::Result<BlockingStream> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Ok(stream) = shake(stream, secret) {
                    return Ok(stream);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if child.try_wait()?.is_some() {
                    return Err(io::Error::other("the process ended before it connected"));
                }
                thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn shake(mut stream: BlockingStream, secret: &[u8; SECRET]) -> io::Result<BlockingStream> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HANDSHAKE))?;
    let mut said = [0; SECRET];
    stream.read_exact(&mut said)?;
    // Hashes are compared in constant time.
    if blake3::hash(&said) != blake3::hash(secret) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(None)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The child's end; `None` when standard input does not say where it is.
///
/// # Errors
/// Those of the system.
pub fn to_parent() -> io::Result<Option<BlockingStream>> {
    if io::IsTerminal::is_terminal(&io::stdin()) {
        return Ok(None);
    }
    let mut told = [0; 2 + SECRET];
    if io::stdin().read_exact(&mut told).is_err() {
        return Ok(None);
    }
    let mut stream = BlockingStream::connect((Ipv4Addr::LOCALHOST, u16::from_le_bytes([told[0], told[1]])))?;
    stream.set_nodelay(true)?;
    stream.write_all(&told[2..])?;
    Ok(Some(stream))
}
