//! Models that other programs stored on this machine: found where those programs keep them, linked and never copied.
//!
//! | program | where | how |
//! |---|---|---|
//! | Ollama | `$OLLAMA_MODELS`, `~/.ollama/models`, `/usr/share/ollama/.ollama/models` | a manifest names a blob |
//! | LM Studio | `~/.lmstudio/models`, `~/.cache/lm-studio/models` | `OWNER/REPOSITORY/FILE.gguf` |
//! | Hugging Face | `$HF_HUB_CACHE`, `$HF_HOME/hub`, `~/.cache/huggingface/hub` | `models--OWNER--NAME/snapshots/REVISION/FILE.gguf` |
//! | llama.cpp | `$LLAMA_CACHE`, `~/.cache/llama.cpp` | `FILE.gguf` |
//!
//! Limits: a file counts when it begins as a GGUF does; of a model in parts only the first is named.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::reference::{Reference, manifest, means};

/// Folders within folders that are looked into.
const MAX_DEPTH: usize = 6;
/// Most entries of folders that are looked at, per program.
const MAX_ENTRIES: usize = 20_000;
/// Longest manifest.
const MAX_MANIFEST: u64 = 1 << 20;
/// The host whose models Ollama names without one.
const OLLAMA_HOST: &str = "registry.ollama.ai";
/// How a GGUF begins.
const MAGIC: &[u8; 4] = b"GGUF";

/// A model that another program stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which program, as people call it.
    pub program: &'static str,
    /// What that program calls it, as a name of `shoal model list` may be.
    pub name: String,
    /// Whose it is and what it is called in the registry that it came from, where the program keeps that.
    pub repository: Option<(String, String)>,
    /// Which file of that it is: a file's name without `.gguf`, Ollama's tag.
    pub file: String,
    /// Its file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

/// Where programs keep models: a program's folders, in the order in which it looks.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Of Ollama.
    pub ollama: Vec<PathBuf>,
    /// Of LM Studio.
    pub lm_studio: Vec<PathBuf>,
    /// Of Hugging Face's libraries.
    pub hugging_face: Vec<PathBuf>,
    /// Of llama.cpp.
    pub llama_cpp: Vec<PathBuf>,
}

impl Places {
    /// Where this user's programs keep them; `variable` looks up the environment.
    pub fn of_user(variable: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let home = variable("HOME").unwrap_or_default();
        let cache = variable("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let own = |name: &str, below: &str| variable(name).map(|path| path.join(below));
        let list =
            |own: [Option<PathBuf>; 2], usual: [PathBuf; 2]| own.into_iter().flatten().chain(usual).collect();
        Self {
            ollama: list(
                [own("OLLAMA_MODELS", ""), None],
                [home.join(".ollama/models"), "/usr/share/ollama/.ollama/models".into()],
            ),
            lm_studio: list([None, None], [home.join(".lmstudio/models"), cache.join("lm-studio/models")]),
            hugging_face: list(
                [own("HF_HUB_CACHE", ""), own("HF_HOME", "hub")],
                [cache.join("huggingface/hub"), home.join(".cache/huggingface/hub")],
            ),
            llama_cpp: list(
                [own("LLAMA_CACHE", ""), None],
                [cache.join("llama.cpp"), home.join("Library/Caches/llama.cpp")],
            ),
        }
    }

    /// All models that are there, each file once.
    pub fn find(&self) -> Vec<Stored> {
        let mut found: Vec<Stored> = self.ollama.iter().flat_map(|root| of_ollama(root)).collect();
        for (program, roots) in [
            ("LM Studio", &self.lm_studio),
            ("Hugging Face", &self.hugging_face),
            ("llama.cpp", &self.llama_cpp),
        ] {
            found.extend(roots.iter().flat_map(|root| of_folder(program, root)));
        }
        let mut seen = BTreeSet::new();
        found.retain(|stored| seen.insert(stored.path.clone()));
        found
    }
}

/// The model of `reference`, if a program stored it here.
pub fn of_reference<'a>(stored: &'a [Stored], reference: &Reference) -> Option<&'a Stored> {
    let of = |one: &Stored, program: &str, owner: &str, name: &str| {
        let same = |(whose, what): &(String, String)| {
            whose.eq_ignore_ascii_case(owner) && what.eq_ignore_ascii_case(name)
        };
        one.program == program && one.repository.as_ref().is_some_and(same)
    };
    stored.iter().find(|one| match reference {
        Reference::Ollama { owner, name, tag } => of(one, "Ollama", owner, name) && one.file == *tag,
        Reference::HuggingFace { owner, name, tag } => {
            // Without a tag the registry's choice is not known here, and a part is no model.
            let means = tag.as_ref().is_some_and(|tag| means(&one.file, tag));
            of(one, "Hugging Face", owner, name) && means && !one.file.contains("-of-")
        }
    })
}

/// As Ollama shows it, with a dot for the slash that no name here has.
fn ollama_name(host: &str, owner: &str, model: &str, tag: &str) -> String {
    match (host, owner) {
        (OLLAMA_HOST, "library") => format!("{model}:{tag}"),
        (OLLAMA_HOST, _) => format!("{owner}.{model}:{tag}"),
        _ => format!("{host}.{owner}.{model}:{tag}"),
    }
}

fn of_ollama(root: &Path) -> Vec<Stored> {
    let mut found = Vec::new();
    let manifests = root.join("manifests");
    walk(&manifests, &mut |path| {
        let read = fs::File::open(path).ok().map(|file| file.take(MAX_MANIFEST));
        let document = read.and_then(|file| serde_json::from_reader::<_, Value>(file).ok());
        let Some(Ok(named)) = document.map(|document| manifest(&document)) else { return };
        let blob = root.join("blobs").join(format!("sha256-{}", named.weights));
        let parts: Vec<String> = path
            .strip_prefix(&manifests)
            .into_iter()
            .flat_map(|below| below.iter().map(|part| part.to_string_lossy().into_owned()))
            .collect();
        if let ([host, owner, model, tag], true) = (parts.as_slice(), blob.is_file()) {
            // Another host's model of that name is another model.
            let repository = (host == OLLAMA_HOST).then(|| (owner.clone(), model.clone()));
            let name = ollama_name(host, owner, model, tag);
            found.extend(stored("Ollama", name, (repository, tag), &blob));
        }
    });
    found
}

fn of_folder(program: &'static str, root: &Path) -> Vec<Stored> {
    let mut found = Vec::new();
    walk(root, &mut |path| {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let later = file.split_once("-of-").is_some_and(|(before, _)| !before.ends_with("-00001"));
        if !file.to_lowercase().ends_with(".gguf") || later || file.to_lowercase().contains("mmproj") {
            return;
        }
        let stem = &file[..file.len() - ".gguf".len()];
        let repository = path.iter().find_map(|part| part.to_str()?.strip_prefix("models--"));
        let repository = repository.filter(|_| program == "Hugging Face");
        let name = match repository {
            Some(repository) => format!("{}.{stem}", repository.replacen("--", ".", 1)),
            None => stem.to_owned(),
        };
        let repository = repository.and_then(|repository| repository.split_once("--"));
        let repository = repository.map(|(owner, name)| (owner.to_owned(), name.to_owned()));
        found.extend(stored(program, name, (repository, stem), path));
    });
    found
}

/// The file, if it is a GGUF. Links lead where they lead: their targets are what is linked.
fn stored(
    program: &'static str,
    name: String,
    (repository, file_name): (Option<(String, String)>, &str),
    path: &Path,
) -> Option<Stored> {
    let path = dunce::canonicalize(path).ok()?;
    let bytes = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
    let mut file = fs::File::open(&path).ok()?;
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).ok().filter(|()| magic == *MAGIC)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-:".contains(c) { c } else { '-' };
    let name = name.chars().take(120).map(plain).collect();
    Some(Stored { program, name, repository, file: file_name.to_owned(), path, bytes })
}

/// Shows every file below `root`, in the order of their names; folders that links lead to are left out.
fn walk(root: &Path, see: &mut dyn FnMut(&Path)) {
    let mut left = MAX_ENTRIES;
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut entries: Vec<fs::DirEntry> = entries.flatten().take(left).collect();
        left -= entries.len();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < MAX_DEPTH => folders.push((entry.path(), depth + 1)),
                // To open what is no file, such as a pipe, may never end.
                Ok(kind) if !kind.is_dir() && entry.path().is_file() => see(&entry.path()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    fn write(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn models_of_other_programs_are_found_where_they_keep_them() {
        let user = tempfile::tempdir().unwrap();
        let home = user.path();
        let digest = "5".repeat(64);
        let weights = json!({
            "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": 8
        });
        let ollama = home.join(".ollama/models");
        let manifest = json!({ "layers": [weights] }).to_string();
        write(&ollama.join("manifests/registry.ollama.ai/library/tiny/1b"), manifest.as_bytes());
        write(&ollama.join("manifests/registry.ollama.ai/library/broken/1b"), b"{}");
        write(&ollama.join(format!("blobs/sha256-{digest}")), b"GGUFollama");
        write(&home.join(".lmstudio/models/me/mine/mine-Q8_0.gguf"), b"GGUFstudio");
        write(&home.join(".lmstudio/models/me/mine/mmproj-mine.gguf"), b"GGUF");
        let hub = home.join(".cache/huggingface/hub/models--who--What-GGUF");
        write(&hub.join("blobs/1"), b"GGUFhub");
        fs::create_dir_all(hub.join("snapshots/r")).unwrap();
        symlink("../../blobs/1", hub.join("snapshots/r/What-Q4_K_M.gguf")).unwrap();
        write(&home.join(".cache/llama.cpp/big-00001-of-00002.gguf"), b"GGUF1");
        write(&home.join(".cache/llama.cpp/big-00002-of-00002.gguf"), b"GGUF2");
        write(&home.join(".cache/llama.cpp/page.gguf"), b"<html>");
        // What is like a model that is asked for, and another one.
        write(&ollama.join("manifests/elsewhere.example/library/far/1b"), manifest.as_bytes());
        write(&ollama.join(format!("blobs/sha256-{digest}")), b"GGUFollama");
        let longer = home.join(".cache/huggingface/hub/models--who--What-GGUF.v2/snapshots/r");
        write(&longer.join("What-Q8_0.gguf"), b"GGUF");
        write(&longer.join("What-BF16.gguf"), b"GGUF");
        assert!(
            std::process::Command::new("mkfifo").arg(longer.join("pipe.gguf")).status().unwrap().success()
        );

        let places = Places::of_user(|name| (name == "HOME").then(|| home.to_owned()));
        let found = places.find();
        let names: Vec<(&str, &str)> = found.iter().map(|one| (one.program, one.name.as_str())).collect();
        assert_eq!(
            names,
            [
                ("Ollama", "tiny:1b"),
                ("LM Studio", "mine-Q8_0"),
                ("Hugging Face", "who.What-GGUF.v2.What-BF16"),
                ("Hugging Face", "who.What-GGUF.v2.What-Q8_0"),
                ("Hugging Face", "who.What-GGUF.What-Q4_K_M"),
                ("llama.cpp", "big-00001-of-00002"),
            ]
        );
        assert_eq!(found[0].bytes, 10);
        assert_eq!(fs::read(&found[4].path).unwrap(), b"GGUFhub");
        let of = |text: &str| {
            of_reference(&found, &Reference::parse(text).unwrap().unwrap()).map(|one| one.name.clone())
        };
        assert_eq!(of("ollama://tiny:1b").as_deref(), Some("tiny:1b"));
        assert_eq!(of("ollama://tiny"), None);
        assert_eq!(of("hf.co/who/What-GGUF:Q4_K_M").as_deref(), Some("who.What-GGUF.What-Q4_K_M"));
        assert_eq!(of("hf.co/Who/what-gguf:q4_k_m").as_deref(), Some("who.What-GGUF.What-Q4_K_M"));
        for other in [
            "hf.co/who/Other-GGUF:Q4_K_M",
            "hf.co/who/What-GGUF:M",
            "hf.co/who/What-GGUF:Q8_0",
            "hf.co/who/What-GGUF.v2:F16",
            "ollama://far:1b",
            "ollama://me/tiny:1b",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of("hf.co/who/What-GGUF.v2:BF16").as_deref(), Some("who.What-GGUF.v2.What-BF16"));
    }
}
