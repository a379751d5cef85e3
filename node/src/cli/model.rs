//! `shoal model`: its commands and their flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `shoal model ...`
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// The models this machine knows
    #[command(after_help = "Examples:
  shoal model list
  shoal model list --json")]
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// The models of the catalogs that are known here, and what becomes of each on this machine
    #[command(after_help = "Nothing is asked of a network unless --catalog names an address.

Examples:
  shoal model search
  shoal model search llama instruct
  shoal model search --catalog https://models.example/catalog.txt")]
    Search {
        /// Words that must be in a model's name, family, format or license
        words: Vec<String>,
        #[command(flatten)]
        #[allow(missing_docs)]
        sources: SourceArgs,
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Models that Ollama, LM Studio, Hugging Face's libraries or llama.cpp stored on this machine; they are linked, not copied
    #[command(after_help = "Examples:
  shoal model find                             what there is
  shoal model find --link llama3.2:1b          give it that name here; the file stays where it is")]
    Find {
        /// Put this one on the list of `shoal model list`
        #[arg(long, value_name = "NAME")]
        link: Option<String>,
        /// Its name there [default: the same]
        #[arg(long, requires = "link")]
        name: Option<String>,
        /// A JSON array, or the entry that was made
        #[arg(long)]
        json: bool,
    },
    /// Signed lists of models: make one, and say whose count here
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Give a .gguf file a name; the file stays where it is
    #[command(after_help = "Examples:
  shoal model add llama.gguf
  shoal model add llama.gguf --name llama")]
    Add {
        /// The file
        file: PathBuf,
        /// Its name [default: as a catalog calls it, else the file's name without .gguf]
        #[arg(long)]
        name: Option<String>,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Fetch a model, or some layers of it, from mirrors and peers
    #[command(
        after_help = "Every byte is checked against the model's id before it is used. A stopped pull goes on where it was.

Examples:
  shoal model pull smollm2
  shoal model pull hf.co/OWNER/NAME:Q4_K_M
  shoal model pull ollama://llama3.2:1b
  shoal model pull https://huggingface.co/ORG/REPO/resolve/main/FILE.gguf
  shoal model pull ID --from https://mirror.example/FILE.gguf --layers 0..8
  shoal model pull llama --layers 8..16"
    )]
    Pull(PullArgs),
    /// Let other nodes fetch a model from this one; prints its id
    #[command(after_help = "Examples:
  shoal model share smollm2
  shoal model share smollm2 --off")]
    Share {
        /// A .gguf file or a name from `shoal model list`
        model: String,
        /// The name of a new file [default: as a catalog calls it, else the file's name without .gguf]
        #[arg(long)]
        name: Option<String>,
        /// Stop sharing it
        #[arg(long)]
        off: bool,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a model as a file with its .obao beside it: on any web server they are a mirror
    #[command(after_help = "Example:
  shoal model export smollm2 smollm2.gguf")]
    Export {
        /// A name from `shoal model list`
        model: String,
        /// The file to write; FILE.obao is written too
        output: PathBuf,
        /// Replace files that exist
        #[arg(long)]
        force: bool,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Forget a name. A file you added stays where it is; what was pulled is removed
    #[command(after_help = "Example:
  shoal model rm smollm2")]
    Rm {
        /// The name
        name: String,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// What a file holds and whether this build can run it
    #[command(after_help = "Examples:
  shoal model inspect llama.gguf
  shoal model inspect smollm2 --tensors")]
    Inspect {
        /// A .gguf file or a name
        #[arg(default_value = crate::library::DEFAULT_MODEL)]
        model: String,
        /// List every tensor
        #[arg(long)]
        tensors: bool,
        /// List every metadata entry
        #[arg(long)]
        metadata: bool,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `shoal model catalog ...`
#[derive(Debug, Subcommand)]
pub enum CatalogCommand {
    /// The catalogs that count here, and who signed them
    #[command(after_help = "Example:
  shoal model catalog list")]
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Put a model on a catalog of one's own, and sign it
    #[command(
        after_help = "The key is made when it is not there; who has it can change the catalog. Others trust it once:
`shoal model catalog trust FILE|URL`.

Example:
  shoal model catalog add llama.gguf --to catalog.txt --key catalog.key --license Apache-2.0 \\
    --mirror https://models.example/llama.gguf"
    )]
    Add {
        /// The .gguf file, or a name from `shoal model list`
        file: String,
        /// The catalog: it is made, or the model is put in it
        #[arg(long, value_name = "CATALOG")]
        to: PathBuf,
        /// The file with the key that signs it
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The model's license, as SPDX writes it
        #[arg(long)]
        license: String,
        /// What users type [default: as a catalog calls it, else the file's name without .gguf]
        #[arg(long)]
        name: Option<String>,
        /// The model's name in full [default: the same]
        #[arg(long)]
        title: Option<String>,
        /// Its weight format, where the one of most bytes misleads
        #[arg(long)]
        format: Option<String>,
        /// An address of the file (repeatable)
        #[arg(long, value_name = "URL")]
        mirror: Vec<String>,
        /// What a new catalog is called
        #[arg(long, default_value = "models", value_name = "NAME")]
        called: String,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a catalog, and later ones of its author, name models here
    #[command(after_help = "Example:
  shoal model catalog trust https://models.example/catalog.txt")]
    Trust {
        /// The catalog, a file or an address
        catalog: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take that back
    #[command(after_help = "Example:
  shoal model catalog forget 1f2e3d4c")]
    Forget {
        /// The author, as `shoal model catalog list` shows it; its first digits will do
        author: String,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Where models come from that are not on this machine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sources of models")]
pub struct SourceArgs {
    /// A signed list of models, a file or an address, beside those of `shoal model catalog list` (repeatable); its author is
    /// trusted once
    #[arg(long, value_name = "FILE|URL", env = "SHOAL_CATALOG", value_delimiter = ',')]
    pub catalog: Vec<String>,
    /// Where models called hf.co/OWNER/NAME are
    #[arg(long, value_name = "URL", env = "HF_ENDPOINT", default_value = crate::catalog::registry::HUGGING_FACE)]
    pub hf_endpoint: String,
    /// Where models called ollama://NAME are
    #[arg(long, value_name = "URL", env = "SHOAL_OLLAMA_REGISTRY", default_value = crate::catalog::registry::OLLAMA)]
    pub ollama_registry: String,
}

/// `shoal model pull`
#[derive(Debug, Args)]
pub struct PullArgs {
    /// A name from `shoal model list` or `shoal model search`, a model's id (64 hex digits), hf.co/OWNER/NAME:Q4_K_M,
    /// ollama://NAME:TAG or the address of a .gguf file
    pub model: String,
    /// Only these layers, as A..B (repeatable); the embedding comes with the first, the head with the last
    #[arg(long, value_name = "A..B")]
    pub layers: Vec<String>,
    /// A mirror of the file (repeatable: all are used at once)
    #[arg(long, value_name = "URL")]
    pub from: Vec<String>,
    /// What to call it [default: as a catalog calls it, else the file's name without .gguf]
    #[arg(long)]
    pub name: Option<String>,
    /// Do not ask before it starts
    #[arg(short, long)]
    pub yes: bool,
    /// Most disk that all pulled models may take, e.g. 20GB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = size, env = "SHOAL_DISK")]
    pub disk: Option<u64>,
    /// Most bytes per second, e.g. 5MB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub rate: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sources: SourceArgs,
    /// One JSON object per line: the plan, progress, the result
    #[arg(long)]
    pub json: bool,
}

/// A number of bytes: digits, then nothing, B, or k, M, G, T with an optional i (times 1024) and B.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no size; write e.g. 500MB or 20GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = unit.strip_suffix('i').map_or((unit, 1000f64), |letter| (letter, 1024.0));
    let power = match letter {
        "" if base == 1000.0 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(wrong()),
    };
    let bytes = number * base.powi(power);
    (1.0..1e18).contains(&bytes).then_some(bytes as u64).ok_or_else(wrong)
}

/// As [`size`], and `off` for nothing.
pub(super) fn size_or_off(text: &str) -> Result<u64, String> {
    if text == "off" { Ok(0) } else { size(text).map_err(|why| format!("{why}, or off")) }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("7", 7), ("500MB", 500_000_000), ("1.5GiB", 3 << 29), ("20 gb", 20_000_000_000), ("4k", 4000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MB", "-1", "1XB", "0", "5i", "1e30", "9999999T"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
