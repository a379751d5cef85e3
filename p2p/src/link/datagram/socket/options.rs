//! What the system is asked for beyond a plain socket: Linux.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::header::{CHUNK_BYTES, CHUNK_RANGE, CHUNK_UNIT, HEADER_LEN, MAGIC, VERSION};
use super::HOPS;

/// Has the system drop what crossed a router, of IPv4 or of IPv6. Linux looks at the options for the least hops with TCP only, and so
/// does the kernel module with its datagrams: for the others a filter of the socket looks at the IP header.
pub(super) fn require_hops(socket: &std::net::UdpSocket, v6: bool) -> io::Result<()> {
    let (level, name) =
        if v6 { (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT) } else { (libc::IPPROTO_IP, libc::IP_MINTTL) };
    set_option(socket, level, name, &(HOPS as libc::c_int))?;
    filter(socket, None)
}

/// Has the system drop, unread, what crossed a router and, where `names` are given, what names none of these sessions. The filter looks
/// at a packet from its UDP header on.
pub(super) fn filter(socket: &impl std::os::fd::AsRawFd, names: Option<&[u64]>) -> io::Result<()> {
    // Where the IP header begins, for a load of the filter.
    const NETWORK: u32 = (-0x10_0000_i32) as u32;
    const LOAD: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    /// Length of a UDP header.
    const UDP: u32 = 8;
    const SHIFT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const SKIP: u32 = libc::BPF_JMP | libc::BPF_JA;
    const END: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = vec![
        step(LOAD, 0, 0, NETWORK),
        step(SHIFT, 0, 0, 4),
        step(EQUAL, 0, 2, 4),
        step(LOAD, 0, 0, NETWORK + 8),
        step(SKIP, 0, 0, 1),
        step(LOAD, 0, 0, NETWORK + 7),
        step(EQUAL, 1, 0, HOPS),
        step(END, 0, 0, 0),
    ];
    if let Some(names) = names {
        // The filter loads in the order of the network.
        let word = |bytes: &[u8], at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        steps.extend([step(LOAD_WORD, 0, 0, UDP), step(EQUAL, 1, 0, word(&MAGIC, 0)), step(END, 0, 0, 0)]);
        steps.extend([step(LOAD, 0, 0, UDP + 4), step(EQUAL, 1, 0, VERSION.into()), step(END, 0, 0, 0)]);
        steps.push(step(LOAD_WORD, 0, 0, UDP + 8));
        for name in names.iter().map(|name| name.to_le_bytes()) {
            // No two names have the same low half: its last bits are their place in the table.
            steps.extend([step(EQUAL, 0, 4, word(&name, 0)), step(LOAD_WORD, 0, 0, UDP + 12)]);
            steps.extend([step(EQUAL, 0, 1, word(&name, 4)), step(END, 0, 0, u32::MAX), step(END, 0, 0, 0)]);
        }
    }
    steps.push(step(END, 0, 0, if names.is_some() { 0 } else { u32::MAX }));
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Sets an option of the kind that `T` is the value of.
#[allow(unsafe_code)]
fn set_option<T>(
    socket: &impl std::os::fd::AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed; the system reads `len` bytes at `value`, and of a filter the
    // steps that it counts, which the caller holds until this returns.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The longest chunk whose datagrams the way to `ip` carries whole, as far as this host knows its packets' length.
#[allow(unsafe_code)]
pub(super) fn longest_chunk(ip: IpAddr) -> usize {
    use std::os::fd::AsRawFd;
    let asked = || {
        let (any, level, name) = match ip {
            IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), libc::IPPROTO_IP, libc::IP_MTU),
            IpAddr::V6(_) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let socket = std::net::UdpSocket::bind((any, 0))?;
        // Sends nothing: the system looks for a route.
        socket.connect((ip, 9))?;
        let (mut mtu, mut len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the descriptor is open as long as `socket` lives; the system writes at most `len` bytes, an integer's, at `mtu`.
        let said =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &raw mut len) };
        if said == 0 { Ok(mtu as usize) } else { Err(io::Error::last_os_error()) }
    };
    let headers = if ip.is_ipv4() { 28 } else { 48 } + HEADER_LEN;
    let room = asked().map_or(CHUNK_BYTES, |mtu| mtu.saturating_sub(headers));
    (room / CHUNK_UNIT * CHUNK_UNIT).clamp(*CHUNK_RANGE.start(), *CHUNK_RANGE.end())
}
