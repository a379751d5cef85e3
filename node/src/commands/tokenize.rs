//! `shoal tokenize`: text to ids and back.

use serde_json::json;
use shard::tokenizer::{Encode, MAX_TEXT_BYTES, Tokenizer};

use super::stdin_text;
use crate::{Error, Result, cli::TokenizeArgs, library, output};

pub(super) fn run(args: TokenizeArgs) -> Result<()> {
    let gguf = library::open_confined(&args.model)?;
    let tokenizer = Tokenizer::from_gguf(gguf.metadata())?;
    let input = match &args.text {
        Some(text) => text.clone(),
        None => stdin_text()?,
    };
    let how = Encode { bos: !args.no_bos, special: !args.plain };
    match (args.batch, args.decode) {
        (true, false) => {
            let texts: Vec<String> = serde_json::from_str(&input)?;
            let ids = |text: &String| tokenizer.encode_long(text, how, MAX_TEXT_BYTES);
            let lists = texts.iter().map(ids).collect::<shard::Result<Vec<_>>>()?;
            output::json_line(&json!(lists))
        }
        (true, true) => {
            let lists: Vec<Vec<u32>> = serde_json::from_str(&input)?;
            let texts = lists.iter().map(|ids| decode(&tokenizer, ids)).collect::<Result<Vec<_>>>()?;
            output::json_line(&json!(texts))
        }
        (false, true) => {
            let text = decode(&tokenizer, &parse_ids(&input)?)?;
            if args.json { output::json_line(&json!(text)) } else { output::text(&(text + "\n")) }
        }
        (false, false) => {
            let ids = tokenizer.encode_long(&input, how, MAX_TEXT_BYTES)?;
            if args.json {
                return output::json_line(&json!(ids));
            }
            let words: Vec<String> = ids.iter().map(u32::to_string).collect();
            output::text(&(words.join(" ") + "\n"))
        }
    }
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
    match ids.iter().find(|&&id| id as usize >= tokenizer.len()) {
        Some(id) => {
            Err(Error::usage(format!("there is no token {id}; the vocabulary has {}", tokenizer.len())))
        }
        None => Ok(tokenizer.decode(ids)),
    }
}

/// Ids as people and programs write them: numbers between spaces, commas or brackets.
pub(super) fn parse_ids(text: &str) -> Result<Vec<u32>> {
    text.split(|c: char| c.is_whitespace() || ",[]".contains(c))
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| Error::usage(format!("\"{word}\" is not a token id"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::parse_ids;

    #[test]
    fn ids_may_be_written_in_several_ways() {
        for text in ["1 2 30", "[1, 2, 30]", "1,2,30\n"] {
            assert_eq!(parse_ids(text).unwrap(), [1, 2, 30]);
        }
        assert!(parse_ids("1 -2").is_err());
        assert!(parse_ids("1 x").is_err());
    }
}
