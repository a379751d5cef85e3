//! The kernel module `p2p/kmod` behind its device file: messages of the node's socket that it puts together and sends.
//!
//! The module accelerates an ordinary socket of datagrams and is never needed: a session is entered and taken out at any time, and
//! its messages go on from user space ([`super::attached`]). What is said to the device is in `p2p/kmod/shoal_lan.h`; the structures
//! here are its, field by field.
//!
//! Limits: one area of [`SLOTS`] messages for all sessions, of which a message is copied out, and its slot given back, as soon as it
//! is read; what a session holds of it is the module's to bound.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::attached::{Carrier, Known, Ready, Whole};
use super::datagram::receive::MAX_OPEN;
use super::datagram::session::{MAX_SENT, Served};
use super::datagram::socket::Socket;
use crate::link_kind::LinkKind;

/// The device file.
pub(crate) const DEVICE: &str = "/dev/shoal_lan";
const ABI: u32 = 1;
/// Bytes of a slot: the longest message, in whole pages.
const SLOT_BYTES: usize = MAX_SENT.next_multiple_of(4_096);
/// Receive slots, at best and at least: the least, with a slot to send from, are below the 8 MiB that a process may lock by default.
const SLOTS: [u32; 2] = [32, 6];
/// Events of one call.
const EVENTS: usize = 8;
/// What a message is known as that is half here.
const HALF: u32 = 1;
const WHOLE: u32 = 2;

#[repr(C)]
#[derive(Default)]
struct Setup {
    abi: u32,
    rx_slots: u32,
    tx_slots: u32,
    slot_bytes: u32,
    area_bytes: u64,
    tx_offset: u64,
}

#[repr(C)]
struct Attach {
    fd: i32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct Enter {
    rx_session: u64,
    tx_session: u64,
    rx_key: [u8; 16],
    tx_key: [u8; 16],
    address: [u8; 16],
    scope: u32,
    port: u16,
    reserved: u16,
    rx_epoch: u32,
    tx_epoch: u32,
    chunk_bytes: u32,
    quota: u32,
    top: u32,
    reserved2: u32,
}

#[repr(C)]
struct Rekey {
    rx_session: u64,
    key: [u8; 16],
    epoch: u32,
    direction: u32,
}

#[repr(C)]
struct Id {
    rx_session: u64,
    message: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct Send {
    rx_session: u64,
    bitmap: u64,
    message: u32,
    slot: u32,
    bytes: u32,
    flags: u32,
    sent: u32,
    epoch: u32,
}

/// A message that is whole, in a slot of the area.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Event {
    /// What this end calls the session.
    session: u64,
    message: u32,
    slot: u32,
    generation: u32,
    bytes: u32,
    epoch: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct Wait {
    timeout_ms: u32,
    spin_us: u32,
    count: u32,
    reserved: u32,
    events: [Event; EVENTS],
}

#[repr(C)]
struct Release {
    slot: u32,
    generation: u32,
}

#[repr(C)]
#[derive(Default)]
struct Missing {
    rx_session: u64,
    bitmap: u64,
    message: u32,
    bitmap_bytes: u32,
    known: u32,
    chunks: u32,
}

/// A request that the device takes.
///
/// # Safety
/// The module reads and writes no more than `Self` at the address that it is given, and through pointers inside of it no more than
/// the lengths beside them say.
unsafe trait Request {
    const CODE: libc::Ioctl;
}

macro_rules! request {
    ($kind:ident, $way:ident, $number:literal) => {
        // SAFETY: the layout is that of the C header for this request.
        unsafe impl Request for $kind {
            const CODE: libc::Ioctl = libc::$way::<$kind>(b'S' as u32, $number);
        }
    };
}

request!(Setup, _IOWR, 0xa0);
request!(Attach, _IOW, 0xa1);
request!(Enter, _IOW, 0xa2);
request!(Rekey, _IOW, 0xa3);
request!(Id, _IOW, 0xa4);
request!(Send, _IOWR, 0xa5);
request!(Wait, _IOWR, 0xa6);
request!(Release, _IOW, 0xa7);
request!(Missing, _IOWR, 0xa8);

/// The mapped area.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    len: usize,
    tx_offset: usize,
}

// SAFETY: the area belongs to the process, not to a thread; who may write where is said at each access.
unsafe impl std::marker::Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are what `mmap` gave, and nothing borrows from the area beyond a call.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Module {
    file: AsyncFd<File>,
    area: Area,
    rx_slots: u32,
    /// Who writes into the send slot.
    sending: Mutex<()>,
}

fn ask<R: Request>(file: &File, request: &mut R) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `file` is borrowed, and `Request` promises what the call touches.
    let said = unsafe { libc::ioctl(file.as_raw_fd(), R::CODE, std::ptr::from_mut(request)) };
    if said < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn map(file: &File, setup: &Setup) -> io::Result<Area> {
    let (len, tx_offset) = (setup.area_bytes as usize, setup.tx_offset as usize);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the system chooses; the descriptor is open as long as `file` is borrowed.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
    Ok(Area { start, len, tx_offset })
}

/// Whether the device is there and this process's user may open it; it is not opened.
///
/// # Errors
/// What the system says; [`io::ErrorKind::NotFound`] where there is no device.
pub(crate) fn may_be_opened() -> io::Result<()> {
    let path = std::ffi::CString::new(DEVICE)?;
    // SAFETY: the path is a string that ends with a zero and outlives the call, which reads it and nothing else.
    let said = unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) };
    if said == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the module is loaded, as the system's list of modules says where it can be read.
pub(crate) fn is_loaded() -> bool {
    Path::new("/sys/module/shoal_lan").exists()
}

/// Slots that one session may hold of so many: two neighbors that end no message leave half of them to the others.
fn quota(slots: u32) -> u32 {
    (slots / 4).max(MAX_OPEN as u32)
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(Path::new(DEVICE))
}

impl Module {
    /// Opens the device and has it serve `socket`. Called within a runtime.
    pub(crate) fn open(socket: &Socket) -> io::Result<Self> {
        let file = open()?;
        let set_up = |rx_slots| {
            let mut setup =
                Setup { abi: ABI, rx_slots, tx_slots: 1, slot_bytes: SLOT_BYTES as u32, ..Setup::default() };
            ask(&file, &mut setup).map(|()| setup)
        };
        // The second is for a process that may lock little memory.
        let setup = set_up(SLOTS[0]).or_else(|_| set_up(SLOTS[1]))?;
        let area = map(&file, &setup)?;
        ask(&file, &mut Attach { fd: socket.as_raw_fd(), reserved: 0 })?;
        // SAFETY: a file always says the same descriptor, and keeps it open until it is dropped.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?;
        Ok(Self { file, area, rx_slots: setup.rx_slots, sending: Mutex::new(()) })
    }

    fn ask<R: Request>(&self, mut request: R) -> io::Result<R> {
        ask(self.file.get_ref(), &mut request).map(|()| request)
    }
}

impl Carrier for Module {
    fn kind(&self) -> LinkKind {
        LinkKind::Kmod
    }

    fn enter(&self, served: &Served, to: SocketAddr) -> io::Result<()> {
        let address = match to.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let scope = if let SocketAddr::V6(to) = to { to.scope_id() } else { 0 };
        let enter = Enter {
            rx_session: served.names[0],
            tx_session: served.names[1],
            rx_key: served.inward.1,
            tx_key: served.outward.1,
            address: address.octets(),
            scope,
            port: to.port(),
            rx_epoch: served.inward.0,
            tx_epoch: served.outward.0,
            chunk_bytes: served.chunk_bytes as u32,
            quota: quota(self.rx_slots),
            top: served.newest,
            ..Enter::default()
        };
        self.ask(enter).map(|_| ())
    }

    fn leave(&self, session: u64) -> io::Result<()> {
        self.ask(Id { rx_session: session, message: 0, reserved: 0 }).map(|_| ())
    }

    fn rekey(&self, session: u64, outward: bool, (epoch, key): (u32, [u8; 16])) -> io::Result<()> {
        self.ask(Rekey { rx_session: session, key, epoch, direction: outward.into() }).map(|_| ())
    }

    fn send(
        &self,
        session: u64,
        (message, epoch): (u32, u32),
        sealed: &[u8],
        chunks: &[u8],
    ) -> io::Result<()> {
        if sealed.len() > SLOT_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let _own = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the send slot has `SLOT_BYTES` bytes at this offset of the area, which is mapped as long as `self` is; the lock
        // keeps other threads of this process from it, and the module reads it in the call below only.
        unsafe {
            let slot = self.area.start.as_ptr().add(self.area.tx_offset);
            std::ptr::copy_nonoverlapping(sealed.as_ptr(), slot, sealed.len());
        }
        let bitmap = chunks.as_ptr() as u64;
        let bytes = sealed.len() as u32;
        let send = Send { rx_session: session, bitmap, message, bytes, epoch, ..Send::default() };
        self.ask(send).map(|_| ())
    }

    fn known(&self, session: u64, message: u32, chunks: u16) -> io::Result<Known> {
        let mut bits = vec![0; usize::from(chunks).div_ceil(8)];
        let (bitmap, bitmap_bytes) = (bits.as_mut_ptr() as u64, bits.len() as u32);
        let asked = Missing { rx_session: session, bitmap, message, bitmap_bytes, ..Missing::default() };
        let said = self.ask(asked)?;
        Ok(match said.known {
            HALF if said.chunks == u32::from(chunks) => Known::Half(bits),
            WHOLE => Known::Whole,
            _ => Known::Unknown,
        })
    }

    fn ready(&self) -> Ready<'_> {
        Box::pin(async { self.file.readable().await.map(|mut ready| ready.clear_ready()) })
    }

    fn take(&self, hear: &mut dyn FnMut(&Whole, &[u8])) -> io::Result<usize> {
        let wait = match self.ask(Wait::default()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            wait => wait?,
        };
        let events = &wait.events[..(wait.count as usize).min(EVENTS)];
        for event in events {
            let (at, len) = (event.slot as usize * SLOT_BYTES, event.bytes as usize);
            if event.slot >= self.rx_slots || len > SLOT_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // SAFETY: the slot lies within the mapped area, which lives as long as `self`; from this event until the release below
            // the module writes nothing into it, and this process never does.
            let message = unsafe { std::slice::from_raw_parts(self.area.start.as_ptr().add(at), len) };
            hear(&Whole { session: event.session, message: event.message, epoch: event.epoch }, message);
            self.ask(Release { slot: event.slot, generation: event.generation })?;
        }
        Ok(events.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structures have the lengths that the header has, which are part of the codes.
    #[test]
    fn requests_are_those_of_the_header() {
        let lengths = [
            size_of::<Setup>(),
            size_of::<Attach>(),
            size_of::<Enter>(),
            size_of::<Rekey>(),
            size_of::<Id>(),
            size_of::<Send>(),
            size_of::<Wait>(),
            size_of::<Release>(),
            size_of::<Missing>(),
        ];
        assert_eq!(lengths, [32, 8, 96, 32, 16, 40, 272, 8, 32]);
        let header = include_str!("../../kmod/shoal_lan.h");
        for (name, code) in [
            ("SETUP _IOWR('S', 0xa0", Setup::CODE),
            ("ATTACH _IOW('S', 0xa1", Attach::CODE),
            ("SESSION_ADD _IOW('S', 0xa2", Enter::CODE),
            ("REKEY _IOW('S', 0xa3", Rekey::CODE),
            ("SESSION_DEL _IOW('S', 0xa4", Id::CODE),
            ("SEND _IOWR('S', 0xa5", Send::CODE),
            ("WAIT _IOWR('S', 0xa6", Wait::CODE),
            ("RELEASE _IOW('S', 0xa7", Release::CODE),
            ("MISSING _IOWR('S', 0xa8", Missing::CODE),
        ] {
            let (_, number) = name.rsplit_once("0x").unwrap();
            assert!(header.contains(&format!("#define SHOAL_LAN_{name}")), "{name}");
            assert_eq!(code & 0xff, u64::from_str_radix(number, 16).unwrap() as libc::Ioctl, "{name}");
        }
        assert!(header.contains(&format!("#define SHOAL_LAN_EVENTS {EVENTS}")));
        assert!(header.contains(&format!("#define SHOAL_LAN_ABI {ABI}")));
    }

    /// A session always has room for what its peer may leave half filled, and two of them leave room for others.
    #[test]
    fn two_sessions_do_not_take_all_slots() {
        assert_eq!(SLOTS.map(quota), [8, 4]);
        assert!(2 * quota(SLOTS[0]) < SLOTS[0]);
    }

    #[test]
    fn a_host_without_the_module_says_so() {
        if !Path::new(DEVICE).exists() {
            assert_eq!(may_be_opened().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
