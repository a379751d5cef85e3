//! The socket of a node's datagrams: trains in one system call where the system can, one by one where it cannot.
//!
//! Datagrams leave with a hop limit of 255, and where the system checks it, one that comes with less has crossed a router and
//! is dropped before it is read (RFC 5082).

use std::io;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Bytes of the socket's buffers, as far as the system gives them.
const BUFFER_BYTES: usize = 4 << 20;
/// Hops that a datagram of the same network has left.
const HOPS: u32 = 255;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    /// How many of a thousand datagrams are lost on purpose, and how many were sent: tests of what a bad network does.
    loss: AtomicU16,
    sent: AtomicU64,
}

impl Socket {
    /// Binds a port that the system chooses, on this host only or on all interfaces. Called within a runtime.
    pub(crate) fn bind(loopback_only: bool, loss: u16) -> io::Result<Self> {
        let ip = if loopback_only { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let socket = std::net::UdpSocket::bind((ip, 0))?;
        let options = socket2::SockRef::from(&socket);
        options.set_ttl_v4(HOPS)?;
        require_hops(&socket)?;
        // A system that gives less loses more, and the window adapts.
        let _ = options.set_recv_buffer_size(BUFFER_BYTES);
        let _ = options.set_send_buffer_size(BUFFER_BYTES);
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            io: UdpSocket::from_std(socket)?,
            state,
            loss: AtomicU16::new(loss),
            sent: AtomicU64::new(0),
        })
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.io.local_addr().map_or(0, |address| address.port())
    }

    /// Sends a train of datagrams of `segment` bytes each, the last perhaps shorter. What the system does not take is lost, as it
    /// may be on the way.
    pub(crate) fn send(&self, to: SocketAddr, train: &[u8], segment: usize) {
        if self.loss.load(Ordering::Relaxed) > 0 {
            for datagram in train.chunks(segment).filter(|_| !self.loses()) {
                self.send_part(to, datagram, segment);
            }
            return;
        }
        let most = self.state.max_gso_segments().max(1);
        for part in train.chunks(segment.max(1) * most) {
            self.send_part(to, part, segment);
        }
    }

    fn send_part(&self, to: SocketAddr, part: &[u8], segment: usize) {
        let segment_size = (part.len() > segment).then_some(segment);
        let transmit = Transmit { destination: to, ecn: None, contents: part, segment_size, src_ip: None };
        let sent = self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit));
        if sent.is_err() && segment_size.is_some() && self.state.max_gso_segments() == 1 {
            // The device has no checksums of its own: the state has noticed, and sends one by one from now on.
            part.chunks(segment).for_each(|datagram| self.send_part(to, datagram, segment));
        }
    }

    /// Loses everything from now on.
    pub(crate) fn cut(&self) {
        self.loss.store(1_000, Ordering::Relaxed);
    }

    /// Whether the next datagram is lost on purpose.
    fn loses(&self) -> bool {
        let number = self.sent.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)) % 1_000 < u64::from(self.loss.load(Ordering::Relaxed))
    }

    /// Waits until there is something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.io.readable().await
    }

    /// Receives one datagram, or a train of one sender: how many bytes, the length of each but the last, and from where.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<(usize, usize, SocketAddr)> {
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(into)];
        let receive = || self.state.recv((&self.io).into(), &mut buffers, &mut meta);
        self.io.try_io(Interest::READABLE, receive)?;
        Ok((meta[0].len, meta[0].stride.max(1), meta[0].addr))
    }
}

/// Has the system drop what crossed a router.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn require_hops(socket: &std::net::UdpSocket) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let hops: libc::c_int = HOPS as libc::c_int;
    let len = size_of_val(&hops) as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the option's value is an integer of the length given.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MINTTL, (&raw const hops).cast(), len)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A system without the check carries no datagrams: what is on the same network could not be told.
#[cfg(not(target_os = "linux"))]
fn require_hops(_: &std::net::UdpSocket) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether datagrams to `ip` cross no router: it is in a network of one of this host's interfaces. Within this host only where that
/// is asked for: its own stream is as fast.
pub(crate) fn is_near(ip: IpAddr, loopback: bool) -> bool {
    if ip.is_loopback() {
        return loopback;
    }
    let IpAddr::V4(ip) = ip else { return false };
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.iter().any(|interface| match &interface.addr {
        if_addrs::IfAddr::V4(own) => {
            let mask = u32::from(own.netmask);
            // A network of one address has no neighbors.
            mask != u32::MAX && (u32::from(own.ip) ^ u32::from(ip)) & mask == 0
        }
        if_addrs::IfAddr::V6(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_near_only_where_it_is_asked_for() {
        let own = IpAddr::from([127, 0, 0, 1]);
        assert!(is_near(own, true) && !is_near(own, false));
        assert!(!is_near(IpAddr::from([203, 0, 113, 7]), true), "documentation addresses are nowhere");
    }
}
