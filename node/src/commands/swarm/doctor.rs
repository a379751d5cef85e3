//! `shoal doctor`: is this machine fit to join, and what to do where it is not? No finding names an address, a key or a
//! file, so that all of it, and the file that `--report` writes, can be shown to others.

use std::{
    ffi::OsString,
    fs,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use shard::{executor, golden, kernels::Isa};

use super::runtime;
use crate::{
    Error, Result,
    cli::operate::DoctorArgs,
    config::{self, Source},
    confine,
    control::{self, Question},
    output::{self, human_bytes, say},
    platform::files::{self as disk_files, is_owners_only},
    reports::{LinkReport, ModelReport, NetworkStatus, StatusReport},
};

/// Less than this and the default model's sessions do not fit beside the system.
const LEAST_MEMORY: u64 = 512 << 20;
/// Less than this and nothing can be pulled.
const LEAST_DISK: u64 = 1 << 30;
/// The day this was written: a clock before it is wrong.
const LEAST_UNIX_S: u64 = 1_795_000_000;
/// Drivers of GPUs have this long to say what there is.
const DRIVERS: Duration = Duration::from_secs(60);
/// Every peer, stream and model file is an open file; with fewer than this a busy node runs out.
const LEAST_FILES: u64 = 1024;

struct Finding {
    what: &'static str,
    well: bool,
    found: String,
    advice: &'static str,
}

impl Finding {
    fn to_json(&self) -> Value {
        let advice = if self.well { "" } else { self.advice };
        json!({ "check": self.what, "ok": self.well, "found": self.found, "advice": advice })
    }
}

pub(in crate::commands) fn doctor(args: DoctorArgs, named: Option<OsString>) -> Result<()> {
    let home = args.home.path()?;
    let settings = config::load(&config::place_here(named)).and_then(|values| config::resolve(&values, &[]));
    let mut findings =
        vec![clock(), processor(), numerics()?, devices(), memory(), disk(&home), files(), key(&home)];
    findings.push(configured(&settings));
    let settings = settings.unwrap_or_default();
    findings.extend(match node(&home)? {
        Some(of_the_node) => of_the_node,
        None => {
            let advice = "start one with `shoal join`";
            let not_running = Finding { what: "node", well: true, found: "not running".into(), advice };
            vec![not_running, ports(&settings), module(&[])]
        }
    });
    let ill = findings.iter().filter(|finding| !finding.well).count();
    if let Some(file) = &args.report {
        let text = serde_json::to_string_pretty(&report(&findings, &settings))?;
        fs::write(file, text + "\n").map_err(|e| shard::Error::io(file, e))?;
    }
    if args.json {
        let checks: Vec<Value> = findings.iter().map(Finding::to_json).collect();
        output::json_line(&json!({ "ok": ill == 0, "checks": checks }))?;
    } else {
        for finding in &findings {
            say!("{:10} {:4} {}", finding.what, if finding.well { "ok" } else { "!!" }, finding.found);
            if !finding.well {
                say!("{:15} {}", "", finding.advice);
            }
        }
        if let Some(file) = &args.report {
            say!("\nThe report is in {}; it holds no names, addresses or places.", file.display());
        }
    }
    match ill {
        0 => Ok(()),
        1 => Err(Error::Failed("one thing needs attention, see above".into())),
        n => Err(Error::Failed(format!("{n} things need attention, see above"))),
    }
}

/// What a bug report needs. Of the settings only which ones were changed, and where.
fn report(findings: &[Finding], settings: &[config::Resolved]) -> Value {
    let changed = settings.iter().filter(|row| row.source != Source::Default);
    let changed: serde_json::Map<String, Value> =
        changed.map(|row| (row.key.clone(), json!(row.source.name()))).collect();
    json!({
        "shoal": env!("CARGO_PKG_VERSION"),
        "system": std::env::consts::OS,
        "machine": std::env::consts::ARCH,
        "instruction_sets": Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>(),
        "processors": processors(),
        "settings_changed": changed,
        "checks": findings.iter().map(Finding::to_json).collect::<Vec<_>>(),
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> Finding {
    let sets: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    let fast = sets.len() > 1;
    Finding {
        what: "processor",
        well: fast,
        found: format!("{} threads, instruction sets {}", processors(), sets.join(", ")),
        advice: "no vector instructions that Shoal knows: it works, ten times slower than most",
    }
}

fn files() -> Finding {
    let limit = confine::open_files();
    let found = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("{limit} may be open"));
    let advice = "raise the limit of open files: ulimit -n 4096, or LimitNOFILE= in a systemd unit";
    Finding { what: "files", well: limit.is_none_or(|limit| limit >= LEAST_FILES), found, advice }
}

fn configured(settings: &Result<Vec<config::Resolved>>) -> Finding {
    let advice = "a setting cannot be used; `shoal config show` says which and why";
    match settings {
        Ok(rows) => {
            let changed = rows.iter().filter(|row| row.source != Source::Default).count();
            Finding { what: "settings", well: true, found: format!("{changed} changed"), advice }
        }
        Err(_) => Finding { what: "settings", well: false, found: "a mistake".into(), advice },
    }
}

/// Whether the ports that a node would open are free, and the protocols there.
fn ports(settings: &[config::Resolved]) -> Finding {
    let advice = "no such socket can be opened: another program may hold the port; choose one with --listen";
    let wanted = settings.iter().find(|row| row.key == "join.listen").map(|row| row.values.as_slice());
    let wanted: Vec<&String> =
        wanted.unwrap_or_default().iter().filter(|text| text.starts_with('/')).collect();
    let mut taken = Vec::new();
    for (udp, address) in wanted.iter().filter_map(|text| socket(text)) {
        if !opens(udp, address) {
            taken.push(format!("{} {}", if udp { "udp" } else { "tcp" }, address.port()));
        }
    }
    if !taken.is_empty() {
        return Finding { what: "ports", well: false, found: format!("taken: {}", taken.join(", ")), advice };
    }
    let any = |version: &str, udp| {
        let address: IpAddr = if version == "IPv4" { [0; 4].into() } else { [0u16; 8].into() };
        opens(udp, SocketAddr::new(address, 0))
    };
    let there: Vec<&str> = ["IPv4", "IPv6"].into_iter().filter(|v| any(v, true) && any(v, false)).collect();
    let found = if there.is_empty() { "neither IPv4 nor IPv6".into() } else { there.join(" and ") };
    Finding { what: "ports", well: !there.is_empty(), found, advice }
}

fn opens(udp: bool, address: SocketAddr) -> bool {
    if udp { UdpSocket::bind(address).is_ok() } else { TcpListener::bind(address).is_ok() }
}

/// `/ip4/0.0.0.0/udp/4001/quic-v1` as (is it UDP, where).
fn socket(multiaddress: &str) -> Option<(bool, SocketAddr)> {
    let parts: Vec<&str> = multiaddress.split('/').collect();
    let [_, "ip4" | "ip6", ip, transport @ ("tcp" | "udp"), port, ..] = parts.as_slice() else { return None };
    Some((*transport == "udp", SocketAddr::new(ip.parse().ok()?, port.parse().ok()?)))
}

fn clock() -> Finding {
    let unix_s = crate::clock::unix_s();
    let well = unix_s >= LEAST_UNIX_S;
    let found = if well { "plausible".to_owned() } else { format!("{unix_s} s since 1970") };
    Finding { what: "clock", well, found, advice: "set the system's clock: announcements are numbered by it" }
}

fn numerics() -> Result<Finding> {
    let isa = Isa::detect();
    let checks = golden::check(isa)?;
    let passed = checks.iter().filter(|check| check.passed()).count();
    let found = format!("{} ({passed} of {} golden hashes)", isa.name(), checks.len());
    let advice =
        "this machine computes other bits and is announced as class approx; `shoal selftest` shows where";
    Ok(Finding { what: "numerics", well: passed == checks.len(), found, advice })
}

/// The GPUs that `--device gpu:N` names, and what their workers are not kept from.
fn devices() -> Finding {
    // A driver that hangs is found out, not waited for.
    let (tell, told) = mpsc::sync_channel(1);
    thread::spawn(move || tell.send(executor::gpus()));
    let Ok(gpus) = told.recv_timeout(DRIVERS) else {
        let found = format!("a driver did not answer within {} s", DRIVERS.as_secs());
        let advice = "compute on the processor (--device cpu), and update the GPU's driver";
        return Finding { what: "devices", well: false, found, advice };
    };
    let found: Vec<String> = (0..).zip(gpus).map(|(n, name): (u32, _)| format!("gpu:{n} {name}")).collect();
    let found = match (found.is_empty(), cfg!(feature = "gpu")) {
        (true, false) => "the processor; GPUs need a build with `--features gpu`".into(),
        (true, true) => "the processor; no GPU has a driver here".into(),
        (false, _) => format!(
            "{}; a worker on one has no filter of system calls and no limit of address space, which its driver needs",
            found.join(", ")
        ),
    };
    Finding { what: "devices", well: true, found, advice: "" }
}

fn memory() -> Finding {
    let advice = "close programs, or serve fewer layers (--max-layers) and sessions (--memory)";
    match crate::memory::available_bytes() {
        Some(bytes) => Finding {
            what: "memory",
            well: bytes >= LEAST_MEMORY,
            found: format!("{} available", human_bytes(bytes)),
            advice,
        },
        None => Finding { what: "memory", well: true, found: "unknown on this system".into(), advice },
    }
}

fn disk(home: &Path) -> Finding {
    let advice = "free some space or choose another data folder with --home";
    let there = home.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match disk_files::free_bytes(there) {
        Ok(bytes) => Finding {
            what: "disk",
            well: bytes >= LEAST_DISK,
            found: format!("{} free", human_bytes(bytes)),
            advice,
        },
        Err(e) => Finding { what: "disk", well: false, found: e.to_string(), advice },
    }
}

fn key(home: &Path) -> Finding {
    let advice = "only its owner may read the node's key: chmod 600 the file identity.key in the data folder";
    let found = |well, found: &str| Finding { what: "key", well, found: found.to_owned(), advice };
    if fs::metadata(home).is_ok_and(|folder| !is_owners_only(&folder)) {
        let advice = "others can look into the data folder: `shoal join` closes it, or chmod 700 it";
        return Finding { what: "key", well: false, found: "in an open folder".into(), advice };
    }
    match fs::metadata(home.join("identity.key")) {
        Ok(file) if is_owners_only(&file) => found(true, "private"),
        Ok(_) => found(false, "readable by others"),
        Err(_) => found(true, "none yet; `shoal join` makes one"),
    }
}

/// The kernel module for local networks: whether it is there and may be opened, and whether it would help as the node's links were
/// measured.
fn module(links: &[LinkReport]) -> Finding {
    let advice = "it is there and cannot be used: `sudo usermod -aG shoal $USER` and log in again, or raise `ulimit -l`";
    let (well, found) = match p2p::module_state() {
        Ok(()) => {
            let measured = links.iter().find(|known| known.module_helps.is_some());
            let best = links.iter().find(|known| known.module_helps == Some(true)).or(measured);
            let helps = match best {
                Some(LinkReport { link, module_helps: Some(true), .. }) => format!("it would help: {link}"),
                Some(LinkReport { link, .. }) => format!("it would not help: {link}"),
                None => "`shoal join --link auto` measures whether it would help".to_owned(),
            };
            (true, format!("loaded and open to you; {helps}"))
        }
        // Nothing needs it.
        Err(why) => (!Path::new("/dev/shoal_lan").exists(), format!("not used: {why}")),
    };
    Finding { what: "module", well, found, advice }
}

/// What the running node says; `None` when none runs.
fn node(home: &Path) -> Result<Option<Vec<Finding>>> {
    if !control::socket(home).exists() {
        return Ok(None);
    }
    let status: StatusReport = match runtime()?.block_on(control::one(home, &Question::Status)) {
        Ok(status) => status,
        // A file left behind by a node that was killed.
        Err(Error::Usage(_)) => return Ok(None),
        Err(e) => {
            let advice = "the node does not answer: stop it and start it again with `shoal join`";
            return Ok(Some(vec![Finding { what: "node", well: false, found: e.to_string(), advice }]));
        }
    };
    let NetworkStatus { reached, addresses, peers, refused_versions: refused, .. } = &status.network;
    let relayed = addresses.iter().filter(|address| address.contains("p2p-circuit")).count();
    let reachability = status.process.reachability.as_str();
    let (sandbox, computes_nothing) = (&status.model.memory, status.model.layers.loaded.is_empty());
    let advice = "start one with `shoal join`";
    Ok(Some(vec![
        Finding { what: "node", well: true, found: "running".into(), advice },
        Finding {
            what: "ports",
            well: !addresses.is_empty(),
            found: format!("{} addresses, {relayed} of them through relays", addresses.len()),
            advice: "nothing is listening: another program may hold the port, choose one with --listen",
        },
        Finding {
            what: "peers",
            well: *peers > 0,
            found: format!("{peers} connected"),
            advice: "no peer was found: ask a friend for `shoal invite` and join with the code",
        },
        module(&status.network.links),
        Finding {
            what: "versions",
            well: refused.is_empty(),
            found: match refused.last() {
                None => format!("every peer met speaks version {}", p2p::VERSION),
                Some(last) => {
                    format!("{} nodes of this swarm were refused; the last one: {}", refused.len(), last.why)
                }
            },
            advice: "nodes of different versions cannot work together: install the same release on all of them",
        },
        Finding {
            what: "reachable",
            well: reachability != "private" || relayed > 0,
            found: if relayed > 0 && reachability == "private" {
                "through a relay".into()
            } else if reachability == "unknown" {
                reached.why.clone()
            } else {
                reachability.to_owned()
            },
            advice: "others cannot dial this machine and no relay was found: forward a port and name it with --listen, or \
                     join with an invite of a node that can be reached",
        },
        holders(&status.models),
        Finding {
            what: "sandbox",
            // Who only asks has no process that computes.
            well: sandbox.sandboxed || computes_nothing,
            found: match (sandbox.sandboxed, sandbox.landlocked) {
                (false, _) if computes_nothing => "no model is loaded here",
                (true, true) => "on",
                (true, false) => "on, system calls are filtered; the kernel has no Landlock behind that",
                (false, _) => confine::WITHOUT_FILTER,
            }
            .into(),
            advice: "this system cannot take the network from the process that computes: use only model files you trust",
        },
    ]))
}

/// How many nodes are the only holders of a layer. A small swarm cannot do without them, so it is no fault; `status`
/// names them, the doctor's report must not.
fn holders(models: &[ModelReport]) -> Finding {
    let sole = models.iter().flat_map(|model| &model.bares);
    let layers: Vec<String> = sole.map(|one| super::look::words(&one.layers)).collect();
    let found = match layers.len() {
        0 => "no node is the only holder of a layer".to_owned(),
        1 => format!("if one node leaves, layers {} have no holder; `shoal status` names it", layers[0]),
        n => format!(
            "{n} nodes are the only holders of layers ({}): if one leaves, its layers have no holder; `shoal status` \
             names them",
            layers.join("; ")
        ),
    };
    Finding { what: "holders", well: true, found, advice: "join one more node that may choose its layers" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::SoleHolder;

    #[test]
    fn the_only_holders_of_layers_are_counted_and_not_named() {
        let found = |bares: &[SoleHolder]| {
            holders(&[ModelReport { bares: bares.to_vec(), ..ModelReport::default() }]).found
        };
        assert_eq!(found(&[]), "no node is the only holder of a layer");
        let one = SoleHolder { node: "abcdef".into(), own: false, layers: vec!["2..5".into()] };
        let said = found(std::slice::from_ref(&one));
        assert!(said.contains("layers 2..5 have no holder") && !said.contains("abcdef"), "{said}");
        assert!(
            found(&[one.clone(), one]).starts_with("2 nodes are the only holders of layers (2..5; 2..5)")
        );
    }

    #[test]
    fn a_taken_port_is_found() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = format!("/ip4/127.0.0.1/tcp/{}", held.local_addr().unwrap().port());
        let row = |values: Vec<String>| config::Resolved {
            key: "join.listen".into(),
            values,
            source: Source::File,
            env: None,
            about: String::new(),
        };
        let found = ports(&[row(vec![listen])]);
        assert!(!found.well && found.found.starts_with("taken: tcp "), "{}", found.found);
        assert!(ports(&[row(vec!["(any port)".into()])]).well);
        assert_eq!(socket("/ip6/::1/udp/9/quic-v1"), Some((true, "[::1]:9".parse().unwrap())));
        assert_eq!(socket("/dns4/x/tcp/9"), None);
    }
}
