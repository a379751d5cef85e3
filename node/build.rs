//! Packs the binary's relocations where this machine's C library reads packed ones (glibc from 2.36 on): 2 MB less to
//! load. With `SHOAL_PORTABLE` set they stay as older systems read them, for archives that travel.

use std::{env, process::Command};

/// The first glibc that reads them: its minor version.
const SINCE: u32 = 36;

fn main() {
    println!("cargo:rerun-if-env-changed=SHOAL_PORTABLE");
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let gnu = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    // Of another machine's library nothing is known.
    let here = env::var("HOST").is_ok_and(|host| is("TARGET", &host));
    if gnu && here && env::var_os("SHOAL_PORTABLE").is_none() && reads_packed() {
        // A linker that does not know it says so and goes on.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn reads_packed() -> bool {
    let Ok(said) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else { return false };
    let said = String::from_utf8_lossy(&said.stdout);
    let version = said.trim().strip_prefix("glibc 2.").map(str::parse::<u32>);
    version.is_some_and(|minor| minor.is_ok_and(|minor| minor >= SINCE))
}
