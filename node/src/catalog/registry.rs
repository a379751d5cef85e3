//! Asks a registry what a [`Reference`] stands for: an address, a length, a hash and a license.

use p2p::blob::{SourceError, http::document};
use serde_json::Value;

use super::reference::{self, Reference, Sha256};
use crate::{Error, Result};

/// Where Hugging Face is.
pub const HUGGING_FACE: &str = "https://huggingface.co";
/// Where Ollama's registry is.
pub const OLLAMA: &str = "https://registry.ollama.ai";
/// Longest listing or manifest.
const MAX_DOCUMENT: usize = 4 << 20;
/// Longest text of a license that is looked at.
const MAX_LICENSE: usize = 256 << 10;
/// What an Ollama registry is asked for.
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// The registries' addresses.
#[derive(Clone, Debug)]
pub struct Registries {
    /// Hugging Face, or what stands in for it.
    pub hugging_face: String,
    /// Ollama's registry, or what stands in for it.
    pub ollama: String,
}

/// What a reference stands for today.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where its file is.
    pub url: String,
    /// Its length, as the registry says it.
    pub bytes: u64,
    /// The hash that its bytes must have, where the registry says it.
    pub sha256: Option<Sha256>,
    /// Its license, where the registry says it.
    pub license: Option<String>,
}

/// Asks the registry of `reference`.
///
/// # Errors
/// [`Error::Usage`] when the registry does not have it, [`Error::Failed`] when it cannot be asked.
pub async fn resolve(reference: &Reference, registries: &Registries) -> Result<Remote> {
    match reference {
        Reference::HuggingFace { owner, name, tag } => {
            let base = registries.hugging_face.trim_end_matches('/');
            let about = format!("{base}/api/models/{owner}/{name}");
            let listing =
                json(reference, &format!("{about}/tree/main?recursive=true"), "application/json").await?;
            let file = reference::choose(&listing, tag.as_deref())
                .map_err(|why| Error::usage(format!("{reference}: {why}")))?;
            // What a publisher writes beside the files is no reason to fetch none.
            let card = json(reference, &about, "application/json").await.unwrap_or_default();
            let path = file.path.split('/').map(escaped).collect::<Vec<_>>().join("/");
            Ok(Remote {
                url: format!("{base}/{owner}/{name}/resolve/main/{path}"),
                bytes: file.bytes,
                sha256: file.sha256,
                license: reference::license_of(&card).map(|license| one_line(&license)),
            })
        }
        Reference::Ollama { owner, name, tag } => {
            let base = format!("{}/v2/{owner}/{name}", registries.ollama.trim_end_matches('/'));
            let found = json(reference, &format!("{base}/manifests/{tag}"), MANIFEST).await?;
            let manifest =
                reference::manifest(&found).map_err(|why| Error::usage(format!("{reference}: {why}")))?;
            let blob = |digest: Sha256| format!("{base}/blobs/sha256:{digest}");
            let license = match manifest.license {
                Some(digest) => document(&blob(digest), "", MAX_LICENSE).await.ok(),
                None => None,
            };
            Ok(Remote {
                url: blob(manifest.weights),
                bytes: manifest.bytes,
                sha256: Some(manifest.weights),
                license: license.map(|text| one_line(&String::from_utf8_lossy(&text))),
            })
        }
    }
}

async fn json(reference: &Reference, url: &str, accept: &str) -> Result<Value> {
    let bytes = document(url, accept, MAX_DOCUMENT).await.map_err(|error| match error {
        SourceError::Refused(why) => Error::usage(format!("{reference} is not to be had: {why}")),
        error => Error::Failed(format!("the registry of {reference} cannot be asked: {error}")),
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::Failed(format!("the registry of {reference} answers no JSON: {error}")))
}

/// A file's name as an address has it.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let write = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(write).collect()
}

/// The first lines of a license with words in them, as one; nothing that a terminal would obey.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric));
    let line = lines.take(2).collect::<Vec<_>>().join(", ");
    line.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_license_is_told_in_one_line() {
        let text = "\n                                 Apache License\n                           Version 2.0, January 2004\n more";
        assert_eq!(one_line(text), "Apache License, Version 2.0, January 2004");
        assert_eq!(one_line("a\u{1b}[31mb"), "a[31mb");
        assert_eq!(one_line(&"x".repeat(500)).len(), 80);
    }

    #[test]
    fn names_of_files_stand_in_addresses() {
        assert_eq!(escaped("a b?.gguf"), "a%20b%3F.gguf");
    }
}
