//! What Linux takes from a process.

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{Confinement, Purpose, filter};

/// What holds a process where nothing is filtered: a kernel without filters, or a device whose driver needs its calls.
pub const WITHOUT_FILTER: &str = "off";

/// Ends this process with the thread that started it.
pub(super) fn die_with_parent() {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("warning: worker: {error} when tying its life to its parent's");
    }
}

/// Bytes of address space in use.
pub(super) fn address_space() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// See [`super::enter`].
pub(super) fn confine(purpose: Purpose) -> Confinement {
    let warn = |what: &str, why: String| eprintln!("warning: {what}: {why}");
    if let Err(error) = give_up_privileges() {
        warn("privileges could not be given up", error.to_string());
    }
    let landlocked = landlock().unwrap_or_else(|why| {
        warn("no Landlock", why);
        false
    });
    let filtered = filter::install(purpose).map_err(|why| warn("no sandbox", why)).is_ok();
    Confinement { filtered, landlocked }
}

/// No capability, none to gain, and no other process of this user may look inside.
fn give_up_privileges() -> rustix::io::Result<()> {
    use rustix::{
        process::{DumpableBehavior, set_dumpable_behavior},
        thread::{
            CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
            set_no_new_privs,
        },
    };

    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().iter() {
        // Without privileges there is nothing to remove, and the kernel says so.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Forbids every path, every port and signals to processes outside; whether the kernel knows how.
fn landlock() -> Result<bool, String> {
    use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};

    // Rights that later kernels know are unknown to this list, and the filter has no call that would use them.
    const KNOWN: ABI = ABI::V6;
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self());
    let status = rules.map_err(|error| error.to_string())?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
