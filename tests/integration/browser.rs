//! The page in a real browser: runs `tests/browser/run.mjs`, which drives Debian's Chromium against a fake node.
//!
//! It needs `node`, `chromium` and the two packages of `tests/browser/package.json` (`npm ci`). Where one is missing it says
//! so and skips, unless `SHOAL_BROWSER=required` is set.

use std::{io::Write, process::Command};

#[test]
fn the_page_works_in_a_real_browser() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/browser");
    let required = std::env::var("SHOAL_BROWSER").is_ok_and(|value| value == "required");
    let Ok(output) = Command::new("node").arg("run.mjs").current_dir(folder).output() else {
        assert!(!required, "node is not installed");
        return say("skipped: the page is not tested in a browser, missing: node");
    };
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for line in said.lines().filter(|line| line.starts_with("skipped:")) {
        say(line);
    }
}

/// Past the test runner, which keeps to itself what passing tests print.
fn say(line: &str) {
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
