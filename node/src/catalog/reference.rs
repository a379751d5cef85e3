//! Names of models in other registries, and their documents: what a Hugging Face repository and an Ollama manifest say.
//!
//! ```text
//! hf.co/OWNER/NAME[:TAG]        a GGUF of a repository; TAG is a weight format (Q4_K_M) or a file's name
//! ollama://[OWNER/]NAME[:TAG]   a model of an Ollama registry; TAG is `latest` if none is given
//! ```
//!
//! Nothing here opens a socket: [`super::registry`] fetches what these functions read. The protocols are those that the
//! registries document: Hugging Face's listing of a repository's files (`/api/models/OWNER/NAME/tree/main`) and its files
//! (`/OWNER/NAME/resolve/main/FILE`), Ollama's manifests and blobs (`/v2/OWNER/NAME/manifests/TAG`, `.../blobs/DIGEST`).

use std::{fmt, str::FromStr};

use serde_json::Value;

use crate::library::Entry;

/// The weight format that a repository is asked for when the user names none.
const USUAL: &str = "Q4_K_M";
/// Longest part of a reference.
const MAX_PART: usize = 96;
/// Most names of a repository's files that are told.
const MAX_TOLD: usize = 20;
/// The media type of a model's weights in an Ollama manifest.
const WEIGHTS: &str = "application/vnd.ollama.image.model";
/// The media type of a model's license there.
const LICENSE: &str = "application/vnd.ollama.image.license";
/// Media types of what a model cannot be computed without, and is not computed here.
const BEYOND: [&str; 2] = ["application/vnd.ollama.image.adapter", "application/vnd.ollama.image.projector"];

/// A model in another registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A file of a Hugging Face repository.
    HuggingFace {
        /// Who publishes it.
        owner: String,
        /// The repository.
        name: String,
        /// A weight format or a file's name.
        tag: Option<String>,
    },
    /// A model of an Ollama registry.
    Ollama {
        /// Who publishes it; `library` for the registry's own.
        owner: String,
        /// The model.
        name: String,
        /// Which of its variants.
        tag: String,
    },
}

/// A part of a reference: letters, digits, `.`, `_` and `-`, and no name that a path would read otherwise.
fn part(text: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fine = (1..=MAX_PART).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.');
    fine.then(|| text.to_owned())
}

impl Reference {
    /// Reads a reference; `None` for text that does not begin like one.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let hugging =
            ["hf.co/", "huggingface.co/", "hf://"].iter().find_map(|start| text.strip_prefix(start));
        let ollama = text.strip_prefix("ollama://");
        match (hugging, ollama) {
            (Some(rest), _) => Some(Self::hugging_face(rest).ok_or_else(|| {
                format!("\"{text}\" is no repository of Hugging Face: write hf.co/OWNER/NAME or hf.co/OWNER/NAME:Q4_K_M")
            })),
            (_, Some(rest)) => Some(Self::ollama(rest).ok_or_else(|| {
                format!("\"{text}\" is no model of Ollama: write ollama://NAME, ollama://NAME:TAG or ollama://OWNER/NAME:TAG")
            })),
            _ => None,
        }
    }

    fn hugging_face(rest: &str) -> Option<Self> {
        let (path, tag) = match rest.split_once(':') {
            Some((path, tag)) => (path, Some(part(tag)?)),
            None => (rest, None),
        };
        let (owner, name) = path.split_once('/')?;
        Some(Self::HuggingFace { owner: part(owner)?, name: part(name)?, tag })
    }

    fn ollama(rest: &str) -> Option<Self> {
        let (path, tag) = rest.split_once(':').unwrap_or((rest, "latest"));
        let (owner, name) = path.split_once('/').unwrap_or(("library", path));
        Some(Self::Ollama { owner: part(owner)?, name: part(name)?, tag: part(tag)? })
    }

    /// What it is called on this machine.
    pub fn local_name(&self) -> String {
        match self {
            Self::HuggingFace { name, tag: None, .. } => name.clone(),
            Self::HuggingFace { name, tag: Some(tag), .. } => {
                format!("{name}:{}", tag.strip_suffix(".gguf").unwrap_or(tag))
            }
            Self::Ollama { name, tag, .. } => format!("{name}:{tag}"),
        }
    }

    /// Whether `entry` is it: fetched or linked as this reference, or fetched from there under its name.
    pub fn is(&self, entry: &Entry) -> bool {
        let path = match self {
            Self::HuggingFace { owner, name, .. } => format!("/{owner}/{name}/resolve/"),
            Self::Ollama { owner, name, .. } => format!("/v2/{owner}/{name}/blobs/"),
        };
        match &entry.reference {
            Some(known) => known.eq_ignore_ascii_case(&self.to_string()),
            None => entry.name == self.local_name() && entry.from.iter().any(|url| url.contains(&path)),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HuggingFace { owner, name, tag: None } => write!(f, "hf.co/{owner}/{name}"),
            Self::HuggingFace { owner, name, tag: Some(tag) } => write!(f, "hf.co/{owner}/{name}:{tag}"),
            Self::Ollama { owner, name, tag } if owner == "library" => write!(f, "ollama://{name}:{tag}"),
            Self::Ollama { owner, name, tag } => write!(f, "ollama://{owner}/{name}:{tag}"),
        }
    }
}

/// A SHA-256, by which registries name files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sha256(pub [u8; 32]);

impl FromStr for Sha256 {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        super::unhex(hex).map(Self).ok_or(())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::hex(&self.0))
    }
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path in the repository.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its hash, where the registry says it.
    pub sha256: Option<Sha256>,
}

/// Chooses the GGUF that `tag` means from the listing of a Hugging Face repository.
///
/// # Errors
/// What there is instead, as a sentence.
pub fn choose(listing: &Value, tag: Option<&str>) -> Result<File, String> {
    let file = |item: &Value| {
        let path = item["path"].as_str().filter(|path| path.to_lowercase().ends_with(".gguf"))?;
        let lfs = &item["lfs"];
        let bytes = lfs["size"].as_u64().or_else(|| item["size"].as_u64())?;
        let sha256 = lfs["oid"].as_str().and_then(|oid| oid.parse().ok());
        Some(File { path: path.to_owned(), bytes, sha256 })
    };
    let mut files: Vec<File> = listing.as_array().into_iter().flatten().filter_map(file).collect();
    // Images are seen by a projector, which is no model of its own.
    files.retain(|file| !file.path.to_lowercase().contains("mmproj"));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    if files.is_empty() {
        return Err("the repository has no .gguf file: choose one that has, often called NAME-GGUF".into());
    }
    let names = || {
        let more = files.len().saturating_sub(MAX_TOLD);
        let names = files.iter().take(MAX_TOLD).map(|file| told(&file.path)).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{names} and {more} more") } else { names }
    };
    let found = match tag {
        Some(tag) => files.iter().find(|file| means(&file.path, tag)),
        None => files.iter().find(|file| means(&file.path, USUAL)).or(files.first()),
    };
    let found = found.ok_or_else(|| {
        format!("the repository has no file for \"{}\"; it has {}", tag.unwrap_or(USUAL), names())
    })?;
    if found.path.contains("-of-") {
        return Err(format!(
            "{} is one of several parts: download them all and join them with `shoal convert`",
            told(&found.path)
        ));
    }
    Ok(found.clone())
}

/// A stranger's name of a file as a terminal may show it: without control characters, and not too long.
fn told(path: &str) -> String {
    path.chars().filter(|c| !c.is_control()).take(MAX_PART).collect()
}

/// Whether a file's name ends in the weight format `tag`, or is `tag`.
pub(super) fn means(path: &str, tag: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let (stem, tag) = (file.strip_suffix(".gguf").unwrap_or(&file).to_owned(), tag.to_lowercase());
    if file == tag || stem == tag {
        return true;
    }
    // A part's number comes after the format.
    let stem = match stem.split_once("-of-") {
        Some((before, _)) => before.rsplit_once('-').map_or(before, |(before, _)| before).to_owned(),
        None => stem,
    };
    // An underscore may stand before a format and inside of one.
    let kinds = ["q", "iq", "tq", "f", "bf", "mxfp", "nvfp"];
    let bits = |rest: &str| rest.starts_with(|next: char| next.is_ascii_digit());
    let whole = kinds.iter().any(|kind| tag.strip_prefix(kind).is_some_and(bits));
    stem.strip_suffix(&tag)
        .is_some_and(|before| before.ends_with(['-', '.']) || whole && before.ends_with('_'))
}

/// The license that a Hugging Face model names.
pub fn license_of(about: &Value) -> Option<String> {
    let named = about["cardData"]["license_name"].as_str().or_else(|| about["cardData"]["license"].as_str());
    let tagged = || about["tags"].as_array()?.iter().find_map(|tag| tag.as_str()?.strip_prefix("license:"));
    named.or_else(tagged).map(str::to_owned)
}

/// What an Ollama manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The digest of the weights.
    pub weights: Sha256,
    /// Their length.
    pub bytes: u64,
    /// The digest of the license's text.
    pub license: Option<Sha256>,
}

/// Reads an Ollama manifest.
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn manifest(document: &Value) -> Result<Manifest, String> {
    let layers = document["layers"].as_array().ok_or("the manifest names no layers")?;
    let of = |kind: &str| layers.iter().find(|layer| layer["mediaType"] == kind);
    if let Some(kind) = BEYOND.iter().find(|kind| of(kind).is_some()) {
        let what = kind.rsplit('.').next().unwrap_or(kind);
        return Err(format!("the model needs an {what}, which is not computed here"));
    }
    let digest = |layer: &Value| layer["digest"].as_str()?.parse::<Sha256>().ok();
    let weights = of(WEIGHTS).ok_or("the manifest names no weights")?;
    Ok(Manifest {
        weights: digest(weights).ok_or("the digest of the weights is no SHA-256")?,
        bytes: weights["size"].as_u64().ok_or("the manifest does not say how long the weights are")?,
        license: of(LICENSE).and_then(digest),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Reference, String> {
        Reference::parse(text).expect("it begins like a reference")
    }

    #[test]
    fn references_are_read_and_written() {
        for (text, name) in [
            ("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
            ("hf.co/a/b", "b"),
            ("ollama://llama3.2:1b", "llama3.2:1b"),
            ("ollama://me/mine:latest", "mine:latest"),
        ] {
            let reference = read(text).unwrap();
            assert_eq!((reference.to_string().as_str(), reference.local_name().as_str()), (text, name));
        }
        assert_eq!(read("ollama://llama3.2").unwrap().to_string(), "ollama://llama3.2:latest");
        assert_eq!(read("hf://a/b").unwrap(), read("huggingface.co/a/b").unwrap());
        for text in [
            "hf.co/a",
            "hf.co/a/b/c",
            "hf.co/../b",
            "hf.co/a/b:",
            "ollama://",
            "ollama://a/b/c",
            "hf.co/a/b?x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        for text in ["llama.gguf", "smollm2", "https://huggingface.co/a/b", "./hf.co/a/b"] {
            assert!(Reference::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_tag_means_one_file() {
        let oid = "ab".repeat(32);
        let listing = json!([
            {"type": "file", "path": "README.md", "size": 1},
            {"type": "file", "path": "m-Q4_K_M.gguf", "size": 130, "lfs": {"oid": oid, "size": 7}},
            {"type": "file", "path": "m.IQ4_XS.gguf", "size": 3},
            {"type": "file", "path": "mmproj-Q8_0.gguf", "size": 3},
            {"type": "file", "path": "big-F16-00001-of-00002.gguf", "size": 3},
        ]);
        let usual = choose(&listing, None).unwrap();
        assert_eq!((usual.path.as_str(), usual.bytes, usual.sha256), ("m-Q4_K_M.gguf", 7, oid.parse().ok()));
        assert_eq!(choose(&listing, Some("q4_k_m")).unwrap(), usual);
        assert_eq!(choose(&listing, Some("m.IQ4_XS.gguf")).unwrap().sha256, None);
        assert!(choose(&listing, Some("f16")).unwrap_err().contains("several parts"));
        // A format is a word of its own: XS is none, and neither is the end of another.
        for tag in ["XS", "K_M", "Q8_0", "Q2_K"] {
            let why = choose(&listing, Some(tag));
            assert!(why.is_err_and(|why| why.contains("m-Q4_K_M.gguf")), "{tag}");
        }
        assert!(choose(&json!([]), None).is_err());
        assert!(choose(&json!({"error": "no"}), None).is_err());
    }

    #[test]
    fn names_of_strangers_are_told_within_bounds() {
        let file = |n: usize| json!({"path": format!("\u{1b}[31m{n}{}.gguf", "x".repeat(500)), "size": 1});
        let why = choose(&(0..99).map(file).collect(), Some("Q8_0")).unwrap_err();
        assert!(!why.contains('\u{1b}') && why.contains("and 79 more"), "{why}");
        assert!(why.len() < 100 * (MAX_TOLD + 1), "{why}");
        let part = json!([{"path": format!("\u{7}{}-F16-00001-of-00002.gguf", "x".repeat(500)), "size": 1}]);
        let why = choose(&part, Some("F16")).unwrap_err();
        assert!(!why.contains('\u{7}') && why.len() < 250, "{why}");
    }

    #[test]
    fn a_linked_file_is_only_the_reference_it_was_linked_as() {
        let entry = |reference: Option<&str>, from: &[&str]| Entry {
            name: "M-GGUF:Q4_K_M".into(),
            path: "/m.gguf".into(),
            id: "00".into(),
            bytes: 1,
            shared: false,
            withheld: false,
            from: from.iter().map(|&url| url.to_owned()).collect(),
            reference: reference.map(str::to_owned),
            modified_ms: None,
        };
        let (ours, other) = (read("hf.co/a/M-GGUF:Q4_K_M").unwrap(), read("hf.co/b/M-GGUF:Q4_K_M").unwrap());
        let mine = Entry { name: "mine".into(), ..entry(Some("hf.co/a/M-GGUF:Q4_K_M"), &[]) };
        for entry in [
            entry(Some("hf.co/a/M-GGUF:Q4_K_M"), &[]),
            entry(None, &["https://hf.example/a/M-GGUF/resolve/main/m.gguf"]),
            mine,
        ] {
            assert!(ours.is(&entry) && !other.is(&entry), "{entry:?}");
        }
        assert!(!ours.is(&entry(None, &[])));
    }

    #[test]
    fn a_manifest_names_weights_and_license() {
        let (weights, license) = (format!("sha256:{}", "1".repeat(64)), format!("sha256:{}", "2".repeat(64)));
        let layers = json!([
            {"mediaType": WEIGHTS, "digest": weights, "size": 9},
            {"mediaType": LICENSE, "digest": license, "size": 2},
            {"mediaType": "application/vnd.ollama.image.template", "digest": license, "size": 2},
        ]);
        let found = manifest(&json!({"schemaVersion": 2, "layers": layers})).unwrap();
        assert_eq!((found.bytes, found.weights.0, found.license), (9, [0x11; 32], Some(Sha256([0x22; 32]))));
        let adapter = json!({"layers": [layers[0], {"mediaType": BEYOND[0], "digest": license, "size": 1}]});
        assert!(manifest(&adapter).unwrap_err().contains("adapter"));
        for wrong in
            [json!({}), json!({"layers": []}), json!({"layers": [{"mediaType": WEIGHTS, "digest": "x"}]})]
        {
            assert!(manifest(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn licenses_are_where_publishers_write_them() {
        assert_eq!(license_of(&json!({"cardData": {"license": "mit"}})).as_deref(), Some("mit"));
        assert_eq!(
            license_of(&json!({"tags": ["gguf", "license:apache-2.0"]})).as_deref(),
            Some("apache-2.0")
        );
        let other = json!({"cardData": {"license": "other", "license_name": "llama3.2"}});
        assert_eq!(license_of(&other).as_deref(), Some("llama3.2"));
        assert_eq!(license_of(&json!({})), None);
    }
}
