//! A decoder that ranks texts (Qwen 3 Reranker): the rows of its head for yes and no once more, which is all that its score needs.

use super::{config::Config, folder::Folder, formats::is_head, planned::Planned, pooling::RANK, vocab};
use crate::{Error, Result, gguf::Writer};

/// The only family whose engine reads such rows.
const FAMILY: &str = "qwen3";
/// What the model chooses between, the first for a text that fits.
const WORDS: [&str; 2] = ["yes", "no"];

/// The rows, from the head in `plan`, or from the embedding that is `tied` to it.
///
/// # Errors
/// [`Error::Unsupported`] for another family, and a vocabulary without the words.
pub(super) fn plan(config: &Config, plan: &[Planned], tied: bool, folder: &Folder) -> Result<Planned> {
    if config.arch() != FAMILY {
        let why = format!("{} as a model that chooses between yes and no; {FAMILY} is", config.arch());
        return Err(Error::unsupported(why));
    }
    let ids = vocab::ids(folder, config, WORDS)?;
    let head = plan.iter().find(|planned| is_head(&planned.name, tied));
    let rows = head.and_then(|head| head.some_rows("cls.output.weight", &ids));
    rows.ok_or_else(|| Error::malformed("config.json", "the checkpoint has no head with rows for yes and no"))
}

/// Says that the model ranks texts, and what its rows stand for.
pub(super) fn write(writer: &mut Writer, arch: &str) {
    writer.add_u32(&format!("{arch}.pooling_type"), RANK);
    writer.add_strs(&format!("{arch}.classifier.output_labels"), &WORDS.map(String::from));
}
