//! `shoal model`: its commands and their flags.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `shoal model ...`
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// The models this machine knows
    List {
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// Give a .gguf file a name; the file stays where it is
    Add {
        /// The file
        file: PathBuf,
        /// Its name [default: the file's name without .gguf]
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
  shoal model pull https://huggingface.co/ORG/REPO/resolve/main/FILE.gguf
  shoal model pull ID --from https://mirror.example/FILE.gguf --layers 0..8
  shoal model pull llama --layers 8..16"
    )]
    Pull(PullArgs),
    /// Let other nodes fetch a model from this one; prints its id
    Share {
        /// A .gguf file or a name from `shoal model list`
        model: String,
        /// The name of a new file [default: the file's name without .gguf]
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
    Rm {
        /// The name
        name: String,
        /// A JSON object
        #[arg(long)]
        json: bool,
    },
    /// What a file holds and whether this build can run it
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

/// `shoal model pull`
#[derive(Debug, Args)]
pub struct PullArgs {
    /// A name from `shoal model list`, a model's id (64 hex digits) or the address of a .gguf file
    pub model: String,
    /// Only these layers, as A..B (repeatable); the embedding comes with the first, the head with the last
    #[arg(long, value_name = "A..B")]
    pub layers: Vec<String>,
    /// A mirror of the file (repeatable: all are used at once)
    #[arg(long, value_name = "URL")]
    pub from: Vec<String>,
    /// What to call it [default: the file's name without .gguf]
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
