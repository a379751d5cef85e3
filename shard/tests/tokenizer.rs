//! The tokenizer against reference implementations: published vocabularies where they are at hand, and small ones
//! of our own with ids computed by `tokenizers` and `sentencepiece` (data/tokenizer/make.py).

use std::path::{Path, PathBuf};

use shard::{
    gguf::Gguf,
    tokenizer::{Encode, Tokenizer},
};

/// Published vocabularies lie beside the repository, not in it.
fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/tokenizers")
}

fn open(path: &Path) -> shard::Result<Tokenizer> {
    Tokenizer::from_gguf(Gguf::open(path)?.metadata())
}

#[test]
fn published_vocabularies_agree_on_every_string() {
    let Ok(folder) = std::fs::read_dir(published()) else {
        println!("skipped: no published vocabularies in {}", published().display());
        return;
    };
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    files.sort();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let tokenizer = match open(&path) {
            Ok(tokenizer) => tokenizer,
            Err(shard::Error::Unsupported { what }) if what.starts_with("tokenizer bert") => {
                println!("skipped: {name}: {what}");
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let text = std::fs::read_to_string(format!("{}.inp", path.display())).unwrap();
        let expected = std::fs::read_to_string(format!("{}.out", path.display())).unwrap();
        let strings: Vec<&str> = text.split_terminator("\n__ggml_vocab_test__\n").collect();
        assert_eq!(strings.len(), expected.lines().count(), "{name}");
        for (text, line) in strings.iter().zip(expected.lines()) {
            let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, Encode::PLAIN).unwrap(), ids, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids), *text, "{name}");
        }
        println!("{name}: {} strings", strings.len());
    }
}
