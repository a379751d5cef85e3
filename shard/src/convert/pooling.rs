//! Which hidden states stand for a text, as a checkpoint of sentence-transformers says it.

use serde_json::Value;

use super::folder::{Folder, POOLING as FILE};
use crate::{Error, Result, gguf::Writer};

/// The pooling of a model that ranks texts, as `pooling_type` numbers it.
pub(super) const RANK: u32 = 4;
/// Truth values of the file that name a mode.
const PREFIX: &str = "pooling_mode_";

/// Adds `pooling_type` where the folder has a file on it.
///
/// # Errors
/// [`Error::Unsupported`] for another mode than the mean, the first or the last state, or several.
pub(super) fn write(writer: &mut Writer, folder: &Folder, arch: &str) -> Result<()> {
    if let Some(config) = folder.json(FILE)? {
        writer.add_u32(&format!("{arch}.pooling_type"), number(&config)?);
    }
    Ok(())
}

/// The mode's number in GGUF. Files hold a truth value for each mode, or one name.
fn number(config: &Value) -> Result<u32> {
    let chosen = |(key, value): (&String, &Value)| {
        let mode = key.strip_prefix(PREFIX).filter(|_| value.as_bool() == Some(true))?;
        Some(mode.trim_end_matches("_tokens").trim_end_matches("_token").to_owned())
    };
    let mut modes: Vec<String> = config.as_object().into_iter().flatten().filter_map(chosen).collect();
    modes.extend(config["pooling_mode"].as_str().map(str::to_owned));
    match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mean"] => Ok(1),
        ["cls"] => Ok(2),
        ["lasttoken"] => Ok(3),
        [] => Err(Error::malformed(FILE, "it names no mode of pooling")),
        _ => Err(Error::unsupported(format!("pooling {} ({FILE})", modes.join(" with ")))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_mean_the_first_and_the_last_state_have_numbers_and_others_are_refused() {
        let of = |mode: &str| {
            let all = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"];
            let flags = all.iter().map(|one| (format!("{PREFIX}{one}"), json!(*one == mode)));
            number(&flags.chain([("include_prompt".to_owned(), json!(true))]).collect())
        };
        assert_eq!(["mean_tokens", "cls_token", "lasttoken"].map(|mode| of(mode).unwrap()), [1, 2, 3]);
        for (mode, says) in [("max_tokens", "pooling max "), ("mean_sqrt_len_tokens", "mean_sqrt_len")] {
            let why = of(mode).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains(FILE), "{why}");
        }
        assert!(of("none").unwrap_err().to_string().contains("no mode"));
        assert_eq!(number(&json!({"pooling_mode": "lasttoken"})).unwrap(), 3);
        let both = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true});
        assert!(number(&both).unwrap_err().to_string().contains("cls with mean"));
    }

    #[test]
    fn a_folder_without_the_file_says_nothing_and_with_it_the_key_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let written = || {
            let mut writer = Writer::new();
            writer.add_str("general.architecture", "qwen3");
            write(&mut writer, &Folder::open(folder.path()).unwrap(), "qwen3").unwrap();
            let bytes = writer.start(std::io::Cursor::new(Vec::new())).unwrap().finish().unwrap();
            let gguf = crate::gguf::Gguf::from_bytes(bytes.into_inner()).unwrap();
            gguf.metadata().u64("qwen3.pooling_type")
        };
        assert_eq!(written(), None);
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        std::fs::write(folder.path().join(FILE), r#"{"pooling_mode_lasttoken": true}"#).unwrap();
        assert_eq!(written(), Some(3));
    }
}
