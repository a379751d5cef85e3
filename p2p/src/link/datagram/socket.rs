//! The socket of a node's datagrams: trains in one system call where the system can, one by one where it cannot.
//!
//! Datagrams leave with a hop limit of 255, and one that comes with less has crossed a router: a filter that the system runs drops it
//! before it takes room in the socket's queue (RFC 5082). Once sessions are known the filter takes their names only, so that a neighbor
//! without one fills nothing either.

use std::io;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use options::{filter, require_hops};

#[cfg(target_os = "linux")]
mod options;
#[cfg(not(target_os = "linux"))]
#[path = "socket/options_absent.rs"]
mod options;

/// Bytes of the socket's buffers, as far as the system gives them.
const BUFFER_BYTES: usize = 4 << 20;
/// Hops that a datagram of the same network has left.
const HOPS: u32 = 255;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    /// It is of IPv6, and has addresses of IPv4 in its form.
    mapped: bool,
    /// How many of a thousand datagrams are lost on purpose, and how many were sent: tests of what a bad network does.
    loss: AtomicU16,
    sent: AtomicU64,
    /// The longest datagram that is sent: tests of what a narrow network does.
    longest: AtomicUsize,
}

impl Socket {
    /// Binds a port that the system chooses, on this host only or on all interfaces, for IPv6 as well where the host has it. Called
    /// within a runtime.
    pub(crate) fn bind(loopback_only: bool, loss: u16) -> io::Result<Self> {
        let both = if loopback_only { None } else { bind_both().ok() };
        let (socket, mapped) = match both {
            Some(socket) => (socket, true),
            None => {
                let ip = if loopback_only { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
                let socket = std::net::UdpSocket::bind((ip, 0))?;
                require_hops(&socket, false)?;
                (socket, false)
            }
        };
        let options = socket2::SockRef::from(&socket);
        options.set_ttl_v4(HOPS)?;
        // A system that gives less loses more, and the window adapts.
        let _ = options.set_recv_buffer_size(BUFFER_BYTES);
        let _ = options.set_send_buffer_size(BUFFER_BYTES);
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            io: UdpSocket::from_std(socket)?,
            state,
            mapped,
            loss: AtomicU16::new(loss),
            sent: AtomicU64::new(0),
            longest: AtomicUsize::new(usize::MAX),
        })
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.io.local_addr().map_or(0, |address| address.port())
    }

    /// Sends a train of datagrams of `segment` bytes each, the last perhaps shorter. What the system does not take is lost, as it
    /// may be on the way.
    pub(crate) fn send(&self, to: SocketAddr, train: &[u8], segment: usize) {
        let longest = self.longest.load(Ordering::Relaxed);
        if self.loss.load(Ordering::Relaxed) > 0 || segment > longest {
            let fits = |datagram: &&[u8]| datagram.len() <= longest && !self.loses();
            for datagram in train.chunks(segment).filter(fits) {
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
        let destination = match to {
            SocketAddr::V4(to) if self.mapped => SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port()),
            to => to,
        };
        let transmit = Transmit { destination, ecn: None, contents: part, segment_size, src_ip: None };
        let sent = self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), &transmit));
        if sent.is_err() && segment_size.is_some() && self.state.max_gso_segments() == 1 {
            // The device has no checksums of its own: the state has noticed, and sends one by one from now on.
            part.chunks(segment).for_each(|datagram| self.send_part(to, datagram, segment));
        }
    }

    /// Loses everything from now on, or no more than before.
    pub(crate) fn cut(&self) {
        self.loss.store(1_000, Ordering::Relaxed);
    }

    /// Sends no datagram longer than this from now on.
    pub(crate) fn shrink(&self, longest: usize) {
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// Takes datagrams of sessions of these names only from now on. Where the system takes no such filter the one for hops stays.
    pub(crate) fn admit(&self, names: &[u64]) {
        if let Err(error) = filter(&self.io, Some(names)) {
            tracing::debug!(%error, "datagrams of no session are read and dropped");
        }
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

    /// Receives one datagram, or a train of one sender: how many bytes, the length of each but the last, and from where. Asks the
    /// system even where the runtime knows of nothing, if it is to `look`.
    pub(crate) fn receive(&self, into: &mut [u8], look: bool) -> io::Result<(usize, usize, SocketAddr)> {
        let mut meta = [RecvMeta::default()];
        let mut buffers = [IoSliceMut::new(into)];
        let mut receive = || self.state.recv((&self.io).into(), &mut buffers, &mut meta);
        if look {
            receive()?
        } else {
            self.io.try_io(Interest::READABLE, receive)?
        };
        let from = meta[0].addr;
        Ok((meta[0].len, meta[0].stride.max(1), SocketAddr::new(from.ip().to_canonical(), from.port())))
    }
}

#[cfg(target_os = "linux")]
impl std::os::fd::AsRawFd for Socket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.io.as_raw_fd()
    }
}

/// A socket for both families.
fn bind_both() -> io::Result<std::net::UdpSocket> {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    socket.set_only_v6(false)?;
    socket.set_unicast_hops_v6(HOPS)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())?;
    let socket = std::net::UdpSocket::from(socket);
    require_hops(&socket, false)?;
    require_hops(&socket, true)?;
    Ok(socket)
}

/// The longest chunk whose datagrams the way to `ip` carries whole, as far as this host knows its packets' length.
pub(crate) fn longest_chunk(ip: IpAddr) -> usize {
    options::longest_chunk(ip)
}

/// Whether datagrams to `ip` cross no router: it is in a network of one of this host's interfaces. Within this host only where that
/// is asked for: its own stream is as fast.
pub(crate) fn is_near(ip: IpAddr, loopback: bool) -> bool {
    if ip.is_loopback() {
        return loopback;
    }
    // An address of the link alone names no interface.
    if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return false;
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces.iter().any(|interface| match (&interface.addr, ip) {
        // A network of one address has no neighbors.
        (if_addrs::IfAddr::V4(own), IpAddr::V4(ip)) => {
            let mask = u32::from(own.netmask);
            mask != u32::MAX && (u32::from(own.ip) ^ u32::from(ip)) & mask == 0
        }
        (if_addrs::IfAddr::V6(own), IpAddr::V6(ip)) => {
            let mask = u128::from(own.netmask);
            mask != u128::MAX && (u128::from(own.ip) ^ u128::from(ip)) & mask == 0
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::header::{CHUNK_RANGE, CHUNK_UNIT};
    use super::*;

    #[test]
    fn this_host_is_near_only_where_it_is_asked_for() {
        let own = IpAddr::from([127, 0, 0, 1]);
        assert!(is_near(own, true) && !is_near(own, false));
        assert!(!is_near(IpAddr::from([203, 0, 113, 7]), true), "documentation addresses are nowhere");
    }

    /// One hop less than all is a router's: it never comes, and what was sent after it does.
    #[tokio::test]
    async fn what_crossed_a_router_is_dropped() {
        let there = Socket::bind(false, 0).unwrap();
        let routed = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        for (hops, word) in [(254, b"routed"), (255, b"direct")] {
            routed.set_ttl(hops).unwrap();
            routed.send_to(word, ("127.0.0.1", there.port())).await.unwrap();
        }
        let mut buffer = vec![0; 65_536];
        let len = loop {
            there.readable().await.unwrap();
            if let Ok((len, ..)) = there.receive(&mut buffer, false) {
                break len;
            }
        };
        assert_eq!(&buffer[..len], b"direct");
    }

    /// What names no session that is known never takes room in the queue: of five datagrams the last one is read first.
    #[tokio::test]
    async fn what_names_no_session_never_comes() {
        let there = Socket::bind(false, 0).unwrap();
        let (one, other) = (0x0123_4567_89ab_cd41_u64, 0xfedc_ba98_7654_3242_u64);
        let names: Vec<u64> = (0..64).map(|at| if at == 1 { one } else { other / 64 * 64 + at }).collect();
        there.admit(&names);
        let from = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        from.set_ttl(255).unwrap();
        let datagram = |magic: &[u8], version: u8, name: u64| {
            let mut bytes = [magic, &[version, 0, 0, 0], &name.to_le_bytes()].concat();
            bytes.resize(60, 7);
            bytes
        };
        let right = datagram(b"SLAN", 1, one);
        for bytes in [
            &datagram(b"SLAM", 1, one)[..],
            &datagram(b"SLAN", 9, one),
            &datagram(b"SLAN", 1, one ^ 1 << 40),
            &datagram(b"SLAN", 1, one ^ 1 << 20),
            &right[..14],
            &right,
        ] {
            from.send_to(bytes, ("127.0.0.1", there.port())).await.unwrap();
        }
        let mut buffer = vec![0; 65_536];
        let len = loop {
            there.readable().await.unwrap();
            if let Ok((len, ..)) = there.receive(&mut buffer, false) {
                break len;
            }
        };
        assert_eq!(buffer[..len], right);
        // A name that is forgotten is dropped, one that is new comes.
        there.admit(&[other]);
        for name in [one, other] {
            from.send_to(&datagram(b"SLAN", 1, name), ("127.0.0.1", there.port())).await.unwrap();
        }
        let len = loop {
            there.readable().await.unwrap();
            if let Ok((len, ..)) = there.receive(&mut buffer, false) {
                break len;
            }
        };
        assert_eq!(buffer[..len], datagram(b"SLAN", 1, other));
    }

    #[test]
    fn a_chunk_fits_the_packets_of_the_way() {
        // Loopback carries packets of 64 KiB unless it was told otherwise.
        let chunk = longest_chunk(IpAddr::from([127, 0, 0, 1]));
        assert!(CHUNK_RANGE.contains(&chunk) && chunk.is_multiple_of(CHUNK_UNIT), "{chunk}");
    }

    /// A socket of both families sends to either, and says who sent in the form of that family.
    #[tokio::test]
    async fn either_family_is_carried() {
        let here = Socket::bind(false, 0).unwrap();
        let there = Socket::bind(false, 0).unwrap();
        let loopbacks: &[IpAddr] = match there.mapped {
            true => &[IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
            false => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        };
        for ip in loopbacks {
            here.io.writable().await.unwrap();
            here.send(SocketAddr::new(*ip, there.port()), &[7; 3_000], 1_448);
            let (mut bytes, mut buffer) = (0, vec![0; 65_536]);
            while bytes < 3_000 {
                there.readable().await.unwrap();
                while let Ok((len, _, from)) = there.receive(&mut buffer, false) {
                    assert_eq!(from, SocketAddr::new(*ip, here.port()));
                    bytes += len;
                }
            }
        }
    }
}
