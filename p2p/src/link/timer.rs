//! When the sessions of a node have something to do next.
//!
//! One task sleeps until the earliest moment that a session named, and asks all of them when it wakes. A later moment does not
//! wake it: a message that is acknowledged in time costs no timer of its own. It sleeps by a timer of the system, because the
//! runtime's counts milliseconds and what is due here is due in fractions of one.

#[cfg(target_os = "linux")]
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(target_os = "linux")]
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::datagram::Time;

/// Nothing is due.
const NEVER: u64 = u64::MAX;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) began: Instant,
    /// What the task sleeps until, us since the beginning.
    armed_us: AtomicU64,
    changed: Notify,
}

impl Timer {
    /// Its time begins at `began`.
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, armed_us: AtomicU64::new(NEVER), changed: Notify::new() }
    }

    /// The time now.
    pub(crate) fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Something is due then.
    pub(crate) fn arm(&self, due: Option<Time>) {
        if self.note(due) {
            self.changed.notify_one();
        }
    }

    /// Whether that is earlier than what was known.
    fn note(&self, due: Option<Time>) -> bool {
        let due_us = due.map_or(NEVER, |due| u64::try_from(due.as_micros()).unwrap_or(NEVER));
        self.armed_us.fetch_min(due_us, Ordering::AcqRel) > due_us
    }
}

/// Has `on_time` do what is due and say when the next thing is, until its owner is dropped.
pub(crate) async fn keep<T>(timer: Arc<Timer>, owner: Weak<T>, on_time: fn(&T) -> Option<Time>) {
    let alarm = Alarm::new();
    loop {
        timer.armed_us.store(NEVER, Ordering::Release);
        // What is armed from here on is noted, and looked at below.
        let Some(due) = owner.upgrade().map(|owner| on_time(&owner)) else { return };
        timer.note(due);
        match timer.armed_us.load(Ordering::Acquire) {
            NEVER => timer.changed.notified().await,
            until_us => {
                let until = Time::from_micros(until_us);
                tokio::select! {
                    () = alarm.sleep(until.saturating_sub(timer.now())) => {}
                    () = timer.changed.notified() => {}
                }
            }
        }
    }
}

/// A timer of the system, where there is one; the runtime's otherwise.
#[derive(Debug)]
struct Alarm(#[cfg(target_os = "linux")] Option<AsyncFd<File>>);

#[cfg(target_os = "linux")]
impl Alarm {
    /// Called within a runtime.
    fn new() -> Self {
        let made = create();
        if let Err(error) = &made {
            tracing::debug!(%error, "no timer of the system, the runtime's is used");
        }
        Self(made.ok())
    }

    /// Returns after this long.
    async fn sleep(&self, wait: Duration) {
        use std::io::Read;
        if wait.is_zero() {
            return;
        }
        if let Some(alarm) = &self.0
            && set(alarm.get_ref(), wait).is_ok()
        {
            while let Ok(mut rung) = alarm.readable().await {
                // How often it rang, which nothing depends on. Nothing is there when it rang before it was set.
                if rung.try_io(|alarm| alarm.get_ref().read(&mut [0; 8])).is_ok() {
                    return;
                }
            }
        }
        tokio::time::sleep(wait).await;
    }
}

/// A timer that the runtime watches. Called within a runtime.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn create() -> std::io::Result<AsyncFd<File>> {
    use std::os::fd::FromRawFd;
    // SAFETY: the call takes no memory of this process.
    let timer =
        unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
    if timer < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made above and has no other owner.
    let timer = unsafe { File::from_raw_fd(timer) };
    // SAFETY: a file always says the same descriptor, and keeps it open until it is dropped.
    Ok(unsafe { AsyncFd::register(timer) }?)
}

/// Has `timer` ring once, after `wait`.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn set(timer: &File, wait: Duration) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec {
        tv_sec: wait.as_secs() as libc::time_t,
        tv_nsec: wait.subsec_nanos() as libc::c_long,
    };
    let wanted = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: the descriptor is open as long as `timer` is borrowed; the system reads `wanted`, which outlives the call, and writes
    // nothing where there is no place for the old value.
    let said =
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const wanted, std::ptr::null_mut()) };
    if said == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    fn new() -> Self {
        Self()
    }

    async fn sleep(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It rings after what it was set to and not before, also when it was set to something else in between.
    #[tokio::test]
    async fn an_alarm_rings_when_it_is_due() {
        let alarm = Alarm::new();
        for wait_us in [0, 100, 300, 5_000] {
            let (wait, started) = (Duration::from_micros(wait_us), std::time::Instant::now());
            alarm.sleep(wait).await;
            assert!(started.elapsed() >= wait, "{wait_us} us");
            // Dropped in the middle: the next wait is its own.
            let far = alarm.sleep(Duration::from_secs(3_600));
            assert!(tokio::time::timeout(Duration::from_millis(2), far).await.is_err());
        }
    }
}
