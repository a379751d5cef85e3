//! What stands in for the values that a page leaves to its reader, and the files that it takes for granted.
//!
//! Models are *minnow* under names of their own, which makes them other models; registries, mirrors and catalogs of the
//! internet are one server on this machine.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use harness::{Shoal, binary, registry::Registry, root};
use p2p::{
    Identity,
    codec::{Rounding, Wire},
    wire::{
        announce::Class,
        receipt::{Chain, Equivocation, Grant, Leaf, Row, Terms},
    },
};
use scheduler::{LayerRange, ModelId, NodeId, SessionId, SessionKind};
use sha2::{Digest, Sha256};

/// What a page writes, and what is typed instead. `SITE` is the server of [`Site`], `ID` the id of the model that it has.
pub(super) const WORDS: &[(&str, &str)] = &[
    // A binary of the tests' profile.
    ("cargo run --release -- ", "shoal "),
    // Shapes and lengths that a test has the time for; minnow has 8 layers and a context of 1,024.
    ("--shape llama-1b", "--shape tiny"),
    ("--model llama-1b.gguf", "--model MODEL.gguf"),
    ("gemma3-1b --layers 6 --context 2048", "gemma3-1b --layers 2 --context 64"),
    ("moe-dense-first --layers 5", "moe-dense-first --layers 3"),
    ("--cuts 8,15,23", "--cuts 2,4,6"),
    ("--ctx 8192", "--ctx 512"),
    ("--ctx 2048", "--ctx 512"),
    ("--layers 8..16", "--layers 2..4"),
    ("--device gpu:0 --prompt-tokens 512", "--device gpu:0 --prompt-tokens 16 --decode-tokens 2 --runs 1"),
    ("tests/compare/gpu.sh", "PROMPT_TOKENS=16 DECODE_TOKENS=2 RUNS=1 tests/compare/gpu.sh"),
    // A script agrees to size and license beforehand.
    ("run smollm2 ", "run --yes smollm2 "),
    ("run hf.co/OWNER/NAME:Q4_K_M", "run --yes hf.co/me/mine-GGUF:Q8_0"),
    ("--model ollama://llama3.2:1b", "--yes --model ollama://mine"),
    ("model pull ", "model pull --yes "),
    ("catalog trust ", "catalog trust --yes "),
    ("smollm2", "story"),
    ("https://models.example", "SITE"),
    (
        "https://huggingface.co/ORG/REPO/resolve/main/FILE.gguf",
        "SITE/me/mine-GGUF/resolve/main/mine-Q8_0.gguf",
    ),
    ("4f3c0000000000000000000000000000000000000000000000000000000000aa", "ID"),
    // The port is one that is free.
    ("--api 127.0.0.1:7435", "--api 127.0.0.1:0"),
    // The library that cargo built for the tests lies where the release's would.
    ("cargo build --release -p shoal-embed", "ls target/release/libshoal.so"),
    // The archive's program is a script, and so packed in no time.
    ("release.sh dist", "release.sh dist bin/shoal"),
];

/// Names of models that a page's reader has on the list already.
pub(super) const LISTED: [&str; 3] = ["llama", "one", "two"];

/// The model of the binary under another name, which makes it another model.
fn story(flip: u8) -> Vec<u8> {
    let mut bytes = node::library::embedded_bytes().to_vec();
    let key = b"general.name";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("it has a name");
    // Key, u32 type, u64 length, text.
    bytes[at + key.len() + 12] ^= flip;
    bytes
}

/// The internet of a page.
pub(super) struct Site {
    registry: Registry,
    id: String,
}

impl Site {
    /// Has one model in the forms of Hugging Face and Ollama, and in a catalog whose author the user with the data folder
    /// `data` trusts.
    pub(super) fn start(data: &Path) -> Self {
        let model = story(0x20);
        let sha256 = Sha256::digest(&model).iter().map(|byte| format!("{byte:02x}")).collect();
        let id = blake3::hash(&model).to_hex().to_string();
        let registry = Registry::start(model.clone(), sha256, 0, 0);
        let author = Shoal::new();
        let [file, list, key] = ["story.gguf", "catalog.txt", "key"].map(|name| author.home().join(name));
        fs::write(&file, &model).expect("a file");
        let text = |path: &PathBuf| path.to_str().expect("UTF-8").to_owned();
        let mirror = format!("{}/me/mine-GGUF/resolve/main/mine-Q8_0.gguf", registry.url());
        let add = ["model", "catalog", "add", &text(&file), "--to", &text(&list), "--key", &text(&key)];
        author.ok([&add[..], &["--license", "MIT", "--mirror", &mirror]].concat(), "");
        let home = [("SHOAL_HOME", data.to_str().expect("UTF-8"))];
        let mut trust = Command::new(binary());
        trust.args(["model", "catalog", "trust", "--yes"]).arg(&list).envs(home);
        assert!(harness::output(&mut trust).expect("shoal starts").status.success());
        registry.publish("/catalog.txt", fs::read(&list).expect("it was written"));
        Self { registry, id }
    }

    /// Its address.
    pub(super) fn url(&self) -> String {
        self.registry.url()
    }

    /// `line` with the addresses and ids that hold here.
    pub(super) fn told(&self, line: &str) -> String {
        line.replace("SITE", &self.registry.url()).replace("ID", &self.id)
    }
}

/// Lays out what a page takes for granted in the working folder of its reader: the repository, models, texts, a proof.
pub(super) fn lay_out(home: &Path, data: &Path) {
    let entries = fs::read_dir(root()).expect("the repository");
    for entry in entries.map(|entry| entry.expect("an entry")) {
        let name = entry.file_name();
        // What commands write to stays the repository's own; the desktop's settings are in the last one.
        if !["target", ".git", ".config"].contains(&name.to_str().unwrap_or_default()) {
            symlink(entry.path(), home.join(name)).expect("a link");
        }
    }
    let release = home.join("target/release");
    fs::create_dir_all(&release).expect("a folder");
    symlink(binary(), release.join("shoal")).expect("a link");
    symlink(crate::embed::library("shoal"), release.join("libshoal.so")).expect("a link");
    symlink(root().join("tests/data/hf/qwen2"), home.join("Qwen2.5-0.5B-Instruct")).expect("a link");
    for (name, flip) in [("MODEL.gguf", 0), ("llama.gguf", 1), ("one.gguf", 2), ("two.gguf", 4)] {
        fs::write(home.join(name), story(flip)).expect("a file");
    }
    let line =
        "The little fox carried a lantern through the snow, and the owl told her where the river was. ";
    fs::write(home.join("book.txt"), line.repeat(20)).expect("a file");
    fs::write(home.join("letter.txt"), line).expect("a file");
    // A program in an archive is packed and unpacked as it is, whatever its size.
    let program = home.join("bin/shoal");
    fs::create_dir(home.join("bin")).expect("a folder");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", binary().display())).expect("a file");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    let proofs = data.join("proofs");
    fs::create_dir_all(&proofs).expect("a folder");
    fs::write(proofs.join("1f2e3d4c5b6a7988.proof"), proof()).expect("a file");
}

/// The proof that a node signed two outputs in one place.
fn proof() -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() as u32;
    let terms = Terms {
        session: SessionId::numbered(1),
        requester: NodeId::numbered(7),
        model: ModelId::new([3; 32]),
        layers: LayerRange::new(2, 4).expect("two layers"),
        hidden: 2,
        class: Class::D1,
        rounding: Rounding::NONE,
        kind: SessionKind::DEFAULT,
        inner: false,
    };
    let liar = Identity::from_seed([1; 32]);
    let signed = |value: f32| {
        let row = [value.to_le_bytes(), value.to_le_bytes()].concat();
        let row = Row::of(Wire::Raw, &row);
        let mut chain = Chain::new(&terms, Grant::new(now, 1), 1, 4);
        chain.push(&Leaf { input: row, output: row, inner: [0; 32] }).expect("there is room");
        chain.conclude(&liar).expect("a row")
    };
    Equivocation::new(liar.node(), signed(1.0), signed(2.0)).expect("a contradiction").encode()
}
