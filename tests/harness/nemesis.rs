//! What happens to nodes: signals, slowness, and wires that carry one way only.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Sends a signal, by its name with a dash: `-KILL`, `-STOP`, `-CONT`, `-INT`.
pub fn signal(name: &str, pid: u64) {
    let sent = Command::new("kill").arg(name).arg(pid.to_string()).status().unwrap();
    assert!(sent.success(), "{name} {pid}");
}

/// A process that runs a share of the time only, until this is dropped.
pub struct Slowed {
    over: Arc<AtomicBool>,
    pid: u64,
    clock: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Lets `pid` run for `runs` and stand still for `stands`, in turns.
    pub fn new(pid: u64, runs: Duration, stands: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let clock = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                signal("-STOP", pid);
                thread::sleep(stands);
                signal("-CONT", pid);
                thread::sleep(runs);
            }
        });
        Self { over, pid, clock: Some(clock) }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(clock) = self.clock.take() {
            let _ = clock.join();
        }
        let _ = Command::new("kill").arg("-CONT").arg(self.pid.to_string()).status();
    }
}

/// A wire: TCP connections to it are carried to a target, each direction as long as it is not cut. What a cut direction is
/// given vanishes, while the connection stays open: neither end is told.
pub struct Wire {
    /// Where to connect instead of the target.
    pub port: u16,
    to_target: Arc<AtomicBool>,
    from_target: Arc<AtomicBool>,
}

impl Wire {
    /// A wire to a port of this host. It is there until the tests end.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let wire = Self { port, to_target: Arc::default(), from_target: Arc::default() };
        let (there, back) = (Arc::clone(&wire.to_target), Arc::clone(&wire.from_target));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ends = near.try_clone().and_then(|near| Ok((near, far.try_clone()?)));
                let Ok((near_again, far_again)) = ends else { continue };
                let (there, back) = (Arc::clone(&there), Arc::clone(&back));
                thread::spawn(move || carry(near, far, &there));
                thread::spawn(move || carry(far_again, near_again, &back));
            }
        });
        wire
    }

    /// Cuts a direction: what is sent to the target, or what the target sends.
    pub fn cut(&self, to_target: bool) {
        let direction = if to_target { &self.to_target } else { &self.from_target };
        direction.store(true, Ordering::SeqCst);
    }

    /// Carries both ways again. What vanished is gone: connections that were cut are of no use any more.
    pub fn mend(&self) {
        self.to_target.store(false, Ordering::SeqCst);
        self.from_target.store(false, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 16 << 10];
    let mut lost = false;
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        lost |= cut.load(Ordering::SeqCst);
        // A stream with a hole in it carries nothing that could be understood.
        if !lost && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
