//! Any checkpoint: what a publisher's folder holds must convert to a readable file or to an error. The input is
//! `config.json`, `tokenizer.json`, `tokenizer_config.json` and the safetensors header (JSON, without its length),
//! separated by zero bytes; the tensors' data are 64 KiB of zeros.
#![no_main]

use std::{fs, path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use shard::{
    convert::{Options, convert},
    gguf::Gguf,
    quant,
    tokenizer::Tokenizer,
};
use tempfile::TempDir;

/// Bytes of tensor data behind the header.
const DATA: usize = 1 << 16;

/// In memory where the system has such a folder: a finished file is synced, which a disk makes slow.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    TempDir::new_in(memory).or_else(|_| TempDir::new()).expect("a temporary folder")
});

fuzz_target!(|bytes: &[u8]| {
    let folder = FOLDER.path();
    let mut parts = bytes.split(|&byte| byte == 0);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        put(folder, name, parts.next().unwrap_or_default());
    }
    let header = parts.next().unwrap_or_default();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + DATA, 0);
    put(folder, "model.safetensors", &file);
    let output = folder.join("output.gguf");
    let options = Options::new(&quant::Q8_0, 1);
    let Ok(converted) = convert(folder, &output, &options, &|done, total| assert!(done <= total)) else {
        return;
    };
    let gguf = Gguf::open(&output).expect("what was written can be read");
    assert_eq!((gguf.tensors().len(), gguf.file_len()), (converted.tensors, converted.bytes));
    assert_eq!(gguf.metadata().architecture().ok(), Some(converted.architecture.as_str()));
    if let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) {
        let _ = tokenizer.encode_prompt("Hello world\u{e9}").map(|ids| tokenizer.decode(&ids));
    }
});

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("room for a small file");
}
