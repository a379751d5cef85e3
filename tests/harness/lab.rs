//! Hosts of their own on one machine: network namespaces joined by virtual cables, some of them behind NAT.
//!
//! A [`Host`] is a process that does nothing but keep a network namespace alive; whatever shall run on the host is
//! started through `nsenter`. Nothing is named or mounted, so any number of labs run side by side and nothing is left
//! behind: when the keeper's input closes, by a drop or by the death of the test, the kernel takes the namespace, its
//! cables and its rules away.
//!
//! Needs Linux, root, `unshare` and `nsenter` (util-linux), `ip` (iproute2), and `nft` (nftables) for NAT.
//! [`missing`] says what is not there; `SHOAL_LAB=required` turns that into a failure.

use std::{
    ffi::OsStr,
    io::Write,
    process::{Child, Command, Stdio},
};

/// One host. Dropping it takes it off the network.
pub struct Host {
    keeper: Child,
}

/// How a router gives its hosts' packets the router's address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nat {
    /// A host's port is seen as the same port by every host outside: most home routers. Holes can be punched.
    Cone,
    /// Every connection is seen from another random port: peers cannot guess the port.
    Symmetric,
}

/// Why no lab can be built here, `None` when one can.
pub fn missing() -> Option<String> {
    static MISSING: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    MISSING.get_or_init(find_missing).clone()
}

fn find_missing() -> Option<String> {
    for (tool, package) in
        [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2"), ("nft", "nftables")]
    {
        let version = if tool == "ip" { "-V" } else { "--version" };
        let found = Command::new(tool).arg(version).output().is_ok_and(|said| said.status.success());
        if !found {
            return Some(format!("`{tool}` is not installed (package {package})"));
        }
    }
    let tried = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
    match tried {
        Ok(said) if said.status.success() => {}
        Ok(said) => return Some(String::from_utf8_lossy(&said.stderr).trim().to_owned()),
        Err(error) => return Some(error.to_string()),
    }
    let rules = "table ip probe {\nchain c {\ntype nat hook postrouting priority 100; masquerade\n}\n}\n";
    let mut nft = Command::new("unshare")
        .args(["--net", "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let _ = nft.stdin.take()?.write_all(rules.as_bytes());
    let said = nft.wait_with_output().ok()?;
    (!said.status.success())
        .then(|| format!("no masquerading: {}", String::from_utf8_lossy(&said.stderr).trim()))
}

/// Whether the test that calls this can be run; when it cannot, says so, or fails where labs are required.
pub fn permitted() -> bool {
    let Some(why) = missing() else { return true };
    let required = std::env::var_os("SHOAL_LAB").is_some_and(|value| value == "required");
    assert!(!required, "SHOAL_LAB=required, but {why}");
    println!("skipped, no network namespaces here: {why}");
    false
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// A host with a loopback interface and no other.
    pub fn new() -> Self {
        // `cat` says when the namespace is there, and ends with its input.
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo up && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut up = [0; 3];
        let mut stdout = keeper.stdout.take().expect("its output is piped");
        std::io::Read::read_exact(&mut stdout, &mut up).expect("a namespace is made");
        Self { keeper }
    }

    /// A command to be run on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg(program);
        command
    }

    /// Runs a line of words on this host; it must succeed.
    pub fn run(&self, line: &str) {
        self.feed(line, "");
    }

    /// What a command line of it prints.
    pub fn output(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let output =
            self.command(words.next().expect("a program")).args(words).output().expect("nsenter runs");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn feed(&self, line: &str, input: &str) {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a program"));
        let mut child = command
            .args(words)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("nsenter runs");
        // A command that does not read its input says why when it ends.
        let _ = child.stdin.take().expect("its input is piped").write_all(input.as_bytes());
        let said = child.wait_with_output().expect("it ends");
        assert!(said.status.success(), "{line}: {}", String::from_utf8_lossy(&said.stderr));
    }

    /// Lays a cable from an interface of this host to one of `far`; each with its addresses, as `10.0.0.1/24`.
    pub fn cable(&self, near_end: (&str, &[&str]), far: &Self, far_end: (&str, &[&str])) {
        let (here, there) = (self.keeper.id(), far.keeper.id());
        self.run(&format!(
            "ip link add {} netns {here} type veth peer name {} netns {there}",
            near_end.0, far_end.0
        ));
        for (host, (interface, addresses)) in [(self, near_end), (far, far_end)] {
            for address in addresses {
                // No other host has it: no need to wait until the kernel has asked around.
                let at_once = if address.contains(':') { "nodad" } else { "" };
                host.run(&format!("ip addr add {address} dev {interface} {at_once}"));
            }
            host.run(&format!("ip link set {interface} up"));
        }
    }

    /// Everything not on a cable of its own goes to `gateway`.
    pub fn default_route(&self, gateway: &str) {
        self.run(&format!("ip route add default via {gateway}"));
    }

    /// Sets one of the kernel's parameters below `/proc/sys/net`.
    fn set(&self, parameter: &str, value: &str) {
        self.feed(&format!("tee /proc/sys/net/{parameter}"), value);
    }

    /// Passes on packets that are for others.
    pub fn forward(&self) {
        self.set("ipv4/ip_forward", "1");
    }

    /// Makes it a home router whose uplink is the interface `wan`: packets leave with its address, and nothing comes in
    /// that was not asked for.
    pub fn nat(&self, wan: &str, nat: Nat) {
        self.forward();
        let how = match nat {
            Nat::Cone => "",
            Nat::Symmetric => "random,fully-random",
        };
        self.feed(
            "nft -f -",
            &format!(
                "table ip home {{
                    chain hide {{ type nat hook postrouting priority 100; oifname \"{wan}\" masquerade {how}; }}
                    chain own {{ type filter hook input priority 0; iifname \"{wan}\" ct state new drop; }}
                    chain inward {{ type filter hook forward priority 0; iifname \"{wan}\" ct state new drop; }}
                }}\n"
            ),
        );
    }

    /// Takes one of the two versions of IP away, loopback included.
    pub fn without(&self, version: u8) {
        match version {
            4 => self.run("ip -4 addr flush dev lo"),
            _ => ["all", "default"]
                .iter()
                .for_each(|which| self.set(&format!("ipv6/conf/{which}/disable_ipv6"), "1")),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
