//! Rotary positions of a checkpoint: what config.json says of them, and what a file does.

use serde_json::Value;

use super::{
    config::{Config, has_delta_nets, has_latents, size},
    family, gemma4,
};
use crate::{Error, Result, gguf::Writer, kernels::math};

/// What changes the length of cosines and sines under YaRN.
const YARN_FACTORS: [&str; 3] = ["attention_factor", "mscale", "mscale_all_dim"];

impl Config {
    /// The divisors of the rotary frequencies that GGUF carries as a tensor (llama 3.1 and later, phi 3 long context).
    pub(super) fn rope_tensors(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let rope = self.rope();
        if family::is_gemma4(self.arch) {
            return Ok(vec![("rope_freqs.weight", gemma4::frequencies(self)?)]);
        }
        match rope_kind(rope) {
            "llama3" => Ok(vec![("rope_freqs.weight", self.llama3_factors(rope)?)]),
            "longrope" | "su" => Ok(vec![
                ("rope_factors_long.weight", numbers(&rope["long_factor"], "long_factor")?),
                ("rope_factors_short.weight", numbers(&rope["short_factor"], "short_factor")?),
            ]),
            _ => Ok(Vec::new()),
        }
    }

    /// A number of the rotary scaling, if there is one.
    pub(super) fn rope_number(&self, key: &str) -> Option<f64> {
        self.rope()[key].as_f64()
    }

    /// Refuses rotary scalings that GGUF or the engine cannot express.
    pub(super) fn check_rope(&self) -> Result<()> {
        let rope = self.rope();
        let kind = rope_kind(rope);
        if family::is_gemma4(self.arch) && kind == "proportional" {
            return Ok(());
        }
        if let Some(alpha) = self.rope_alpha() {
            return match alpha > 0.0 {
                true => Ok(()),
                false => Err(Error::malformed("config.json: alpha", "it is not positive")),
            };
        }
        let sections = family::has_sections(self.arch) && kind == "mrope";
        if !sections && !["default", "linear", "yarn", "llama3", "longrope", "su"].contains(&kind) {
            return Err(Error::unsupported(format!("config.json: rope_type \"{kind}\"")));
        }
        if ["linear", "yarn"].contains(&kind) && !rope["factor"].is_number() {
            return Err(Error::malformed("config.json: rope scaling factor", "it is missing or no number"));
        }
        if kind == "yarn" {
            // Latent attention has the factor on its softmax, which only equal numbers leave to it alone.
            let latent = has_latents(self.arch);
            let [own, all] = ["mscale", "mscale_all_dim"].map(|key| rope[key].as_f64());
            if latent && (own.is_none() || own != all) {
                return Err(Error::unsupported(
                    "config.json: mscale unlike mscale_all_dim of rope_type \"yarn\"",
                ));
            }
            let divides = self.arch == "mistral3" && own.map_or(all.is_none(), |own| own == 1.0);
            let asked: &[&str] = if latent || divides { &YARN_FACTORS[..1] } else { &YARN_FACTORS };
            // The factor that goes with the stretch changes nothing.
            let usual = |key: &str| {
                let stretch = rope["factor"].as_f64().unwrap_or(1.0).max(1.0);
                let usual = 0.1 * math::ln(stretch) + 1.0;
                key == "attention_factor" && rope[key].as_f64().is_some_and(|own| (own - usual).abs() < 1e-6)
            };
            let asked = asked.iter().find(|key| !rope[**key].is_null() && !usual(key));
            if let Some(asked) = asked {
                return Err(Error::unsupported(format!("config.json: {asked} of rope_type \"yarn\"")));
            }
            // A file cannot say it; those of gpt-oss, which all have it, are read with the range rounded.
            if rope["truncate"].as_bool() == Some(false) && self.arch != "gpt-oss" {
                return Err(Error::unsupported("config.json: truncate false of rope_type \"yarn\""));
            }
        }
        Ok(())
    }

    pub(super) fn write_rope(&self, writer: &mut Writer, key: &dyn Fn(&str) -> String) -> Result<()> {
        let rope = self.rope();
        let mut theta = rope["rope_theta"].as_f64().or(self.json["rope_theta"].as_f64());
        if let Some(alpha) = self.rope_alpha() {
            let dim = self.head_dim()? as f64;
            theta = Some(theta.unwrap_or(10_000.0) * math::pow(alpha, dim / (dim - 2.0)));
            writer.add_str(&key("rope.scaling.type"), "none");
            writer.add_f32(&key("rope.scaling.factor"), 1.0);
            writer.add_u32(&key("rope.scaling.original_context_length"), 1 << 18);
        }
        if let Some(theta) = theta.filter(|_| self.arch != "gemma2") {
            writer.add_f32(&key("rope.freq_base"), theta as f32);
        }
        let partial = rope["partial_rotary_factor"].as_f64().or(self.json["partial_rotary_factor"].as_f64());
        if let Some(rotated) = self.size("rotary_dim")? {
            writer.add_u32(&key("rope.dimension_count"), rotated);
        } else if let (Ok(dim), false) = (self.head_dim(), has_latents(self.arch)) {
            match partial {
                Some(share) => {
                    writer.add_u32(&key("rope.dimension_count"), (dim as f64 * share) as u32);
                }
                None if family::permutes(self.arch)
                    || ["phi3", "llama4"].contains(&self.arch)
                    || family::is_nemotron(self.arch) =>
                {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32);
                }
                None if has_delta_nets(self.arch) => {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32 / 4);
                }
                None if family::rotates_half(self.arch) => {
                    writer.add_u32(&key("rope.dimension_count"), dim as u32 / 2);
                }
                None => {}
            }
        }
        let kind = rope_kind(rope);
        if let ("linear" | "yarn", Some(factor)) = (kind, rope["factor"].as_f64()) {
            writer.add_str(&key("rope.scaling.type"), kind);
            writer.add_f32(&key("rope.scaling.factor"), factor as f32);
        }
        let betas = [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")];
        for (from, to) in betas.into_iter().filter(|_| kind == "yarn") {
            if let Some(beta) = rope[from].as_f64() {
                writer.add_f32(&key(&format!("rope.scaling.{to}")), beta as f32);
            }
        }
        if let ("yarn", "mistral3") = (kind, self.arch) {
            let more = [
                ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
                ("llama_4_scaling_beta", "attention.temperature_scale"),
            ];
            for (from, to) in more {
                if let Some(value) = rope[from].as_f64() {
                    writer.add_f32(&key(to), value as f32);
                }
            }
        }
        if family::has_sections(self.arch) {
            let sections = rope["mrope_section"].as_array().map(Vec::as_slice).unwrap_or_default();
            let mut sections: Vec<i32> =
                sections.iter().filter_map(|n| i32::try_from(n.as_u64()?).ok()).collect();
            sections.resize(4, 0);
            writer.add_i32s(&key("rope.dimension_sections"), &sections);
            let layers = self.json["deepstack_visual_indexes"].as_array();
            if let Some(layers) = layers.filter(|_| self.arch != "qwen2vl") {
                writer.add_u32(&key("n_deepstack_layers"), layers.len() as u32);
            }
        }
        if kind != "yarn" && self.arch == "mistral3" && !rope["llama_4_scaling_beta"].is_null() {
            return Err(Error::unsupported("config.json: llama_4_scaling_beta without rope_type \"yarn\""));
        }
        let name = "original_max_position_embeddings";
        let original = match size(rope, name)? {
            Some(original) => Some(original),
            None => self.size(name)?,
        };
        if let ("yarn" | "longrope" | "su", Some(original)) = (kind, original) {
            writer.add_u32(&key("rope.scaling.original_context_length"), original);
            if kind != "yarn" {
                let most = self.json["max_position_embeddings"].as_f64().unwrap_or(f64::from(original));
                writer.add_f32(
                    &key("rope.scaling.attn_factor"),
                    longrope_attention_factor(most, f64::from(original)),
                );
            }
        }
        Ok(())
    }

    fn llama3_factors(&self, rope: &Value) -> Result<Vec<f32>> {
        let number = |key: &str| {
            rope[key]
                .as_f64()
                .ok_or_else(|| Error::malformed(format!("config.json: rope scaling {key}"), "it is missing"))
        };
        let (factor, low, high) =
            (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
        let original = number("original_max_position_embeddings")?;
        let theta = rope["rope_theta"].as_f64().or(self.json["rope_theta"].as_f64()).unwrap_or(10_000.0);
        let dim = self.head_dim()?;
        let factors = (0..dim / 2).map(|i| {
            let wavelength = 2.0 * std::f64::consts::PI * math::pow(theta, 2.0 * i as f64 / dim as f64);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        });
        Ok(factors.collect())
    }

    /// What stretches the base of the frequencies of Hunyuan, whose checkpoints call it dynamic although it is fixed.
    pub(super) fn rope_alpha(&self) -> Option<f64> {
        let rope = self.rope();
        let stretched = self.arch == "hunyuan-dense" && rope_kind(rope) == "dynamic";
        rope["alpha"].as_f64().filter(|_| stretched)
    }

    /// Where the rotary parameters stand: `rope_parameters` (newer files; gemma 3 has one set per attention kind) or
    /// `rope_scaling` beside a plain `rope_theta`.
    fn rope(&self) -> &Value {
        let parameters = &self.json["rope_parameters"];
        match (&parameters["full_attention"], parameters) {
            (full, _) if full.is_object() => full,
            (_, all) if all.is_object() => all,
            _ => &self.json["rope_scaling"],
        }
    }
}

fn rope_kind(rope: &Value) -> &str {
    rope["rope_type"].as_str().or(rope["type"].as_str()).unwrap_or("default")
}

/// How much cos and sin grow when a phi 3 model made for `original` positions is stretched to `most`.
fn longrope_attention_factor(most: f64, original: f64) -> f32 {
    let stretch = most / original;
    if stretch <= 1.0 { 1.0 } else { (1.0 + math::ln(stretch) / math::ln(original)).sqrt() as f32 }
}

fn numbers(value: &Value, name: &str) -> Result<Vec<f32>> {
    let list: Option<Vec<f32>> =
        value.as_array().and_then(|v| v.iter().map(|x| Some(x.as_f64()? as f32)).collect());
    list.ok_or_else(|| Error::malformed(format!("config.json: {name}"), "it is not a list of numbers"))
}
