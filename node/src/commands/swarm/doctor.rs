//! `shoal doctor`: is this machine fit to join, and what to do where it is not? The report names no address and no
//! file, so that it can be shown to others.

use std::{fs, path::Path, time::SystemTime};

use serde_json::{Value, json};
use shard::{golden, kernels::Isa};

use super::runtime;
use crate::{
    Error, Result,
    cli::swarm::AskArgs,
    control::{self, Question},
    output::{self, human_bytes, say},
};

/// Less than this and the default model's sessions do not fit beside the system.
const LEAST_MEMORY: u64 = 512 << 20;
/// Less than this and nothing can be pulled.
const LEAST_DISK: u64 = 1 << 30;
/// The day this was written: a clock before it is wrong.
const LEAST_UNIX_S: u64 = 1_795_000_000;

struct Finding {
    what: &'static str,
    well: bool,
    found: String,
    advice: &'static str,
}

pub(in crate::commands) fn doctor(args: AskArgs) -> Result<()> {
    let home = args.home.path()?;
    let mut findings = vec![clock(), processor()?, memory(), disk(&home), key(&home)];
    findings.extend(node(&home)?);
    let ill = findings.iter().filter(|finding| !finding.well).count();
    if args.json {
        let lines: Vec<Value> = findings
            .iter()
            .map(|f| json!({ "check": f.what, "ok": f.well, "found": f.found, "advice": if f.well { "" } else { f.advice } }))
            .collect();
        output::json_line(&json!({ "ok": ill == 0, "checks": lines }))?;
    } else {
        for finding in &findings {
            say!("{:10} {:4} {}", finding.what, if finding.well { "ok" } else { "!!" }, finding.found);
            if !finding.well {
                say!("{:15} {}", "", finding.advice);
            }
        }
    }
    match ill {
        0 => Ok(()),
        1 => Err(Error::Failed("one thing needs attention".into())),
        n => Err(Error::Failed(format!("{n} things need attention"))),
    }
}

fn clock() -> Finding {
    let unix_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let well = unix_s >= LEAST_UNIX_S;
    let found = if well { "plausible".to_owned() } else { format!("{unix_s} s since 1970") };
    Finding { what: "clock", well, found, advice: "set the system's clock: announcements are numbered by it" }
}

fn processor() -> Result<Finding> {
    let isa = Isa::detect();
    let checks = golden::check(isa)?;
    let passed = checks.iter().filter(|check| check.passed()).count();
    let found = format!("{} ({passed} of {} golden hashes)", isa.name(), checks.len());
    let advice =
        "this machine computes other bits and is announced as class approx; `shoal selftest` shows where";
    Ok(Finding { what: "numerics", well: passed == checks.len(), found, advice })
}

fn memory() -> Finding {
    let advice = "close programs, or serve fewer layers (--max-layers) and sessions (--memory)";
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    match available {
        Some(kib) => {
            let bytes = kib << 10;
            Finding {
                what: "memory",
                well: bytes >= LEAST_MEMORY,
                found: format!("{} available", human_bytes(bytes)),
                advice,
            }
        }
        None => Finding { what: "memory", well: true, found: "unknown on this system".into(), advice },
    }
}

fn disk(home: &Path) -> Finding {
    let advice = "free some space or choose another data folder with --home";
    let there = home.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(stat) => {
            let bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
            Finding {
                what: "disk",
                well: bytes >= LEAST_DISK,
                found: format!("{} free", human_bytes(bytes)),
                advice,
            }
        }
        Err(e) => Finding { what: "disk", well: false, found: e.to_string(), advice },
    }
}

fn key(home: &Path) -> Finding {
    use std::os::unix::fs::PermissionsExt;
    let advice = "only its owner may read the node's key: chmod 600 the file identity.key in the data folder";
    let found = |well, found: &str| Finding { what: "key", well, found: found.to_owned(), advice };
    match fs::metadata(home.join("identity.key")) {
        Ok(file) if file.permissions().mode() & 0o077 == 0 => found(true, "private"),
        Ok(_) => found(false, "readable by others"),
        Err(_) => found(true, "none yet; `shoal join` makes one"),
    }
}

/// What the running node says, when one runs.
fn node(home: &Path) -> Result<Vec<Finding>> {
    let advice = "start one with `shoal join`";
    if !control::socket(home).exists() {
        return Ok(vec![Finding { what: "node", well: true, found: "not running".into(), advice }]);
    }
    let status = match runtime()?.block_on(control::one(home, &Question::Status)) {
        Ok(status) => status,
        Err(e) => {
            let advice = "the node does not answer: stop it and start it again with `shoal join`";
            return Ok(vec![Finding { what: "node", well: false, found: e.to_string(), advice }]);
        }
    };
    let peers = status["peers"].as_u64().unwrap_or(0);
    let listening = status["addresses"].as_array().map_or(0, Vec::len);
    let reachability = status["reachability"].as_str().unwrap_or("unknown").to_owned();
    Ok(vec![
        Finding { what: "node", well: true, found: "running".into(), advice },
        Finding {
            what: "ports",
            well: listening > 0,
            found: format!("{listening} addresses"),
            advice: "nothing is listening: another program may hold the port, choose one with --listen",
        },
        Finding {
            what: "peers",
            well: peers > 0,
            found: format!("{peers} connected"),
            advice: "nobody was found: ask a friend for `shoal invite` and join with the code",
        },
        Finding {
            what: "reachable",
            well: reachability != "private",
            found: reachability,
            advice: "others cannot dial this machine; it works through relays. A forwarded port makes it direct",
        },
    ])
}
