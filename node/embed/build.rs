//! Leaves the names of `include/shoal.h` as the only ones that the library for C shows: those of its parts would meet others
//! of the same names in the program that loads it.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
