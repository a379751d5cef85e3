//! Makes the binary smaller where this machine's linker and C library can.
//!
//! Functions with equal instructions become one, where the linker finds them (LLD does, which `rustc` brings for x86-64
//! Linux): 1 MB. Relocations are packed where the C library reads packed ones (glibc from 2.36 on): 2 MB. With
//! `SHOAL_PORTABLE` set they stay as older systems read them, for archives that travel.

use std::{env, fs, path::Path, process::Command};

/// The first glibc that reads packed relocations: its minor version.
const SINCE: u32 = 36;

fn main() {
    println!("cargo:rerun-if-env-changed=SHOAL_PORTABLE");
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let gnu = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    // Of another machine's linker and library nothing is known.
    let here = env::var("HOST").is_ok_and(|host| is("TARGET", &host));
    if !(gnu && here) {
        return;
    }
    if links_with("-Wl,--icf=all") {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
    if env::var_os("SHOAL_PORTABLE").is_none() && reads_packed() {
        // A linker that does not know it says so and goes on.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether a program can be linked with `argument`: a linker that does not know it may end there.
fn links_with(argument: &str) -> bool {
    let (Some(rustc), Some(folder)) = (env::var_os("RUSTC"), env::var_os("OUT_DIR")) else { return false };
    let source = Path::new(&folder).join("empty.rs");
    if fs::write(&source, "fn main() {}").is_err() {
        return false;
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut command = Command::new(rustc);
    command.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        command.arg(format!("-Clinker={linker}"));
    }
    command.arg(format!("-Clink-arg={argument}")).arg("--out-dir").arg(&folder).arg(&source);
    command.output().is_ok_and(|linked| linked.status.success())
}

fn reads_packed() -> bool {
    let Ok(said) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else { return false };
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.trim().strip_prefix("glibc 2.").map(str::parse::<u32>);
    version.is_some_and(|minor| minor.is_ok_and(|minor| minor >= SINCE))
}
