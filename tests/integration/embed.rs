//! Shoal in other programs: the header for C and what C programs get, and the Python package.
//!
//! Both answer as `shoal run` does, token for token. Without a C compiler or `python3` the part is named and skipped; with
//! `SHOAL_CLIENTS=required` that is a failure.

use std::{
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::clients::{python, required};
use harness::{Shoal, binary, root};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Prompt, seed, temperature and most tokens.
const ASKED: [(&str, u64, f32, u32); 3] = [
    ("Tell me a story about a fox and a lantern", 0, 0.0, 48),
    ("Tell me a story about a fox and a lantern", 7, 0.9, 48),
    ("Who lives in the river?", 3, 0.7, 400),
];

/// A library of the crates under `node/embed`, which cargo built beside this test.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a program");
    test.parent().expect("a folder").join(format!("{DLL_PREFIX}{name}{DLL_SUFFIX}"))
}

/// What `shoal run` answers to [`ASKED`], with what was asked.
fn answers() -> Vec<Value> {
    let shoal = Shoal::new();
    let answer = |(prompt, seed, temperature, max_tokens): (&str, u64, f32, u32)| {
        let [seed_word, heat, most] = [seed.to_string(), temperature.to_string(), max_tokens.to_string()];
        let args = ["run", "--json", "--seed", &seed_word, "--temperature", &heat, "-n", &most, prompt];
        let said = shoal.json(args, "");
        json!({
            "prompt": prompt, "seed": seed, "temperature": temperature, "max_tokens": max_tokens,
            "text": said["text"], "finish_reason": said["finish_reason"],
        })
    };
    ASKED.map(answer).to_vec()
}

/// Runs a tool; `None`, which is said, where it is not here.
fn tool(command: &mut Command) -> Option<Output> {
    let ran = harness::output(command);
    if ran.is_err() {
        let name = command.get_program().to_string_lossy().into_owned();
        assert!(!required(), "{name} is not installed");
        crate::clients::say(&format!("skipped: a part of embedding is not tested, missing: {name}"));
    }
    ran.ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_header_is_what_the_code_says() {
    let embed = root().join("node/embed");
    let config = cbindgen::Config::from_file(embed.join("cbindgen.toml")).expect("a configuration");
    let made = cbindgen::Builder::new().with_src(embed.join("src/c.rs")).with_config(config).generate();
    let mut bytes = Vec::new();
    made.expect("a header").write(&mut bytes);
    let made = String::from_utf8(bytes).expect("UTF-8");
    let file = embed.join("include/shoal.h");
    if std::env::var_os("SHOAL_WRITE").is_some() {
        fs::write(&file, &made).expect("the header is written");
    }
    let there = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        there, made,
        "include/shoal.h is old: SHOAL_WRITE=1 cargo test -p shoal-tests --test integration -- embed::the_header"
    );
}

/// A program that loads the library shares its names with it, so there are no others than the header's.
#[cfg(target_os = "linux")]
#[test]
fn the_library_shows_the_names_of_the_header_alone() {
    let Some(output) = tool(Command::new("nm").args(["-D", "--defined-only"]).arg(library("shoal"))) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    let listed = String::from_utf8(output.stdout).expect("UTF-8");
    let mut shown: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let header = fs::read_to_string(root().join("node/embed/include/shoal.h")).expect("the header");
    let declared = header.lines().filter(|line| !line.starts_with([' ', '#', '/'])).filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        before.rsplit([' ', '*']).next().filter(|name| name.starts_with("shoal_"))
    });
    let mut declared: Vec<&str> = declared.collect();
    shown.sort_unstable();
    declared.sort_unstable();
    assert_eq!(shown, declared);
    assert!(shown.len() >= 8);
}

/// Compiles a program against header and library; `None` where there is no compiler.
fn compiled(source: &Path, folder: &Path) -> Option<PathBuf> {
    let (program, library) = (folder.join("program"), library("shoal"));
    let beside = library.parent().expect("a folder");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    cc.args([
        "-std=c99",
        "-D_POSIX_C_SOURCE=200809L",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-pthread",
        "-I",
    ]);
    cc.arg(root().join("node/embed/include")).arg("-o").arg(&program).arg(source).arg(&library);
    cc.arg(format!("-Wl,-rpath,{}", beside.display()));
    let output = tool(&mut cc)?;
    assert!(output.status.success(), "{}", said(&output));
    Some(program)
}

#[test]
fn a_c_program_gets_the_text_of_shoal_run() {
    let folder = TempDir::new().expect("a folder");
    let Some(program) = compiled(&root().join("node/embed/examples/story.c"), folder.path()) else { return };
    for answer in answers() {
        let words = ["prompt", "seed", "temperature", "max_tokens"].map(|field| match &answer[field] {
            Value::String(text) => text.clone(),
            number => number.to_string(),
        });
        let output = harness::output(Command::new(&program).args(words)).expect("it starts");
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(text.strip_suffix('\n'), answer["text"].as_str(), "{answer}");
    }
    let missing =
        Command::new(&program).args(["Hi", "0", "0", "4", "no/such.gguf"]).output().expect("it starts");
    assert!(!missing.status.success() && said(&missing).contains("such.gguf"), "{}", said(&missing));
}

#[test]
fn what_a_c_program_does_wrong_is_an_error_and_other_threads_may_cancel() {
    let folder = TempDir::new().expect("a folder");
    let Some(program) = compiled(&root().join("tests/embed/edges.c"), folder.path()) else { return };
    let output = harness::output(&mut Command::new(program)).expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    // The header is C++ too.
    let mut cpp = Command::new("c++");
    cpp.args(["-x", "c++", "-fsyntax-only", "-Wall", "-Werror"])
        .arg(root().join("node/embed/include/shoal.h"));
    if let Some(output) = tool(&mut cpp) {
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn the_python_package_gets_the_text_of_shoal_run_and_stops_when_told() {
    let folder = TempDir::new().expect("a folder");
    let package = folder.path().join("shoal");
    fs::create_dir(&package).expect("a folder");
    // As a wheel lays it out; `.ci/run` makes one, and asks it the same.
    for file in ["__init__.py", "_shoal.pyi", "py.typed"] {
        let from = root().join("node/embed/python/python/shoal").join(file);
        fs::copy(from, package.join(file)).expect("a file of the package");
    }
    fs::copy(library("_shoal"), package.join("_shoal.abi3.so")).expect("the library was built");
    let (shoal, mut script) = (Shoal::new(), Command::new(python()));
    script.arg(root().join("tests/embed/embed.py")).arg(binary()).arg(folder.path());
    script.env("PYTHONDONTWRITEBYTECODE", "1").env("SHOAL_HOME", shoal.home());
    let Some(output) = tool(&mut script) else { return };
    assert!(output.status.success(), "{}", said(&output));
}
