//! How much of a GPU's time is taken: what a user says, else less while a battery feeds the machine or others use the GPU.
//!
//! After a pass the device rests for as long as its share asks: with 50 % as long as the pass took. What a pass gave is not held back;
//! the next pass begins later, so speeds that are measured and announced are those with the pauses.
//!
//! Limits: batteries are seen on Linux only, and use by others where the driver counts it (`gpu_busy_percent` of amdgpu), while this
//! process had not used the device for a moment. Elsewhere a user says the share.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use super::driver::locked;

/// Of the time, while a battery feeds the machine or others use the GPU.
const YIELDING_PERCENT: u8 = 50;
/// Others use the GPU when it is busy for so much of the time.
const BUSY_PERCENT: u8 = 40;
/// How long what was seen counts.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After so long without a pass what the driver counts is of others.
const OTHERS_AFTER: Duration = Duration::from_millis(1_500);
/// No pause is longer: a prompt's chunk on a slow device is no reason to rest for minutes.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// When passes begin.
pub(super) struct Share {
    asked_percent: Option<u8>,
    system: PathBuf,
    /// The device's place on its bus, empty where it has none.
    bus: String,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    on_battery: bool,
    others: bool,
    /// When the last pass ended, and until when the device rests.
    ended: Option<Instant>,
    rests_until: Option<Instant>,
}

impl Share {
    /// `asked_percent` of the time of the device at `bus`, else what the machine, seen below `system`, allows.
    pub fn new(asked_percent: Option<u8>, system: &Path, bus: &str) -> Self {
        let is_address =
            !bus.is_empty() && bus.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b':' | b'.'));
        let bus = if is_address { bus.to_owned() } else { String::new() };
        Self { asked_percent, system: system.to_owned(), bus, seen: Mutex::default() }
    }

    /// What the user said.
    pub fn asked_percent(&self) -> Option<u8> {
        self.asked_percent
    }

    /// How long a pass that would begin at `now` waits.
    pub fn wait(&self, now: Instant) -> Duration {
        locked(&self.seen).rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// A pass began at `began` and ended at `now`.
    pub fn passed(&self, began: Instant, now: Instant) {
        let mut seen = locked(&self.seen);
        if self.asked_percent.is_none() {
            self.look(&mut seen, began);
        }
        let percent = self.asked_percent.unwrap_or(match seen.on_battery || seen.others {
            true => YIELDING_PERCENT,
            false => 100,
        });
        seen.ended = Some(now);
        seen.rests_until = Some(now + pause(now.saturating_duration_since(began), percent));
    }

    fn look(&self, seen: &mut Seen, now: Instant) {
        if seen.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_EVERY) {
            return;
        }
        seen.looked = Some(now);
        seen.on_battery = on_battery(&self.system);
        let idle = seen.ended.is_none_or(|ended| now.saturating_duration_since(ended) > OTHERS_AFTER);
        if idle && !self.bus.is_empty() {
            let path = self.system.join("bus/pci/devices").join(&self.bus).join("gpu_busy_percent");
            let busy = fs::read_to_string(path).ok().and_then(|percent| percent.trim().parse::<u8>().ok());
            seen.others = busy.is_some_and(|percent| percent >= BUSY_PERCENT);
        }
    }
}

/// How long a device rests after a pass of `took`, of whose time `percent` is taken.
fn pause(took: Duration, percent: u8) -> Duration {
    let percent = u32::from(percent.clamp(1, 100));
    (took * (100 - percent) / percent).min(MAX_PAUSE)
}

/// Whether a battery of this machine, and not of a mouse, is being emptied.
fn on_battery(system: &Path) -> bool {
    let Ok(all) = fs::read_dir(system.join("class/power_supply")) else { return false };
    all.flatten().any(|supply| {
        let says = |file: &str, word: &str| {
            fs::read_to_string(supply.path().join(file)).is_ok_and(|text| text.trim() == word)
        };
        says("type", "Battery") && !says("scope", "Device") && says("status", "Discharging")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(share: &Share, began: Instant, ms: u64) -> Duration {
        let ended = began + Duration::from_millis(ms);
        share.passed(began, ended);
        share.wait(ended)
    }

    #[test]
    fn a_device_rests_as_its_share_says() {
        let (nowhere, now) = (Path::new("/nonexistent"), Instant::now());
        for (percent, rest_ms) in [(100, 0), (50, 200), (20, 800), (1, 5_000)] {
            let share = Share::new(Some(percent), nowhere, "");
            assert_eq!(share.wait(now), Duration::ZERO, "the first pass begins at once");
            assert_eq!(pass(&share, now, 200), Duration::from_millis(rest_ms), "{percent} %");
        }
        let whole = Share::new(None, nowhere, "");
        assert_eq!(pass(&whole, now, 200), Duration::ZERO, "nothing says that it should yield");
    }

    #[test]
    fn it_yields_to_a_battery_and_to_others() {
        let system = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let now = Instant::now();
        let at = |s: u64| now + Duration::from_secs(s);
        write("class/power_supply/mouse/type", "Battery\n");
        write("class/power_supply/mouse/scope", "Device\n");
        write("class/power_supply/mouse/status", "Discharging\n");
        write("class/power_supply/BAT0/type", "Battery\n");
        write("class/power_supply/BAT0/status", "Charging\n");
        let share = Share::new(None, system.path(), "0000:03:00.0");
        assert_eq!(pass(&share, at(0), 100), Duration::ZERO);
        write("class/power_supply/BAT0/status", "Discharging\n");
        assert_eq!(pass(&share, at(5), 100), Duration::ZERO, "it looked just now");
        assert_eq!(pass(&share, at(20), 100), Duration::from_millis(100));
        write("class/power_supply/BAT0/status", "Full\n");
        write("bus/pci/devices/0000:03:00.0/gpu_busy_percent", "97\n");
        assert_eq!(pass(&share, at(40), 100), Duration::from_millis(100), "others use it");
        write("bus/pci/devices/0000:03:00.0/gpu_busy_percent", "3\n");
        assert_eq!(pass(&share, at(60), 100), Duration::ZERO);
        let asked = Share::new(Some(100), system.path(), "0000:03:00.0");
        write("class/power_supply/BAT0/status", "Discharging\n");
        assert_eq!(pass(&asked, at(80), 100), Duration::ZERO, "a user's word counts");
        assert_eq!(Share::new(None, system.path(), "../..").bus, "", "no address of a bus");
    }
}
