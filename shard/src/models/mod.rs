//! Architectures as data: each family maps a GGUF's metadata and tensors to a [`Blueprint`].
//!
//! Families differ in a few dozen facts (which norm, how positions rotate, which layers see a window, which biases
//! exist), not in how a transformer runs. So a family is one file that states its facts, [`ALL`] lists the families,
//! and one executor ([`crate::executor::cpu`]) and one oracle ([`crate::executor::reference`]) interpret the result.
//! Adding a family is one file and one row; a kind of layer that is new altogether is a variant of [`Attention`] or
//! [`FeedForward`] and a step in both interpreters.
//!
//! A file is refused rather than guessed at: a tensor that is missing, one that the family does not use, a shape that
//! contradicts the metadata, or a metadata key that is neither read nor known to change nothing.
//! Every count is bounded by [`limits`] before anything is allocated from it.

mod arcee;
mod bert;
mod beyond;
mod bitnet;
mod block;
mod blueprint;
mod cohere2;
mod cost;
mod deepseek2;
mod delta;
mod dots1;
mod encoder;
mod ends;
mod ernie4_5;
mod exaone4;
mod factors;
mod falcon_h1;
mod fixture;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod hunyuan;
mod hybrid;
mod keys;
mod kimi_linear;
mod lfm2;
pub mod limits;
mod llama;
pub(crate) mod llama4;
mod minimax_m2;
mod mistral3;
mod modern_bert;
mod nemotron;
mod nemotron_h;
mod nomic_bert;
mod olmo2;
mod per_layer;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod reader;
mod rope;
mod seed_oss;
mod smollm3;
mod starcoder2;
mod temperature;
mod tensors;

pub use blueprint::{
    ATTENTION_NORM, Activation, Ahead, Attention, BareNorm, Blueprint, CHOICE_FACTORS, Dense, Experts,
    FeedForward, Groups, LAYER_SCALE, Latent, Layer, Norm, NormKind, PerLayer, Recurrence, Router, ShortConv,
    Softmax,
};
pub use cost::layer_costs;
pub use ends::{Embedding, HEAD_NORM, Head, Ranks};
pub use factors::Factors;
pub use rope::{Frequencies, Rope, Scaling};
pub use temperature::Temperature;
pub use tensors::{Need, Rule, layer_name};

use crate::{Error, Result, gguf::Gguf};
use reader::Reader;

/// One family of models.
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Which published models it covers, for people.
    pub covers: &'static str,
    /// The classes of transformers whose formulas it has, and whose configurations those models come with.
    pub configurations: &'static str,
    read: fn(&Reader<'_>) -> Result<Blueprint>,
}

/// The family that only fixtures have; see `fixture.rs`.
pub const FIXTURE: &str = "shoal-recurrent";

/// Every family this build computes.
pub static ALL: &[Architecture] = &[
    Architecture {
        name: "llama",
        covers: "Llama 2, 3, 3.1 and later text models, CodeLlama, TinyLlama, Mistral, Mixtral",
        configurations: "LlamaConfig, MistralConfig, MixtralConfig",
        read: llama::read,
    },
    Architecture {
        name: "qwen2",
        covers: "Qwen 2, Qwen 2.5",
        configurations: "Qwen2Config",
        read: qwen2::read,
    },
    Architecture {
        name: "qwen2vl",
        covers: "Qwen 2-VL, Qwen 2.5-VL (text)",
        configurations: "Qwen2VLTextConfig, Qwen2_5_VLTextConfig",
        read: qwen2::read_text,
    },
    Architecture { name: "qwen3", covers: "Qwen 3", configurations: "Qwen3Config", read: qwen3::read },
    Architecture {
        name: "qwen3vl",
        covers: "Qwen 3-VL, dense (text)",
        configurations: "Qwen3VLTextConfig",
        read: qwen3::read_text,
    },
    Architecture { name: "gemma2", covers: "Gemma 2", configurations: "Gemma2Config", read: gemma2::read },
    Architecture {
        name: "gemma3",
        covers: "Gemma 3 (text)",
        configurations: "Gemma3TextConfig",
        read: gemma3::read,
    },
    Architecture {
        name: "gemma3n",
        covers: "Gemma 3n E2B, E4B (text)",
        configurations: "Gemma3nTextConfig",
        read: gemma3n::read,
    },
    Architecture {
        name: "gemma4",
        covers: "Gemma 4 (text)",
        configurations: "Gemma4TextConfig",
        read: gemma4::read,
    },
    Architecture {
        name: "phi3",
        covers: "Phi 3, Phi 3.5, Phi 4",
        configurations: "Phi3Config",
        read: phi3::read,
    },
    Architecture {
        name: "starcoder2",
        covers: "StarCoder 2",
        configurations: "Starcoder2Config",
        read: starcoder2::read,
    },
    Architecture { name: "glm4", covers: "GLM 4 (0414)", configurations: "Glm4Config", read: glm4::read },
    Architecture {
        name: "qwen2moe",
        covers: "Qwen 1.5 MoE, Qwen 2 MoE",
        configurations: "Qwen2MoeConfig",
        read: qwen2moe::read,
    },
    Architecture {
        name: "qwen3moe",
        covers: "Qwen 3 MoE",
        configurations: "Qwen3MoeConfig",
        read: qwen3moe::read,
    },
    Architecture {
        name: "qwen3vlmoe",
        covers: "Qwen 3-VL, MoE (text)",
        configurations: "Qwen3VLMoeTextConfig",
        read: qwen3moe::read_text,
    },
    Architecture {
        name: "mistral3",
        covers: "Ministral 3 3B, 8B, 14B (text)",
        configurations: "Ministral3Config",
        read: mistral3::read,
    },
    Architecture {
        name: "hunyuan-dense",
        covers: "Hunyuan 0.5B, 1.8B, 4B, 7B",
        configurations: "HunYuanDenseV1Config",
        read: hunyuan::read,
    },
    Architecture {
        name: "gpt-oss",
        covers: "GPT-OSS 20B, 120B",
        configurations: "GptOssConfig",
        read: gpt_oss::read,
    },
    Architecture {
        name: "smollm3",
        covers: "SmolLM 3",
        configurations: "SmolLM3Config",
        read: smollm3::read,
    },
    Architecture {
        name: "granite",
        covers: "Granite 3, 3.1, 3.2, 3.3 (dense)",
        configurations: "GraniteConfig",
        read: granite::read,
    },
    Architecture {
        name: "granitemoe",
        covers: "Granite 3 MoE",
        configurations: "GraniteMoeConfig",
        read: granite::read,
    },
    Architecture {
        name: "granitehybrid",
        covers: "Granite 4.0 H micro, tiny, small; Bamba",
        configurations: "GraniteMoeHybridConfig",
        read: granite::read_hybrid,
    },
    Architecture {
        name: "olmo2",
        covers: "OLMo 2, OLMo 3",
        configurations: "Olmo2Config, Olmo3Config",
        read: olmo2::read,
    },
    Architecture {
        name: "falcon-h1",
        covers: "Falcon-H1 0.5B to 34B",
        configurations: "FalconH1Config",
        read: falcon_h1::read,
    },
    Architecture {
        name: "gemma",
        covers: "Gemma, CodeGemma",
        configurations: "GemmaConfig",
        read: gemma::read,
    },
    Architecture {
        name: "arcee",
        covers: "Arcee AFM 4.5B",
        configurations: "ArceeConfig",
        read: arcee::read,
    },
    Architecture {
        name: "seed_oss",
        covers: "Seed-OSS 36B",
        configurations: "SeedOssConfig",
        read: seed_oss::read,
    },
    Architecture {
        name: "exaone4",
        covers: "EXAONE 4",
        configurations: "Exaone4Config",
        read: exaone4::read,
    },
    Architecture {
        name: "cohere2",
        covers: "Command R7B, Command A",
        configurations: "Cohere2Config",
        read: cohere2::read,
    },
    Architecture {
        name: "command-r",
        covers: "Command R, Aya 23, Aya Expanse",
        configurations: "CohereConfig",
        read: cohere2::read_command_r,
    },
    Architecture {
        name: "nemotron",
        covers: "Nemotron 4, Minitron",
        configurations: "NemotronConfig",
        read: nemotron::read,
    },
    Architecture {
        name: "nemotron_h",
        covers: "Nemotron-H 4B, 8B, 47B, 56B, Nemotron Nano 9B and 12B v2",
        configurations: "NemotronHConfig",
        read: nemotron_h::read,
    },
    Architecture {
        name: "nemotron_h_moe",
        covers: "Nemotron 3 Nano 30B-A3B, Super 120B-A12B",
        configurations: "NemotronHConfig",
        read: nemotron_h::read,
    },
    Architecture { name: "phi2", covers: "Phi 1, 1.5, 2", configurations: "PhiConfig", read: phi2::read },
    Architecture {
        name: "ernie4_5",
        covers: "ERNIE 4.5 0.3B",
        configurations: "Ernie4_5Config",
        read: ernie4_5::read,
    },
    Architecture {
        name: "glm4moe",
        covers: "GLM 4.5, 4.5 Air, 4.6, 4.7",
        configurations: "Glm4MoeConfig",
        read: glm4moe::read,
    },
    Architecture { name: "dots1", covers: "dots.llm1", configurations: "Dots1Config", read: dots1::read },
    Architecture {
        name: "minimax-m2",
        covers: "MiniMax M2, M2.1",
        configurations: "MiniMaxM2Config",
        read: minimax_m2::read,
    },
    Architecture {
        name: "deepseek2",
        covers: "DeepSeek V2, V2.5, V3, V3.1, R1, Kimi K2, Moonlight",
        configurations: "DeepseekV2Config, DeepseekV3Config",
        read: deepseek2::read,
    },
    Architecture {
        name: "kimi-linear",
        covers: "Kimi Linear 48B-A3B",
        configurations: "KimiLinearConfig",
        read: kimi_linear::read,
    },
    Architecture {
        name: "llama4",
        covers: "Llama 4 Scout, Maverick (text)",
        configurations: "Llama4TextConfig",
        read: llama4::read,
    },
    Architecture {
        name: "lfm2",
        covers: "LFM 2 350M, 700M, 1.2B, 2.6B",
        configurations: "Lfm2Config",
        read: lfm2::read,
    },
    Architecture {
        name: "lfm2moe",
        covers: "LFM 2 8B-A1B",
        configurations: "Lfm2MoeConfig",
        read: lfm2::read,
    },
    Architecture {
        name: "bitnet-b1.58",
        covers: "BitNet b1.58 2B4T",
        configurations: "BitNetConfig",
        read: bitnet::read,
    },
    Architecture {
        name: "bitnet",
        covers: "bitnet_b1_58-large, bitnet_b1_58-3B",
        configurations: "BitNetConfig with silu",
        read: bitnet::read_silu,
    },
    Architecture {
        name: "qwen3next",
        covers: "Qwen 3 Next, Qwen 3 Coder Next",
        configurations: "Qwen3NextConfig",
        read: qwen3next::read,
    },
    Architecture {
        name: "qwen35",
        covers: "Qwen 3.5 and 3.6, dense (text)",
        configurations: "Qwen3_5TextConfig",
        read: qwen35::read,
    },
    Architecture {
        name: "qwen35moe",
        covers: "Qwen 3.5 and 3.6, MoE (text)",
        configurations: "Qwen3_5MoeTextConfig",
        read: qwen35moe::read,
    },
    Architecture {
        name: "bert",
        covers: "BERT, MiniLM, BGE, bge-m3, E5, GTE, mxbai-embed, XLM-RoBERTa, and cross-encoders of them",
        configurations: "BertConfig, XLMRobertaConfig",
        read: bert::read,
    },
    Architecture {
        name: "nomic-bert",
        covers: "nomic-embed-text v1, v1.5",
        configurations: "NomicBertConfig",
        read: nomic_bert::read,
    },
    Architecture {
        name: "modern-bert",
        covers: "ModernBERT, gte-modernbert and rerankers of it",
        configurations: "ModernBertConfig",
        read: modern_bert::read,
    },
    Architecture {
        name: FIXTURE,
        covers: "no published model: fixtures of tests",
        configurations: "",
        read: fixture::read,
    },
];

impl Blueprint {
    /// Reads what model `gguf` holds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an architecture that is not in [`ALL`], a tensor that is missing or has no use, or
    /// metadata that asks for something not computed here; [`Error::Malformed`] for metadata that contradicts itself,
    /// the tensors' shapes or the [`limits`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let name = gguf.metadata().architecture()?;
        let Some(architecture) = ALL.iter().find(|a| a.name == name) else {
            return Err(Error::unsupported(format!("architecture {name}")));
        };
        let reader = Reader::new(gguf, architecture.name);
        let mut blueprint = (architecture.read)(&reader)?;
        reader.refuse_unread(&blueprint)?;
        let layers: Vec<&[Rule]> = blueprint.layers.iter().map(|layer| &*layer.tensors).collect();
        tensors::check(gguf, &blueprint.tensors, &layers, blueprint.ahead.layers)?;
        let index = blueprint.layers.len();
        blueprint.ahead.first.take_if(|layer| !tensors::are(gguf, &layer.tensors, index));
        Ok(blueprint)
    }
}
